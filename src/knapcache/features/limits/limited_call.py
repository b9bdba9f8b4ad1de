"""The cost of the calls of one request: for its event, and for the limits of its caller.

begin       before each call of the upstream; only the first one reserves
cost        decides once what the calls cost, ends the reservation with it, and returns it
end         the request has ended; if nothing was decided, its caller has left

The cost is known by the bill of a complete answer. An answer that the cache does not parse (it has no key, is too long,
or is an error) is billed by the usage in it, if it was read to its end. If the upstream has answered with
success and the cost is not known all the same, an estimate counts for the limits: that of the call, and at least the
length of what has arrived. Nothing is learned from it. If the upstream has not answered, nothing counts.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

from knapcache.cache import Answer
from knapcache.exchange.fetched import UpstreamResponse
from knapcache.features.limits.answer_sample import AnswerSample
from knapcache.features.limits.estimate import DEFAULT_OUTPUT, MAX_OUTPUT
from knapcache.features.limits.limits import Limits, Reservation
from knapcache.model import Endpoint
from knapcache.price.meter import Bill

OUTPUT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class CallCost(NamedTuple):
    """The cost of the calls of a request beside the bills of its answers."""

    bill: Bill | None = None
    """Of an answer that the cache did not parse; None: there was none."""
    usd_estimated: float = 0.0
    """Dollars that limits have counted because the cost is not known."""


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


class LimitedCall:
    """The calls of one request, and their reservation."""

    __slots__ = (
        "_answered", "_decided", "_endpoint", "_limits", "_model", "_reservation", "_sample", "_started", "_tenant",
        "in_background",
    )  # fmt: skip

    def __init__(self, limits: Limits, tenant: str, model: str) -> None:
        self._limits, self._tenant, self._model = limits, tenant, model
        self._endpoint: Endpoint | None = None
        """None: nothing was sent, or its cost will not be known."""
        self._reservation: Reservation | None = None
        """None: the caller has no limits."""
        self._answered = self._decided = False
        self._started = 0.0
        self._sample: AnswerSample | None = None
        """The sample of the last response; None: there was none."""
        self.in_background = False
        """The call goes on after the request has ended."""

    async def begin(self, endpoint: Endpoint, body: Mapping[str, Any], size: int) -> None:
        """Reserve the estimated cost of a call. Raises LimitReached. size: bytes of the request."""
        if self._reservation is None:
            self._reservation = await self._limits.begin(self._tenant, endpoint, self._model, size, max_output(body))
            self._endpoint, self._started = endpoint, time.perf_counter()

    async def begin_unpriced(self) -> None:
        """Reserve a call whose cost will not be known. Raises LimitReached."""
        self._reservation = await self._limits.begin_unpriced(self._tenant)

    def answered(self, response: UpstreamResponse, *, stream: bool) -> SampledResponse:
        """Take note of the upstream's response, and return it. stream: it consists of server-sent events."""
        self._answered = response.status < 400
        self._sample = AnswerSample(stream=stream)
        return SampledResponse(response, self._sample)

    def cost(self, answers: Sequence[Answer] = (), *, failed: bool = False) -> CallCost:
        """Decide what the calls cost, end the reservation with it, and return it. Later calls return nothing.

        answers   the request's own, as the cache has read them
        failed    they are errors, or incomplete
        """
        if self._endpoint is None or self._decided:
            return NOTHING
        self._decided = True
        bills = [] if failed else [answer.bill for answer in answers if answer.outcome == "miss"]
        if self._sample is None and not bills and not self._answered:  # no response, so no usage that could be billed
            if self._reservation is not None:
                self._reservation.release()
            return NOTHING
        read = bool(bills) and all(bill.known for bill in bills)
        own = None if read else self._bill(self._sample)
        found = bills if own is None else [own]
        complete = bool(answers) or (self._sample is not None and self._sample.complete)
        if complete and all(bill.known for bill in found):
            if self._reservation is not None:
                usd, tokens = sum(bill.usd or 0.0 for bill in found), sum(bill.tokens for bill in found)
                self._reservation.settle(usd, tokens, learn=self._answered)
            return CallCost(own)
        if not self._answered:
            if self._reservation is not None:
                self._reservation.release()
            return NOTHING
        output = 0 if self._sample is None else self._sample.output_tokens
        estimated = (
            0.0 if self._reservation is None else self._reservation.keep(output, own if own and own.known else None)
        )
        return CallCost(None if bills else self._bill(None), estimated)

    def _bill(self, sample: AnswerSample | None) -> Bill:
        """Return what an answer costs by its usage. Without one, dollars and tokens are unknown."""
        assert self._endpoint is not None
        usage = None if sample is None else sample.usage()
        seconds = time.perf_counter() - self._started
        return self._limits.estimator.bill(self._endpoint, self._model, usage, seconds)

    def end(self, *, in_background: bool = False) -> None:
        """End the reservation, unless it has ended or the call goes on in the background."""
        if self.in_background is not in_background:
            return
        if self._endpoint is not None:
            self.cost()
        elif self._reservation is not None:
            self._reservation.release()


def max_output(body: Mapping[str, Any]) -> int | None:
    """Return how many output tokens a request allows, MAX_OUTPUT at most; None if it does not say."""
    choices = body.get("n")
    choices = min(MAX_OUTPUT, choices) if type(choices) is int and choices > 0 else 1
    for name in OUTPUT_FIELDS:
        value = body.get(name)
        if type(value) is int and value > 0:
            return min(MAX_OUTPUT, value * choices)
    return None if choices == 1 else min(MAX_OUTPUT, DEFAULT_OUTPUT * choices)
