"""Limits as the requests of one process use them, on its event loop.

    reservation = await limits.begin(tenant, call, max_output)      before the first byte goes upstream
    reservation.charge(usd, tokens)      the cost is known          reservation.release()      nothing was paid
    reservation.keep(output)             the cost is not known: the estimate counts, and at least what has arrived

`begin` raises LimitReached. A caller without limits costs one dictionary lookup. Otherwise the counters are read and
changed in a thread, which takes all waiting operations together, in one transaction or script. `charge` does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from knapcache.features.limits.core import (
    ALL,
    BEAT_SECONDS,
    LIMITS,
    CallAmounts,
    Charge,
    LimitValues,
    Operation,
    Read,
    Reserve,
    Result,
    Scope,
    crossed,
    window_end,
)
from knapcache.features.limits.fallback_counts import FallbackCounts
from knapcache.features.limits.refusal import LimitReached, amount, time_text, whose
from knapcache.features.limits.settings import LimitSettings, LimitsSettings
from knapcache.model import Endpoint
from knapcache.price.estimate import CostEstimator
from knapcache.price.meter import Bill
from knapcache.proxy.admin_routes import ResponseModel
from knapcache.proxy.settings import Settings
from knapcache.threads import DeadlinePool

log = logging.getLogger("knapcache.serve")

CLOSE_SECONDS = 2.0
"""Seconds that the last operations may take."""
Amount = Annotated[float, Field(ge=0)]


class LimitWarning(NamedTuple):
    """A share of a spend limit is used. Given once for each limit, share and window, in one of the processes."""

    scope: str
    """The tenant, or ALL."""
    limit: str
    """usd_per_day or usd_per_month."""
    percent: int
    """50, 80 or 100."""
    used: float
    allowed: float
    resets_at: float
    """End of the window, Unix time."""


class LimitUse(ResponseModel):
    """One limit, and what is used of it now."""

    scope: Annotated[Literal["tenant", "all"], Field(description="Whose limit it is; all: all callers together.")]
    name: Annotated[str, Field(description="The tenant; empty for all callers together.")]
    limit: Annotated[str, Field(description="The setting: usd_per_day, usd_per_month, requests_per_minute, …")]
    allowed: Annotated[Amount, Field(description="Its value.")]
    used: Annotated[Amount, Field(description="Used in the present window.")]
    reserved: Annotated[Amount, Field(description="Reserved for calls in flight, beside what is used.")]
    ratio: Annotated[Amount, Field(description="used ÷ allowed.")]
    resets_at: Annotated[
        float | None, Field(description="When the window ends, Unix time; none: it moves, or there is no window.")
    ]


class ReservedCall(NamedTuple):
    """A call whose cost is estimated."""

    tenant: str
    endpoint: Endpoint
    model: str
    size: int
    """Bytes of the request."""


class Reservation:
    """The estimated cost of one call in flight. Ended once, by the first of its methods."""

    __slots__ = ("_call", "_limits", "_scopes", "amounts")

    def __init__(
        self, limits: Limits, scopes: tuple[Scope, ...], amounts: CallAmounts, call: ReservedCall | None = None
    ) -> None:
        """call: None if its cost will not be known."""
        self._limits: Limits | None = limits
        self._scopes, self.amounts, self._call = scopes, amounts, call

    def charge(self, usd: float, tokens: float, *, learn: bool = True) -> None:
        """Replace the estimate by the cost. learn: it counts for the estimates of later calls."""
        limits = self._end(CallAmounts(0, usd, tokens))
        if limits is not None and self._call is not None and learn:
            limits.estimator.learn(self._call.tenant, self._call.model, usd, tokens)

    def keep(self, output: int = 0, bill: Bill | None = None) -> float:
        """Count an estimate, because the cost is not known. Return its dollars. Nothing is learned from it.

        output   tokens of the answer that have arrived, by their length: they count at least
        bill     what has arrived costs so much by its usage, as far as that has a price: it counts at least
        """
        limits, call, paid = self._limits, self._call, self.amounts
        if limits is None:
            return 0.0
        if call is not None:
            arrived = limits.estimator.at_least(call.endpoint, call.model, call.size, output)
            paid = paid._replace(usd=max(paid.usd, arrived.usd), tokens=max(paid.tokens, arrived.tokens))
        if bill is not None:
            paid = paid._replace(usd=max(paid.usd, bill.usd or 0.0), tokens=max(paid.tokens, float(bill.tokens)))
        self._end(paid)
        return paid.usd

    def release(self) -> None:
        """Count nothing: the upstream has not answered, or with an error."""
        self._end(CallAmounts())

    def _end(self, paid: CallAmounts) -> Limits | None:
        limits, self._limits = self._limits, None
        if limits is not None:
            limits.counts.charge(Charge(self._scopes, self.amounts, paid))
        return limits


class CountsThread:
    """Applies operations in a thread, all that wait together."""

    def __init__(
        self, counts: FallbackCounts, on_charged: Callable[[Charge, Result], None], clock: Callable[[], float]
    ) -> None:
        self.shared, self._on_charged, self._clock = counts, on_charged, clock
        self._pool = DeadlinePool("knapcache-limits", threads=1)
        self._lock = threading.Lock()
        self._waiting: list[tuple[Operation, asyncio.Future[Result] | None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, operation: Operation) -> Result:
        """Apply an operation, and return what it found."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._add(operation, future)
        return await future

    def charge(self, operation: Charge) -> None:
        """Apply an operation without waiting for it."""
        self._add(operation, None)

    async def beat(self) -> None:
        await self._pool.call(lambda: self.shared.beat(self._clock()))

    def _add(self, operation: Operation, future: asyncio.Future[Result] | None) -> None:
        self._loop = asyncio.get_running_loop()
        with self._lock:
            self._waiting.append((operation, future))
            first = len(self._waiting) == 1
        if first:
            self._pool.submit(self._apply_waiting)

    def _apply_waiting(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        results: list[Result] | Exception
        try:
            results = self.shared.apply([operation for operation, _ in batch], self._clock())
        except Exception as error:  # an edge of the proxy: a request must not wait for ever
            log.exception("Limits failed")
            results = error
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._resolve, batch, results)

    def _resolve(
        self, batch: list[tuple[Operation, asyncio.Future[Result] | None]], results: list[Result] | Exception
    ) -> None:
        if isinstance(results, Exception):
            for _, future in batch:
                if future is not None and not future.done():
                    future.set_exception(results)
            return
        for (operation, future), result in zip(batch, results, strict=True):
            if isinstance(operation, Charge):
                self._on_charged(operation, result)
            elif future is not None and not future.done():
                future.set_result(result)
            elif isinstance(operation, Reserve) and result.refusal is None:  # its request was cancelled meanwhile
                self.charge(Charge(operation.scopes, operation.amounts, CallAmounts()))

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pool.call(lambda: self.shared.close(self._clock())), CLOSE_SECONDS)
        self._pool.close()


