"""The cost of the upstream calls of one request, and its event.

The cost is known by the bill of a complete answer. An answer that the cache does not parse (it has no key, is too long,
is an error, or its caller left before its end) is billed by a sample, which is kept while the answer is read:

    usage    of a plain answer, or of the events of a stream that have one: the cost of a complete answer is exact
    length   otherwise: BYTES_PER_TOKEN bytes are a token, and each event has EVENT_OVERHEAD bytes beside its text

If the upstream has answered with success and the cost is not known, features may count an estimate, the mean of earlier
calls. A caller chooses those, and could make calls without a key count for nearly nothing. So at least the length of
what has arrived counts. If the upstream has not answered, nothing was paid.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from knapcache.cache import Answer
from knapcache.exchange.exchange import Exchange, is_event_stream
from knapcache.exchange.fetched import UpstreamResponse
from knapcache.price.estimate import BYTES_PER_TOKEN
from knapcache.price.meter import Bill, Meter
from knapcache.proxy.events.events import NO_PARTS, Event, EventBuffer, UpstreamTry, payment_of
from knapcache.proxy.hooks import CallHooks, PaidCall
from knapcache.proxy.http.access import RequestHead
from knapcache.proxy.http.asgi_request import AsgiRequest
from knapcache.proxy.http.sending import Calls, UpstreamSender
from knapcache.wire.cache_control import NO_DIRECTIVES
from knapcache.wire.sse import parse_block, split_blocks

EVENT_OVERHEAD = 300
"""Bytes of an event beside its text, about: id, model, time and names of fields."""
MAX_PLAIN = 1 << 20
"""Bytes of a plain answer that is parsed, on the event loop. The usage of a longer one is not known."""
MAX_HEAD, MAX_TAIL = 1 << 14, 1 << 18
"""Bytes at the begin and at the end of a stream in which usage is looked for. Anthropic counts the input at the
begin."""
HAS_USAGE = re.compile(rb'"usage"\s*:\s*\{')
DATA = b"data:"
WITHIN = ("message", "response")
"""Fields of events that have the answer, with its usage."""
UNUSABLE = "a stored answer does not have what this request asks for"
"""Why a request that has a key is sent without the cache."""
NOT_SENT = frozenset(("hit", "similar", "stale", "rejected"))
"""Outcomes of requests that no upstream has served."""


class AnswerUsage(NamedTuple):
    """The usage that an answer reports."""

    usage: Mapping[str, Any]
    model: str
    """Empty: not named."""
    tier: str | None


class CallCost(NamedTuple):
    """The cost of the calls of a request beside the bills of its answers."""

    bill: Bill | None = None
    """Of an answer that the cache did not parse; None: there was none."""
    usd_estimated: float = 0.0
    """Dollars that features have counted because the cost is not known."""


NOTHING = CallCost()


class SampledResponse:
    """A response of an upstream, of which a sample is kept while it is read."""

    __slots__ = ("_events", "_head", "_response", "_size", "_tail", "complete", "headers", "pairs", "status")

    def __init__(self, response: UpstreamResponse) -> None:
        self._response = response
        self.status, self.headers, self.pairs = response.status, response.headers, response.pairs
        self.complete = False
        """The answer was read to its end, so its usage is final."""
        self._size = self._events = 0
        self._head = b""
        self._tail: bytes | bytearray = b""

    async def read(self) -> bytes:
        """Return the whole body."""
        content = self._tail = await self._response.read()
        self._size, self.complete = len(content), True
        return content

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        stream, tail = self._is_stream, bytearray()
        self._tail = tail
        async for data in self._response.iter_bytes():
            self._size += len(data)
            if stream:
                self._events += data.count(DATA)
                if len(self._head) < MAX_HEAD:
                    self._head += data[: MAX_HEAD - len(self._head)]
                tail += data
                if len(tail) > 2 * MAX_TAIL:
                    del tail[:-MAX_TAIL]
            elif self._size <= MAX_PLAIN:
                tail += data
            yield data
        self.complete = True

    async def close(self) -> None:
        """Release the connection."""
        await self._response.close()

    @property
    def _is_stream(self) -> bool:
        return is_event_stream(self.status, self.headers)

    @property
    def output_tokens(self) -> int:
        """The tokens of what has arrived, by its length."""
        events = (self._events or self._tail.count(DATA)) if self._is_stream else 0
        return max(events, (self._size - EVENT_OVERHEAD * events) // BYTES_PER_TOKEN)

    def usage(self) -> AnswerUsage | None:
        """Return the usage that the answer reports, or None."""
        found: dict[str, Any] = {}
        model, tier = "", None
        for answer in self._answers():
            usage = answer.get("usage")
            if isinstance(usage, dict):
                found |= {name: value for name, value in usage.items() if value is not None}
            model = name if isinstance(name := answer.get("model"), str) and name else model
            tier = name if isinstance(name := answer.get("service_tier"), str) else tier
        return AnswerUsage(found, model, tier) if found else None

    def _answers(self) -> Iterator[dict[str, Any]]:
        """Yield the plain answer, or the events with usage and the answers in them."""
        if not self._is_stream:
            whole = parsed(self._tail) if self._size <= MAX_PLAIN else None
            if whole is not None:
                yield whole
            return
        parts = [bytes(self._tail)] if self._size == len(self._tail) else [self._head, bytes(self._tail)]
        for part in parts:
            for raw in split_blocks(part):
                found = parse_block(raw, first=False).event if HAS_USAGE.search(raw) else None
                event = None if found is None else parsed(found.data.encode(errors="surrogateescape"))
                if event is not None:
                    yield event
                    yield from (each for name in WITHIN if isinstance(each := event.get(name), dict))


def charge(hooks: Sequence[CallHooks], paid: PaidCall) -> float:
    """Tell features what the calls have cost. Return the dollars that they have counted by estimates."""
    estimated = 0.0
    for each in hooks:
        estimated += each.charge(paid)
    return estimated


def charge_known(hooks: Sequence[CallHooks], bills: Sequence[Bill], *, success: bool) -> None:
    """Tell features a cost that is known."""
    usd, tokens = 0.0, 0
    for bill in bills:
        usd, tokens = usd + (bill.usd or 0.0), tokens + bill.tokens
    charge(hooks, PaidCall(success, True, usd, tokens))


def parsed(text: bytes | bytearray) -> dict[str, Any] | None:
    """Return a JSON object; None if the text is none."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class CallRecord:
    """Computes the cost of the calls of one request, and builds its event."""

    __slots__ = (
        "_called", "_decided", "_error", "_events", "_exchange", "_head", "_meter", "_request", "_response", "_time",
        "_ttfb", "_upstream", "hooks", "model", "refused", "route_name", "sender",
    )  # fmt: skip

    def __init__(
        self,
        request: AsgiRequest,
        head: RequestHead,
        exchange: Exchange,
        upstream: str,
        model: str,
        events: EventBuffer,
        meter: Meter,
        route_name: str,
    ) -> None:
        self._request, self._head, self._exchange = request, head, exchange
        self._events, self._meter = events, meter
        self._upstream, self.model = upstream, model
        self.route_name = route_name
        """Name of the route that applies; empty: none does."""
        self.hooks: tuple[CallHooks, ...] = ()
        """What features do for the request."""
        self.sender: UpstreamSender | None = None
        """None: nothing was sent."""
        self.refused = ""
        """Why a feature has refused the request."""
        self._time, self._ttfb = time.time(), 0.0
        self._error = ""
        """Why the call failed for which this request has waited."""
        self._called = 0.0
        """When the first call of the upstream began; 0: there was none."""
        self._response: SampledResponse | None = None
        """The last one of the upstream."""
        self._decided = False
        """The cost was decided."""

    def begin_call(self) -> None:
        """Take note that the upstream is called."""
        self._called = self._called or time.perf_counter()

    def answered(self, response: UpstreamResponse) -> SampledResponse:
        """Take note of the upstream's response, and return it."""
        self._response = SampledResponse(response)
        return self._response

    def cost(self, answers: Sequence[Answer] = (), *, failed: bool = False) -> CallCost:
        """Decide what the calls cost, charge it, and return it. Later calls return nothing.

        answers   the request's own, as the cache has read them
        failed    they are errors, or incomplete
        """
        if not self._called or self._decided:
            return NOTHING
        self._decided = True
        response, hooks = self._response, self.hooks
        success = response is not None and response.status < 400
        bills = [] if failed else [answer.bill for answer in answers if answer.outcome == "miss"]
        if bills and all(bill.known for bill in bills):
            charge_known(hooks, bills, success=success)
            return NOTHING
        if response is None and not bills:  # no usage that could be billed
            charge(hooks, PaidCall())
            return NOTHING
        own = self._bill_of(response)
        if own.known and (answers or (response is not None and response.complete)):
            charge_known(hooks, [own], success=success)
            return CallCost(own)
        if not success:
            charge(hooks, PaidCall())
            return NOTHING
        output = 0 if response is None else response.output_tokens
        estimated = charge(hooks, PaidCall(True, output=output, bill=own if own.known else None))
        return CallCost(None if bills else self._bill_of(None), estimated)

    def _bill_of(self, response: SampledResponse | None) -> Bill:
        """Return what an answer costs by its usage. Without one, dollars and tokens are unknown."""
        found = None if response is None else response.usage()
        seconds = time.perf_counter() - self._called
        if found is None:
            return self._meter.bill(self._exchange.endpoint, self.model, None, seconds)
        model = found.model or self.model
        return self._meter.bill(self._exchange.endpoint, model, found.usage, seconds, service_tier=found.tier)

    def mark_first_byte(self) -> None:
        """Take note of the time of the first byte of the response."""
        if not self._ttfb:
            self._ttfb = time.perf_counter() - self._request.started

    def mark_failed(self, reason: str) -> None:
        """Take note that the upstream has failed the request, or the one for whose call it has waited."""
        if self.sender is None:
            self._error = reason
        else:
            self.sender.broken(reason)

    def append(self, outcome: str, status: int, answer: Answer | None = None, cost: CallCost = NOTHING) -> None:
        """Add the event to the buffer."""
        self._append(self.event(outcome, status, answer, cost, attempts=outcome != "hit"), answer)

    def append_refreshed(self, event: Event, stale: Answer, answers: tuple[Answer, ...], cost: CallCost) -> None:
        """Add the event of a request that was served stale, with the calls of its background fetch."""
        calls = self._take_calls()
        if calls is not None:
            upstream, attempts, error, tried, open_until = calls
            event = event._replace(
                upstream=upstream, attempts=attempts, error=error, tried=tried, open_until=open_until
            )
        for bill in (cost.bill, *(answer.bill for answer in answers)):
            if bill is not None:
                payment = payment_of(event.endpoint, event.model, event.tenant, bill, cost.usd_estimated)
                self._events.append_payment(payment)
                event = event._replace(parts={**event.parts, **self._parts(bill, sent=True)})
        self._append(event, stale)

    def _append(self, event: Event, answer: Answer | None) -> None:
        self._events.append(event)
        for hooks in self.hooks:
            hooks.recorded(event, answer)

    def event(
        self, outcome: str, status: int, answer: Answer | None, paid: CallCost = NOTHING, *, attempts: bool = False
    ) -> Event:
        """Return the event of the request. attempts: with the upstream calls that are in no event yet."""
        seconds = time.perf_counter() - self._request.started
        key, size, cost, usd, upstream_seconds, tokens = "", 0, 0.0, None, 0.0, 0
        bill = paid.bill
        if answer is not None:
            key, size, bill = answer.key, answer.size, bill or answer.bill
        if bill is not None:
            usd, upstream_seconds, cost, _, tokens, _ = bill
        exchange, upstream, error = self._exchange, self._upstream, ""
        calls: tuple[int, ...] = ()
        tried: tuple[UpstreamTry, ...] = ()
        open_until = 0.0
        found = self._take_calls() if attempts else None
        if found is not None:
            upstream, calls, error, tried, open_until = found
        elif outcome in NOT_SENT:
            upstream = ""
        return Event(  # positional: keywords take twice as long
            self._time, exchange.endpoint.value, self.model, self._head.principal.name, outcome, status, seconds,
            self._ttfb or seconds, exchange.stream, key, size, cost, usd, tokens, upstream_seconds, upstream, calls,
            error, self._request.headers.get("traceparent", ""), self._reason(outcome),
            self._parts(bill, sent=outcome in ("miss", "bypass")) if self.hooks else NO_PARTS, tried,
            open_until, self.route_name, paid.usd_estimated,
        )  # fmt: skip

    def _parts(self, bill: Bill | None, *, sent: bool) -> dict[str, Any]:
        """Return the parts of features. sent: the upstream was called for this event."""
        editor = None if self.sender is None else self.sender.editor
        found = {}
        for each in self.hooks:
            if (part := each.event_part(sent=sent, bill=bill, editor=editor)) is not None:
                found[each.name] = part
        return found

    def _reason(self, outcome: str) -> str:
        """Return what in the request explains the outcome."""
        exchange = self._exchange
        if outcome == "rejected":
            return self.refused
        if outcome == "bypass":
            return exchange.bypass or UNUSABLE
        return exchange.control.asked if outcome != "hit" and exchange.control is not NO_DIRECTIVES else ""

    def _take_calls(self) -> Calls | None:
        """Return the upstream calls that are in no event yet; None: there are none."""
        if self.sender is not None:
            return self.sender.take_calls()
        if not self._error:
            return None
        error, self._error = self._error, ""
        return self._upstream, (), error, (), 0.0
