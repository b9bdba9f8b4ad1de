"""The consumers of events: history, metrics, request log, recent requests, upstream health, tracing, access log.

A data directory has one pipeline. With several workers one process has it, and the others send it their events
(workers/owner_link.py). Proxies of a shared store publish their numbers for each other (publisher.py, merged.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from knapcache.cache.internal import InternalCache
from knapcache.errors import InvalidInput
from knapcache.features.prefix.log import PrefixLog
from knapcache.features.semantic.recent_matches import RecentMatches
from knapcache.proxy.events.events import (
    Event,
    EventBuffer,
    EventConsumer,
    PaymentConsumer,
    PaymentEvent,
    VerdictConsumer,
    VerdictEvent,
)
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

REQUEST_LOG, PREFIX_LOG = "requests", "prefixes"
"""The folders of the request log and of the prefix log, in the data directory."""


class EventPipeline:
    """All consumers. Must be created on a running event loop. folder: the data directory, or None for memory only."""

    def __init__(
        self,
        settings: Settings,
        folder: Path | None,
        cache: InternalCache,
        buffer: EventBuffer,
        watchdog: LoopWatchdog | None = None,
        encryption_keys: Sequence[bytes] = (),
    ) -> None:
        self.dropped = 0
        """Events that other processes had to drop."""
        dropped = {"events": lambda: buffer.dropped + self.dropped, "log_lines": dropped_lines}
        self.history = History(folder, cache.stats)
        self.recent = RecentRequests(None if settings.store is None else time.time)
        self.matches = RecentMatches()
        self.upstream_health = UpstreamHealth(settings.upstreams)
        self.request_log: RequestLog | None = None
        self.prefix_log: RequestLog | None = None
        self._tracing = None
        if settings.request_log and folder is not None:
            digest_key = Encryption(encryption_keys).derived_key(b"request log") if encryption_keys else None
            self.request_log = open_request_log(folder / REQUEST_LOG, settings.request_log_bytes, digest_key)
            if settings.prefix != "off":
                self.prefix_log = open_request_log(folder / PREFIX_LOG, settings.request_log_bytes, None, PrefixLog)
        logs = [one for one in (self.request_log, self.prefix_log) if one is not None]
        if logs:
            dropped["request_log"] = lambda: sum(one.dropped for one in logs)
        if settings.otlp_endpoint is not None:
            from knapcache.proxy.events.tracing import Tracing

            self._tracing = tracing = Tracing(settings.otlp_endpoint)
            dropped["spans"] = lambda: tracing.dropped
        loop = asyncio.get_running_loop()
        self.metrics = Metrics(
            cache.stats, dropped, lambda: len(asyncio.all_tasks(loop)), watchdog, self.upstream_health.report
        )
        self._consumers: list[EventConsumer] = [
            self.metrics,
            self.history,
            self.recent,
            self.matches,
            self.upstream_health,
            AccessLog(),
            *logs,
            *([] if self._tracing is None else [self._tracing]),
        ]

    def add_consumer(self, consumer: EventConsumer) -> None:
        """Pass events to a further consumer."""
        self._consumers.append(consumer)

    def consume(self, events: Sequence[Event]) -> None:
        """Pass a batch to every consumer."""
        for consumer in self._consumers:
            consumer.consume(events)

    def consume_verdicts(self, verdicts: Sequence[VerdictEvent]) -> None:
        """Pass verdicts to the consumers that count them."""
        if verdicts:
            for consumer in self._consumers:
                if isinstance(consumer, VerdictConsumer):
                    consumer.consume_verdicts(verdicts)

    def consume_payments(self, payments: Sequence[PaymentEvent]) -> None:
        """Pass payments to the consumers that count them."""
        if payments:
            for consumer in self._consumers:
                if isinstance(consumer, PaymentConsumer):
                    consumer.consume_payments(payments)

    def close(self) -> None:
        """Write what is still buffered and close the files."""
        self.history.close()
        for log_ in (self.request_log, self.prefix_log):
            if log_ is not None:
                log_.close()
        if self._tracing is not None:
            self._tracing.close()


def open_request_log(
    folder: Path, capacity: int, digest_key: bytes | None = None, kind: type[RequestLog] = RequestLog
) -> RequestLog | None:
    """Open the request log, or log an error and return None: without it requests are still served."""
    try:
        return kind(folder, capacity, digest_key=digest_key)
    except InvalidInput as error:
        log.error("No %s until the next start: %s", "prefix log" if kind is PrefixLog else "request log", error)
        return None
