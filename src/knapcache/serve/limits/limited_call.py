"""The limits' part of one request: reserves before its first call, and ends the reservation once.

begin       before each call of the upstream; only the first one reserves
settle      the cost of its answers is known
end         otherwise: if the upstream has answered with success, the usage of what has arrived counts as the cost, or
            else the estimate, and at least the length of what has arrived; if it has not, nothing counts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knapcache.cache import Answer
from knapcache.model import Endpoint
from knapcache.serve.limits.answer_sample import AnswerSample
from knapcache.serve.limits.estimate import DEFAULT_OUTPUT, MAX_OUTPUT
from knapcache.serve.limits.limits import Limits, Reservation

OUTPUT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class LimitedCall:
    """The reservation of one request."""

    __slots__ = ("_answered", "_limits", "_model", "_reservation", "_sample", "_tenant", "in_background")

    def __init__(self, limits: Limits, tenant: str, model: str) -> None:
        self._limits, self._tenant, self._model = limits, tenant, model
        self._reservation: Reservation | None = None
        self._answered = False
        self._sample: AnswerSample | None = None
        """The sample of a forwarded answer; None: nothing has arrived, or the cache parses it."""
        self.in_background = False
        """The call goes on after the request has ended."""

    async def begin(self, endpoint: Endpoint, body: Mapping[str, Any], size: int) -> None:
        """Reserve the estimated cost of a call. Raises LimitReached. size: bytes of the request."""
        if self._reservation is None:
            self._reservation = await self._limits.begin(self._tenant, endpoint, self._model, size, max_output(body))

    async def begin_unpriced(self) -> None:
        """Reserve a call whose cost will not be known. Raises LimitReached."""
        self._reservation = await self._limits.begin_unpriced(self._tenant)

    def answered(self, status: int) -> None:
        """Take note of the status of the upstream's response."""
        self._answered = status < 400

    def forwarded(self, data: bytes, *, stream: bool) -> None:
        """Take note of bytes of an answer that is forwarded. stream: it consists of server-sent events."""
        if self._reservation is not None:
            if self._sample is None:
                self._sample = AnswerSample(stream=stream)
            self._sample.add(data)

    def forwarded_all(self) -> None:
        """Take note that an answer was forwarded to its end."""
        if self._sample is not None:
            self._sample.complete = True

    def settle(self, answers: Sequence[Answer]) -> None:
        """Replace the estimate by the cost of the answers that were paid for, if it is known."""
        reservation, bills = self._reservation, [answer.bill for answer in answers if answer.outcome == "miss"]
        if reservation is None or not bills:
            return
        dollars, tokens = [bill.usd for bill in bills if bill.usd is not None], sum(bill.tokens for bill in bills)
        if dollars or tokens:  # otherwise the answer came without its usage
            reservation.settle(sum(dollars) if dollars else None, tokens)

    def end(self, *, in_background: bool = False) -> None:
        """End the reservation, unless it has been settled or the call goes on in the background."""
        if self._reservation is None or self.in_background is not in_background:
            return
        if self._answered:
            self._reservation.keep(self._sample)
        else:
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
