"""The cost of the calls of one request, for its event and for features.

The cost is known by the bill of a complete answer. An answer that the cache does not parse (it has no key, is too long,
or is an error) is billed by the usage in it, if it was read to its end. If the upstream has answered with success and
the cost is not known all the same, features may count an estimate. If the upstream has not answered, nothing was paid.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from knapcache.cache import Answer
from knapcache.exchange.fetched import UpstreamResponse
from knapcache.model import Endpoint
from knapcache.price.meter import Bill, Meter
from knapcache.proxy.hooks import CallHooks, PaidCall
from knapcache.proxy.http.answer_sample import AnswerSample


class CallCost(NamedTuple):
    """The cost of the calls of a request beside the bills of its answers."""

    bill: Bill | None = None
    """Of an answer that the cache did not parse; None: there was none."""
    usd_estimated: float = 0.0
    """Dollars that features have counted because the cost is not known."""


NOTHING = CallCost()


class SampledResponse:
    """A response of an upstream, of which a sample is taken while it is read."""

    __slots__ = ("_response", "_sample", "headers", "pairs", "status")

    def __init__(self, response: UpstreamResponse, sample: AnswerSample) -> None:
        self._response, self._sample = response, sample
        self.status, self.headers, self.pairs = response.status, response.headers, response.pairs

    async def read(self) -> bytes:
        """Return the whole body."""
        content = await self._response.read()
        self._sample.add(content)
        self._sample.complete = True
        return content

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        async for data in self._response.iter_bytes():
            self._sample.add(data)
            yield data
        self._sample.complete = True

    async def close(self) -> None:
        """Release the connection."""
        await self._response.close()


class PaidCalls:
    """The calls of one request, and what they cost."""

    __slots__ = ("_answered", "_decided", "_endpoint", "_meter", "_model", "_sample", "_started")

    def __init__(self, meter: Meter, endpoint: Endpoint, model: str) -> None:
        self._meter, self._endpoint, self._model = meter, endpoint, model
        self._answered = self._decided = False
        self._started = 0.0
        """When the first call began; 0: there was none."""
        self._sample: AnswerSample | None = None
        """The sample of the last response; None: there was none."""

    def begin(self) -> None:
        """Take note that the upstream is called."""
        self._started = self._started or time.perf_counter()

    def answered(self, response: UpstreamResponse, *, stream: bool) -> SampledResponse:
        """Take note of the upstream's response, and return it. stream: it consists of server-sent events."""
        self._answered = response.status < 400
        self._sample = AnswerSample(stream=stream)
        return SampledResponse(response, self._sample)

    def cost(self, hooks: Sequence[CallHooks], answers: Sequence[Answer] = (), *, failed: bool = False) -> CallCost:
        """Decide what the calls cost, charge it, and return it. Later calls return nothing.

        answers   the request's own, as the cache has read them
        failed    they are errors, or incomplete
        """
        if not self._started or self._decided:
            return NOTHING
        self._decided = True
        bills = [] if failed else [answer.bill for answer in answers if answer.outcome == "miss"]
        if self._sample is None and not bills and not self._answered:  # no response, so no usage that could be billed
            charge(hooks, PaidCall())
            return NOTHING
        read = bool(bills) and all(bill.known for bill in bills)
        own = None if read else self._bill(self._sample)
        found = bills if own is None else [own]
        complete = bool(answers) or (self._sample is not None and self._sample.complete)
        if complete and all(bill.known for bill in found):
            if hooks:
                usd, tokens = sum(bill.usd or 0.0 for bill in found), sum(bill.tokens for bill in found)
                charge(hooks, PaidCall(self._answered, True, usd, tokens))
            return CallCost(own)
        if not self._answered:
            charge(hooks, PaidCall())
            return NOTHING
        output = 0 if self._sample is None else self._sample.output_tokens
        estimated = charge(hooks, PaidCall(True, output=output, bill=own if own and own.known else None))
        return CallCost(None if bills else self._bill(None), estimated)

    def _bill(self, sample: AnswerSample | None) -> Bill:
        """Return what an answer costs by its usage. Without one, dollars and tokens are unknown."""
        found = None if sample is None else sample.usage()
        seconds = time.perf_counter() - self._started
        if found is None:
            return self._meter.bill(self._endpoint, self._model, None, seconds)
        model = found.model or self._model
        return self._meter.bill(self._endpoint, model, found.usage, seconds, service_tier=found.tier)


def charge(hooks: Sequence[CallHooks], paid: PaidCall) -> float:
    """Tell features what the calls have cost. Return the dollars that they have counted by estimates."""
    return sum(each.charge(paid) for each in hooks)
