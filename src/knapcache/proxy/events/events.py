"""Events: one record for each finished request.

    request ─ append ─▶ EventBuffer ─ flush ─▶ EventPipeline ─ consume ─▶ history, metrics, request log, …
                             │
                             └─ in a process that is not the owner ─▶ OwnerClient ─▶ the owner's EventPipeline

A request only appends its event to the buffer of its process, which takes less than a microsecond. The buffer is
flushed four times a second, and before the admin API answers. Every event reaches the same consumers, whichever process
has served the request (pipeline.py, workers/owner_link.py). Verdicts on matches of the semantic tier, which are known
later than their request, take the same way as events of their own. So do payments: calls in the background.

    Invariant: the buffer holds at most MAX_BUFFERED events of bounded size. When it is full, new events are dropped
    and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

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
MAX_POSITIONS, MAX_DETAILED = 1024, 1000
"""Positions of a prefix event, and waiting events up to which they are kept. Of a request with more, or in a longer
queue, none are kept: some of them would be a wrong request. A position takes 130 bytes."""
MAX_QUESTION = 512
"""Characters of `question` and `matched_question`. They are cut off; what the tier matches is shorter, as a rule."""
MAX_VERDICTS = 10_000
"""Verdicts, and payments, that wait for the owner. They follow calls of upstreams, so few wait at any time."""
FLUSH_INTERVAL = 0.25
"""Seconds between two flushes."""


NO_PARTS: Mapping[str, Any] = MappingProxyType({})


class PrefixEvent(NamedTuple):
    """Use of the provider's prompt cache by one request. Built with keywords; crosses processes by field name.

    Every request that went upstream has one. Amounts of the tier are in plain tokens: tokens at the price of an input
    token that is neither read nor written.
    """

    mode: str
    """The setting `prefix` of the request's route: off, observe, on or manage."""
    tariff: str = ""
    """The tariff by which the tier decided (features/prefix/tariff.py); empty: none, so it decided nothing."""
    rule: str = ""
    """The rule that led; empty without a tariff."""
    marked: bool = False
    """The tier placed marks, or changed them."""
    own_marks: bool = False
    """The request came with marks."""
    below: bool = False
    """The request is shorter than the least that the model's provider caches."""
    reported: bool = False
    """The provider reported the five numbers below. Otherwise they are 0 and unknown."""
    input: int = 0
    """All input tokens."""
    read: int = 0
    """Input tokens that were read from the provider's cache."""
    short_written: int = 0
    """Input tokens that were written to it for the shorter TTL."""
    long_written: int = 0
    """Input tokens that were written to it for the longer TTL."""
    predicted: int = 0
    """Tokens that the tier expected to be read."""
    bills: Mapping[str, float] = MappingProxyType({})
    """Plain tokens that each rule would have paid for the input, by its name, and `paid`: what was paid by the report.
    Empty if nothing was reported, or without a tariff."""
    usd_per_token: float | None = None
    """Dollars of a plain token; None: the price is unknown."""
    tokens: int = 0
    """All input tokens, as the tier counted them."""
    positions: tuple[tuple[int, int], ...] = ()
    """Digest and length in tokens of every prefix that can be marked, ascending. For the prefix log only."""
    system: int = -1
    """Index of the position at the end of the system prompt; -1: none."""
    kind: str = "text"
    """`tool` if the last message is the result of a tool, else `text`."""

    def shortened(self, waiting: int) -> PrefixEvent:
        """Return it without its positions, if they take too much memory."""
        long = len(self.positions) > MAX_POSITIONS or waiting >= MAX_DETAILED
        return self._replace(positions=()) if long and self.positions else self


MatchKind = Literal["served", "shadow", "audit", "none", "excluded", "refused", "failed"]
MATCH_KINDS: tuple[MatchKind, ...] = ("served", "shadow", "audit", "none", "excluded", "refused", "failed")
"""What the semantic tier did with a request:

served     a stored answer to a similar question was sent
shadow     there was a match, but its level is not certified: the request went upstream
audit      the match could have been served, but was drawn to be checked: the request went upstream
none       no stored question came near, or vetoes excluded those that did
excluded   requests of its form are never matched
refused    the client asked not to be served by similarity
failed     the tier could not look the question up; `reason` says why (features/semantic/reasons.py)
"""
MatchVerdict = Literal["", "same", "different", "undecided"]


class SemanticEvent(NamedTuple):
    """What the semantic tier did with one request, after an exact miss. Built with keywords; crosses processes by name.

    None of it is a prompt, unless the setting `show_content` is on.
    """

    kind: MatchKind
    match_id: str = ""
    """Id of the match, as in `x-knapcache-match`; empty: there was none."""
    reason: str = ""
    """Name of the exclusion, the veto or the failure; empty if there is none to name."""
    scope: str = ""
    """The tenant whose labels decide; empty without tenants."""
    key: str = ""
    """The request's own key, in hex."""
    matched_key: str = ""
    """Key of the entry that matched, in hex."""
    similarity: float = 0.0
    """Cosine of the two questions."""
    risk: float = 1.0
    """Estimated probability that the stored answer is wrong for this request."""
    level: int = -1
    """Index of the level that the risk falls into (features/semantic/certificate.py); -1: none."""
    features: tuple[float, ...] = ()
    """Features of the match, from which a label is made."""
    seconds: float = 0.0
    """Time that the tier took before the request went on."""
    question: str = ""
    """The request's question; empty unless `show_content`."""
    matched_question: str = ""
    """The question of the entry that matched; empty unless `show_content`."""
    verdict: MatchVerdict = ""
    """Whether both answers say the same. Set when the match is judged, which is later than the request."""
    rung: str = ""
    """What decided the verdict: a rung of the judge, or `feedback`."""
    judge_usd: float = 0.0
    """Dollars paid for the verdict."""

    def shortened(self, waiting: int) -> SemanticEvent:  # noqa: ARG002
        """Return it with short texts."""
        question, matched = self.question[:MAX_QUESTION], self.matched_question[:MAX_QUESTION]
        return self._replace(question=question, matched_question=matched) if question or matched else self


