"""The cost of the calls of one request, for its event and for features.

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
from knapcache.exchange.exchange import is_event_stream
from knapcache.exchange.fetched import UpstreamResponse
from knapcache.model import Endpoint
from knapcache.price.estimate import BYTES_PER_TOKEN
from knapcache.price.meter import Bill, Meter
from knapcache.proxy.hooks import CallHooks, PaidCall
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

    __slots__ = ("_events", "_head", "_response", "_size", "_stream", "_tail", "complete", "headers", "pairs", "status")

    def __init__(self, response: UpstreamResponse) -> None:
        self._response = response
        self.status, self.headers, self.pairs = response.status, response.headers, response.pairs
        self._stream = is_event_stream(self.status, self.headers)
        self.complete = False
        """The answer was read to its end, so its usage is final."""
        self._size = self._events = 0
        self._head, self._tail = b"", bytearray()

    async def read(self) -> bytes:
        """Return the whole body."""
        content = await self._response.read()
        self._add(content)
        self.complete = True
        return content

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        async for data in self._response.iter_bytes():
            self._add(data)
            yield data
        self.complete = True

    async def close(self) -> None:
        """Release the connection."""
        await self._response.close()

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        if not self._stream:
            if self._size <= MAX_PLAIN:
                self._tail += data
            return
        self._events += data.count(DATA)
        if len(self._head) < MAX_HEAD:
            self._head += data[: MAX_HEAD - len(self._head)]
        self._tail += data
        if len(self._tail) > 2 * MAX_TAIL:
            del self._tail[:-MAX_TAIL]

    @property
    def output_tokens(self) -> int:
        """The tokens of what has arrived, by its length."""
        return max(self._events, (self._size - EVENT_OVERHEAD * self._events) // BYTES_PER_TOKEN)

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
        if not self._stream:
            whole = parsed(bytes(self._tail)) if self._size <= MAX_PLAIN else None
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


class PaidCalls:
    """The calls of one request, and what they cost."""

    __slots__ = ("_decided", "_endpoint", "_meter", "_model", "_response", "_started")

    def __init__(self, meter: Meter, endpoint: Endpoint, model: str) -> None:
        self._meter, self._endpoint, self._model = meter, endpoint, model
        self._decided = False
        self._started = 0.0
        """When the first call began; 0: there was none."""
        self._response: SampledResponse | None = None
        """The last one."""

    def begin(self) -> None:
        """Take note that the upstream is called."""
        self._started = self._started or time.perf_counter()

    def answered(self, response: UpstreamResponse) -> SampledResponse:
        """Take note of the upstream's response, and return it."""
        self._response = SampledResponse(response)
        return self._response

    def cost(self, hooks: Sequence[CallHooks], answers: Sequence[Answer] = (), *, failed: bool = False) -> CallCost:
        """Decide what the calls cost, charge it, and return it. Later calls return nothing.

        answers   the request's own, as the cache has read them
        failed    they are errors, or incomplete
        """
        if not self._started or self._decided:
            return NOTHING
        self._decided = True
        response = self._response
        success = response is not None and response.status < 400
        bills = [] if failed else [answer.bill for answer in answers if answer.outcome == "miss"]
        if bills and all(bill.known for bill in bills):
            charge_known(hooks, bills, success=success)
            return NOTHING
        if response is None and not bills:  # no usage that could be billed
            charge(hooks, PaidCall())
            return NOTHING
        own = self._bill(response)
        if own.known and (answers or (response is not None and response.complete)):
            charge_known(hooks, [own], success=success)
            return CallCost(own)
        if not success:
            charge(hooks, PaidCall())
            return NOTHING
        output = 0 if response is None else response.output_tokens
        estimated = charge(hooks, PaidCall(True, output=output, bill=own if own.known else None))
        return CallCost(None if bills else self._bill(None), estimated)

    def _bill(self, response: SampledResponse | None) -> Bill:
        """Return what an answer costs by its usage. Without one, dollars and tokens are unknown."""
        found = None if response is None else response.usage()
        seconds = time.perf_counter() - self._started
        if found is None:
            return self._meter.bill(self._endpoint, self._model, None, seconds)
        model = found.model or self._model
        return self._meter.bill(self._endpoint, model, found.usage, seconds, service_tier=found.tier)


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


def parsed(text: bytes) -> dict[str, Any] | None:
    """Return a JSON object; None if the text is none."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
