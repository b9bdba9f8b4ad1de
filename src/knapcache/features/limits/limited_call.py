"""The calls of one request, in the limits of its caller."""

from __future__ import annotations

from knapcache.features.limits.limits import Limits, Reservation
from knapcache.price.estimate import max_output
from knapcache.proxy.hooks import CallContext, CallHooks, PaidCall


class LimitedCall(CallHooks):
    """Reserves the estimated cost of the first call, and replaces it by what the calls have cost.

    If the upstream has answered with success and the cost is not known, an estimate counts: that of the call, and at
    least the length of what has arrived. Nothing is learned from it. If the upstream has not answered, nothing counts.
    """

    __slots__ = ("_call", "_limits", "_reservation")
    name = "limits"

    def __init__(self, limits: Limits, call: CallContext) -> None:
        self._limits, self._call = limits, call
        self._reservation: Reservation | None = None

    async def before_call(self, size: int) -> None:
        """Reserve the estimated cost of a call. Raises LimitReached."""
        if self._reservation is not None:
            return
        exchange, tenant = self._call.exchange, self._call.tenant
        if exchange is None:
            self._reservation = await self._limits.begin_unpriced(tenant)
            return
        allowed = max_output(exchange.body)
        self._reservation = await self._limits.begin(tenant, exchange.endpoint, self._call.model, size, allowed)

    def charge(self, paid: PaidCall) -> float:
        """End the reservation with what the calls have cost."""
        reservation = self._reservation
        if reservation is None:
            return 0.0
        if paid.known:
            reservation.charge(paid.usd, paid.tokens, learn=paid.answered)
        elif paid.answered:
            return reservation.keep(paid.output, paid.bill)
        else:
            reservation.release()
        return 0.0

    def end(self) -> None:
        """Release what was reserved for a call that was not charged."""
        if self._reservation is not None:
            self._reservation.release()