class Limits:
    """The limits of one process. All methods run on the event loop's thread."""

    def __init__(
        self,
        settings: Settings,
        counts: FallbackCounts,
        estimator: CostEstimator,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.estimator, self._clock = estimator, clock
        self.counts = CountsThread(counts, self._charged, clock)
        self._callbacks: list[Callable[[LimitWarning], None]] = []
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take the limits of these settings from now on."""
        assert isinstance(settings, LimitsSettings)
        whole = scope_of(ALL, settings.limits)
        self.whole = () if whole is None else (whole,)
        """The scope of all callers together, if it has limits."""
        self.tenants: dict[str, tuple[Scope, ...]] = {}
        """The scopes of tenants with limits of their own. Others have `whole`."""
        for tenant in settings.tenants:
            own = scope_of(tenant.name, tenant.limits)
            if own is not None:
                self.tenants[tenant.name] = (own, *self.whole)
        self._limits = {scope.name: scope.limits for scopes in (self.whole, *self.tenants.values()) for scope in scopes}

    def on_warning(self, callback: Callable[[LimitWarning], None]) -> None:
        """Call `callback` for each warning, on the event loop's thread. It must not block or raise."""
        self._callbacks.append(callback)

    async def beat_periodically(self) -> None:
        """Keep the counters informed of the calls in flight. Runs until cancelled."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self.counts.beat()

    def has_limits(self, tenant: str) -> bool:
        return bool(self.tenants.get(tenant, self.whole))

    async def begin(
        self, tenant: str, call: ReservedCall | None = None, max_output: int | None = None
    ) -> Reservation | None:
        """Reserve the estimated cost of a call; None if the caller has no limits. Raises LimitReached.

        call         None: its cost will not be known
        max_output   output tokens that the request allows; None: unknown
        """
        scopes = self.tenants.get(tenant, self.whole)
        if not scopes:
            return None
        cost = () if call is None else self.estimator.estimate(*call, max_output)
        amounts = CallAmounts(1, *cost)
        refusal = (await self.counts.run(Reserve(scopes, amounts))).refusal
        if refusal is not None:
            limits = next(scope.limits for scope in scopes if scope.name == refusal.scope)
            raise LimitReached(refusal, limits, self._clock())
        return Reservation(self, scopes, amounts, call)

    def count_paid(self, tenant: str, usd: float, tokens: float) -> None:
        """Count a call in the background, which is never refused."""
        scopes = self.tenants.get(tenant, self.whole)
        if scopes:
            self.counts.charge(Charge(scopes, CallAmounts(), CallAmounts(0, usd, tokens)))

    async def report(self) -> list[LimitUse]:
        """Return every limit, and what is used of it."""
        scopes = tuple(Scope(name, limits) for name, limits in self._limits.items())
        if not scopes:
            return []
        now = self._clock()
        result = await self.counts.run(Read(scopes))
        return [
            LimitUse(
                scope="all" if scope.name == ALL else "tenant",
                name="" if scope.name == ALL else scope.name,
                limit=name,
                allowed=allowed,
                used=usage.used(name),
                reserved=usage.reserved(name),
                ratio=usage.used(name) / allowed,
                resets_at=window_end(name, now),
            )
            for scope, usage in zip(scopes, result.usages, strict=True)
            for name, allowed in zip(LIMITS, scope.limits, strict=True)
            if allowed is not None
        ]

    @property
    def fallback_reason(self) -> str:
        """Why each process counts for itself; empty: the counters are shared."""
        return self.counts.shared.reason

    async def close(self) -> None:
        await self.counts.close()

    def _charged(self, operation: Charge, result: Result) -> None:
        """Give the warnings of a payment."""
        if operation.paid.usd <= 0.0:
            return
        for scope, usage in zip(operation.scopes, result.usages, strict=True):
            for limit, percent in crossed(scope.limits, usage, operation.paid.usd):
                used, end = usage.used(limit) + operation.paid.usd, window_end(limit, self._clock())
                assert end is not None
                warning = LimitWarning(scope.name, limit, percent, used, getattr(scope.limits, limit), end)
                log.warning("%s", warning_text(warning))
                for callback in self._callbacks:
                    callback(warning)


def scope_of(name: str, settings: LimitSettings | None) -> Scope | None:
    """Return a scope with its limits; None if it has none."""
    values = LimitValues(**settings.model_dump()) if settings is not None else LimitValues()
    return Scope(name, values) if any(value is not None for value in values) else None


def warning_text(warning: LimitWarning) -> str:
    return (
        f"Limit {warning.limit} of {whose(warning.scope)}: {warning.percent} % used, {amount(warning.used)} of "
        f"{amount(warning.allowed)} USD. It resets at {time_text(warning.resets_at)}."
    )
