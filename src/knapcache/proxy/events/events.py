"""Events: one record for each finished request.

    request ─ append ─▶ EventBuffer ─ flush ─▶ EventPipeline ─ consume ─▶ history, metrics, request log, …
                             │
                             └─ in a process that is not the owner ─▶ OwnerClient ─▶ the owner's EventPipeline

A request only appends its event to the buffer of its process, which takes less than a microsecond. The buffer is
flushed four times a second, and before the admin API answers. Every event reaches the same consumers, whichever process
has served the request (pipeline.py, workers/owner_link.py). Notes of features, which are known later than the request
that they are about, take the same way. So do payments, calls in the background: they are notes of the core.

    Invariant: the buffer holds at most MAX_BUFFERED events of bounded size. When it is full, new events are dropped
    and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from knapcache.price.meter import Bill

OUTCOMES = ("hit", "similar", "miss", "coalesced", "stale", "bypass", "passthrough", "failed", "rejected")
SAVED = frozenset({"hit", "similar", "coalesced", "stale"})
"""Outcomes whose answer was served without paying for it (usage.py)."""
MAX_BUFFERED = 100_000
"""Events: some seconds of the fastest traffic."""
MAX_TEXT = 256
"""Characters of `model`, `trace` and `reason`, which clients choose in part. They are cut off."""
MIN_SLICE, SLICES = 64, 64
"""Events that are passed on without a pause: MIN_SLICE, which takes 0.3 ms, or the SLICES-th part of the buffer if that
is more. So a flush adds little to the latency of requests that arrive meanwhile, and the buffer never fills up."""
MAX_NOTES = 10_000
"""Notes that wait for the owner. They follow calls of upstreams, so few wait at any time."""
MAX_DETAILED = 1000
"""Waiting events up to which a new one keeps the details of its parts."""
FLUSH_INTERVAL = 0.25
"""Seconds between two flushes."""


NO_PARTS: Mapping[str, Any] = MappingProxyType({})


class PaymentEvent(NamedTuple):
    """A call that was paid for in the background: to refresh a stale answer, or for a feature.

    Built with keywords; crosses processes by field name.
    """

    endpoint: str
    """As `knapcache.model.Endpoint` spells it."""
    model: str
    tenant: str
    """The tenant whose request has led to the call."""
    usd: float | None
    """US dollars; None: the price is unknown."""
    seconds: float
    cost: float
    """In the policy's unit."""
    tokens: int
    usd_estimated: float = 0.0
    """Dollars that limits have counted because the cost is not known."""


def payment_of(endpoint: str, model: str, tenant: str, bill: Bill, usd_estimated: float = 0.0) -> PaymentEvent:
    usd, seconds, cost, _, tokens, _ = bill
    return PaymentEvent(endpoint, model, tenant, usd, seconds, cost, tokens, usd_estimated)


class UpstreamTry(NamedTuple):
    """Calls of one request to an upstream that failed it. Crosses processes by field name."""

    upstream: str
    attempts: tuple[int, ...]
    """Status of each call; 0 if no response came."""
    error: str
    """Why it failed, in plain words; empty if a status says all."""
    open_until: float
    """Unix time until which groups send no requests there; 0: they do."""

    @property
    def text(self) -> str:
        """The upstream and why it failed, for people."""
        statuses = ", ".join(f"status {status}" if status else "no response" for status in self.attempts)
        return f"{self.upstream}: {self.error or statuses}"


class Event(NamedTuple):
    """One finished request. Built with keywords; events cross processes by field name."""

    time: float
    """Arrival, Unix time."""
    endpoint: str
    """As `knapcache.model.Endpoint` spells it; empty for passthrough."""
    model: str
    tenant: str
    """The principal's name; never a credential."""
    outcome: str
    """One of OUTCOMES. bypass: a cacheable endpoint, but the request has no key. passthrough: any other path."""
    status: int
    """As sent to the client; 499 if the client had disconnected."""
    seconds: float
    """From the first byte of the request to the last byte of the response."""
    ttfb: float
    """From the first byte of the request to the first byte of the response, in seconds."""
    stream: bool
    key: str = ""
    """The key's digest in hex; empty if the request has none."""
    size: int = 0
    """Bytes charged for the answer in the cache; 0 if it may not be stored."""
    cost: float = 0.0
    """Cost of the answer when it was fetched, in the policy's unit."""
    usd: float | None = None
    """The same in US dollars, if the price is known."""
    tokens: int = 0
    """Tokens of request and answer together; 0: unknown."""
    upstream_seconds: float = 0.0
    """Seconds that the upstream took when the answer was fetched."""
    upstream: str = ""
    """Name of the upstream that served the request; empty if it was answered without one."""
    attempts: tuple[int, ...] = ()
    """Status of each call that this request made to the upstream, in order; 0 if no response came."""
    error: str = ""
    """Why the upstream failed this request, in plain words; empty if it did not, or if a status says all."""
    trace: str = ""
    """The client's `traceparent` header; empty if there was none."""
    reason: str = ""
    """What in the request explains its outcome: its cache directives, why it has no key, why it was rejected."""
    parts: Mapping[str, Any] = NO_PARTS
    """What features say about the request: a NamedTuple for each, by name of the feature."""
    tried: tuple[UpstreamTry, ...] = ()
    """Upstreams that failed the request before `upstream` was called."""
    open_until: float = 0.0
    """Unix time until which groups send no requests to `upstream`; 0: they do."""
    route: str = ""
    """Name of the route that applies; empty: none does."""
    usd_estimated: float = 0.0
    """Dollars that limits have counted for its calls because their cost is not known."""

    @property
    def saved(self) -> bool:
        """Whether the answer was served without paying for it."""
        return self.outcome in SAVED


