"""All who are told what happened, and keep it: counters, money over time, the request log, traces.

There is one record for a data directory. Where several processes serve, the owner of the store has it (team.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from knapcache.cache import Cache
from knapcache.errors import InvalidInput
from knapcache.serve.observe import logs
from knapcache.serve.observe.events import Event, EventBuffer
from knapcache.serve.observe.history import History
from knapcache.serve.observe.metrics import Metrics
from knapcache.serve.observe.request_log import RequestLog
from knapcache.serve.settings import Settings

log = logging.getLogger("knapcache.serve")

LOG = "requests"
"""The folder of the request log, in the data directory."""


class EventPipeline:
    """Opened on the loop, with the files of the data directory; None: nothing is kept beyond the process."""

    def __init__(self, settings: Settings, folder: Path | None, cache: Cache, journal: EventBuffer) -> None:
        lost = {"journal": lambda: journal.lost}
        self.history = History(folder, cache.stats)
        self.request_log: RequestLog | None = None
        self._telemetry = None
        if settings.request_log and folder is not None:
            self.request_log = opened(folder / LOG, settings.request_log_bytes)
        if self.request_log is not None:
            kept = self.request_log
            lost["request_log"] = lambda: kept.lost
        if settings.otlp_endpoint is not None:
            from knapcache.serve.observe.tracing import Tracing

            self._telemetry = telemetry = Tracing(settings.otlp_endpoint)
            lost["spans"] = lambda: telemetry.lost
        loop = asyncio.get_running_loop()
        self.metrics = Metrics(cache.stats, lost, lambda: len(asyncio.all_tasks(loop)))
        told = (self.metrics, self.history, self.request_log, self._telemetry, logs)
        self._listeners = [listener.listen for listener in told if listener is not None]

    def listen(self, events: Sequence[Event]) -> None:
        """These requests are over."""
        for listener in self._listeners:
            listener(events)

    def close(self) -> None:
        """Write what is to be written."""
        self.history.close()
        if self.request_log is not None:
            self.request_log.close()
        if self._telemetry is not None:
            self._telemetry.close()


def opened(folder: Path, room: int) -> RequestLog | None:
    """The request log; None, and a loud word, where the disk has no place for it: requests are to be served."""
    try:
        return RequestLog(folder, room)
    except InvalidInput as error:
        log.error("there is no request log until the next start: %s", error)
        return None
