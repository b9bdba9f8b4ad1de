"""The consumers of events: history, metrics, request log, recent requests, upstream health, tracing, access log.

A data directory has one pipeline. With several workers one process has it, and the others send it their events
(workers/owner_link.py). Proxies of a shared store publish their numbers for each other (publisher.py, published.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from prometheus_client.core import Metric

from knapcache.cache.internal import InternalCache
from knapcache.errors import InvalidInput
from knapcache.proxy.events.events import Event, EventBuffer, EventConsumer, Note
from knapcache.proxy.events.feature_sums import TotalsClasses
from knapcache.proxy.events.history import History
from knapcache.proxy.events.logs import AccessLog, dropped_lines
from knapcache.proxy.events.loop_watchdog import LoopWatchdog
from knapcache.proxy.events.metrics import Metrics
from knapcache.proxy.events.recent import RecentRequests
from knapcache.proxy.events.request_log import RequestLog
from knapcache.proxy.events.upstream_health import UpstreamHealth
from knapcache.proxy.settings import Settings
from knapcache.store.encryption import Encryption

log = logging.getLogger("knapcache.serve")

REQUEST_LOG = "requests"
"""The folder of the request log, in the data directory."""


class PipelineFeatures(Protocol):
    """What the pipeline needs of the features that are on."""

    @property
    def totals(self) -> TotalsClasses:
        """Classes for their sums in the history."""

    def metrics(self) -> Iterable[Metric]:
        """Yield their metrics. Called in a thread."""

    def span_attributes(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return their attributes for the parts of an event. Called in a thread."""


class EventPipeline:
    """All consumers. Must be created on a running event loop. folder: the data directory, or None for memory only.

    Features add their own consumers.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path | None,
        cache: InternalCache,
        buffer: EventBuffer,
        features: PipelineFeatures,
        watchdog: LoopWatchdog | None = None,
        encryption_keys: Sequence[bytes] = (),
    ) -> None:
        self.dropped = 0
        """Events that other processes had to drop."""
        dropped = {"events": lambda: buffer.dropped + self.dropped, "log_lines": dropped_lines}
        self.history = History(folder, cache.stats, totals=features.totals)
        self.recent = RecentRequests(None if settings.store is None else time.time)
        self.upstream_health = UpstreamHealth(settings.upstreams)
        self._consumers: list[EventConsumer] = []
        self._note_consumers: list[tuple[str, Callable[[Sequence[Any]], None]]] = []
        self._log_folder, self._log_bytes = folder if settings.request_log else None, settings.request_log_bytes
        self._logs: list[RequestLog] = []
        digest_key = Encryption(encryption_keys).derived_key(b"request log") if encryption_keys else None
        self.request_log = self.open_log(REQUEST_LOG, RequestLog, digest_key)
        if self.request_log is not None:
            dropped["request_log"] = lambda: sum(one.dropped for one in self._logs)
        self._tracing = None
        if settings.otlp_endpoint is not None:
            from knapcache.proxy.events.tracing import Tracing

            self._tracing = tracing = Tracing(settings.otlp_endpoint, features.span_attributes)
            dropped["spans"] = lambda: tracing.dropped
        loop = asyncio.get_running_loop()
        self.metrics = Metrics(
            cache.stats,
            dropped,
            lambda: len(asyncio.all_tasks(loop)),
            watchdog,
            self.upstream_health.report,
            features.metrics,
        )
        self._consumers += [self.metrics, self.history, self.recent, self.upstream_health, AccessLog()]
        if self._tracing is not None:
            self._consumers.append(self._tracing)

    def add_consumer(self, consumer: EventConsumer) -> None:
        self._consumers.append(consumer)

    def add_note_consumer(self, feature: str, consume: Callable[[Sequence[Any]], None]) -> None:
        """Pass the notes of a feature to a function."""
        self._note_consumers.append((feature, consume))

    def open_log(self, name: str, kind: type[RequestLog], digest_key: bytes | None = None) -> RequestLog | None:
        """Open a log in a folder of the data directory, and write events to it.

        Return None if the settings turn logs off. If it cannot be written, an error is logged, and None returned:
        without it requests are still served.
        """
        if self._log_folder is None:
            return None
        try:
            found = kind(self._log_folder / name, self._log_bytes, digest_key=digest_key)
        except InvalidInput as error:
            log.error("No %s until the next start: %s", kind.title, error)
            return None
        self._logs.append(found)
        self._consumers.append(found)
        return found

    def consume(self, events: Sequence[Event]) -> None:
        for consumer in self._consumers:
            consumer.consume(events)

    def consume_notes(self, notes: Sequence[Note]) -> None:
        """Pass notes to history and metrics, and to those who want the notes of their feature."""
        if notes:
            self.history.consume_notes(notes)
            self.metrics.consume_notes(notes)
            for name, consume in self._note_consumers:
                if found := [note for feature, note in notes if feature == name]:
                    consume(found)

    def close(self) -> None:
        self.history.close()
        for each in self._logs:
            each.close()
        if self._tracing is not None:
            self._tracing.close()