class VerdictEvent(NamedTuple):
    """The verdict on a match, known after the request has finished. Crosses processes by field name."""

    match_id: str
    scope: str
    kind: MatchKind
    """That of the match: shadow, audit or served."""
    verdict: MatchVerdict
    rung: str
    """What decided: a rung of the judge, or `feedback`."""
    judge_usd: float
    time: float
    """When it was decided, Unix time."""


class PaymentEvent(NamedTuple):
    """A call that was paid for in the background: by the judge of the semantic tier, or to refresh a stale answer.

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
    """Return the event of a call in the background."""
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


def shortened(event: Event, waiting: int = MAX_BUFFERED) -> Event:
    """Return an event whose parts take little memory. waiting: how many events are kept beside it."""
    parts = {
        name: part.shortened(waiting) if hasattr(part, "shortened") else part for name, part in event.parts.items()
    }
    return event._replace(parts=parts) if parts else event


class EventConsumer(Protocol):
    """Takes batches of events."""

    def consume(self, events: Sequence[Event]) -> None:
        """Take a batch. Runs on the event loop's thread: it must be fast and must not raise."""


@runtime_checkable
class VerdictConsumer(Protocol):
    """Takes batches of verdicts, too."""

    def consume_verdicts(self, verdicts: Sequence[VerdictEvent]) -> None:
        """Take a batch, after the events of the requests that finished before it. As `EventConsumer.consume`."""


@runtime_checkable
class PaymentConsumer(Protocol):
    """Takes batches of payments, too."""

    def consume_payments(self, payments: Sequence[PaymentEvent]) -> None:
        """Take a batch. As `EventConsumer.consume`."""


class EventBuffer:
    """The events of this process that no consumer has seen yet. All methods run on the event loop's thread."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._verdicts: deque[VerdictEvent] = deque()
        self._payments: deque[PaymentEvent] = deque()
        self._consumers: list[EventConsumer] = []
        self.dropped = 0
        """Events that did not fit."""

    def append(self, event: Event) -> None:
        """Add the event of a finished request."""
        if len(event.model) > MAX_TEXT or len(event.trace) > MAX_TEXT or len(event.reason) > MAX_TEXT:
            model, trace, reason = event.model[:MAX_TEXT], event.trace[:MAX_TEXT], event.reason[:MAX_TEXT]
            event = event._replace(model=model, trace=trace, reason=reason)
        if event.parts:
            event = shortened(event, len(self._events))
        self.append_short(event)

    def append_short(self, event: Event) -> None:
        """Add the event of a finished request whose texts are known to be short."""
        if len(self._events) < MAX_BUFFERED:
            self._events.append(event)
        else:
            self.dropped += 1

    def append_verdict(self, verdict: VerdictEvent) -> None:
        """Add the verdict on a match."""
        if len(self._verdicts) < MAX_VERDICTS:
            self._verdicts.append(verdict)
        else:
            self.dropped += 1

    def append_payment(self, payment: PaymentEvent) -> None:
        """Add a call in the background."""
        if len(self._payments) < MAX_VERDICTS:
            self._payments.append(payment)
        else:
            self.dropped += 1

    def add_consumer(self, consumer: EventConsumer) -> None:
        """Pass later batches to this consumer, too."""
        self._consumers.append(consumer)

    def remove_consumer(self, consumer: EventConsumer) -> None:
        """Pass no more batches to this consumer."""
        self._consumers = [each for each in self._consumers if each is not consumer]

    def flush(self, limit: int | None = None) -> bool:
        """Pass buffered events to every consumer: all, or so many. Return whether some are left to pass.

        Without consumers they stay in the buffer.
        """
        events = self._events
        if not self._consumers or not (events or self._verdicts or self._payments):
            return False
        batch = [events.popleft() for _ in range(len(events) if limit is None else min(limit, len(events)))]
        for consumer in self._consumers if batch else ():
            consumer.consume(batch)
        if self._payments:
            payments = list(self._payments)
            self._payments.clear()
            for consumer in self._consumers:
                if isinstance(consumer, PaymentConsumer):
                    consumer.consume_payments(payments)
        if self._verdicts and not events:  # after the requests that they are about
            verdicts = list(self._verdicts)
            self._verdicts.clear()
            for consumer in self._consumers:
                if isinstance(consumer, VerdictConsumer):
                    consumer.consume_verdicts(verdicts)
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