Note = tuple[str, Any]
"""The name of a feature, and what it reports about a request that has finished: a NamedTuple."""
PAYMENT = ""
"""In place of the name of a feature: the note is a `PaymentEvent`."""


def shortened(event: Event) -> Event:
    """Return an event whose parts have no details."""
    changed = {}
    for name, part in event.parts.items():
        if hasattr(part, "shortened") and (short := part.shortened()) is not part:
            changed[name] = short
    return event._replace(parts={**event.parts, **changed}) if changed else event


class EventConsumer(Protocol):
    """Takes batches of events."""

    def consume(self, events: Sequence[Event]) -> None:
        """Take a batch. Runs on the event loop's thread: it must be fast and must not raise."""


@runtime_checkable
class NoteConsumer(Protocol):
    """Takes batches of notes, too."""

    def consume_notes(self, notes: Sequence[Note]) -> None:
        """Take a batch, after the events of the requests that finished before it. As `EventConsumer.consume`."""


class EventBuffer:
    """The events of this process that no consumer has seen yet. All methods run on the event loop's thread."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._notes: deque[Note] = deque()
        self._consumers: list[EventConsumer] = []
        self.dropped = 0
        """Events that did not fit."""

    def append(self, event: Event) -> None:
        if len(event.model) > MAX_TEXT or len(event.trace) > MAX_TEXT or len(event.reason) > MAX_TEXT:
            model, trace, reason = event.model[:MAX_TEXT], event.trace[:MAX_TEXT], event.reason[:MAX_TEXT]
            event = event._replace(model=model, trace=trace, reason=reason)
        self.append_short(shortened(event) if event.parts and len(self._events) >= MAX_DETAILED else event)

    def append_short(self, event: Event) -> None:
        """Add the event of a finished request whose texts are known to be short."""
        if len(self._events) < MAX_BUFFERED:
            self._events.append(event)
        else:
            self.dropped += 1

    def append_note(self, feature: str, note: Any) -> None:
        """Add what a feature reports about a request that has finished: a NamedTuple."""
        if len(self._notes) < MAX_NOTES:
            self._notes.append((feature, note))
        else:
            self.dropped += 1

    def append_payment(self, payment: PaymentEvent) -> None:
        self.append_note(PAYMENT, payment)

    def add_consumer(self, consumer: EventConsumer) -> None:
        """Pass later batches to this consumer, too."""
        self._consumers.append(consumer)

    def remove_consumer(self, consumer: EventConsumer) -> None:
        """Pass no more batches to this consumer."""
        self._consumers = [each for each in self._consumers if each is not consumer]

    def flush(self, limit: int | None = None) -> bool:
        """Pass at most `limit` buffered events, or all, to every consumer. Return whether some are left to pass.

        Without consumers they stay in the buffer.
        """
        events = self._events
        if not self._consumers or not (events or self._notes):
            return False
        batch = [events.popleft() for _ in range(len(events) if limit is None else min(limit, len(events)))]
        for consumer in self._consumers if batch else ():
            consumer.consume(batch)
        if self._notes and not events:  # after the requests that they are about
            notes = list(self._notes)
            self._notes.clear()
            for consumer in self._consumers:
                if isinstance(consumer, NoteConsumer):
                    consumer.consume_notes(notes)
        return bool(events)

    async def flush_periodically(self) -> None:
        """Flush every FLUSH_INTERVAL seconds until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(FLUSH_INTERVAL)
                while self.flush(max(MIN_SLICE, len(self._events) // SLICES)):
                    await asyncio.sleep(0)
        finally:
            self.flush()
