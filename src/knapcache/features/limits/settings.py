"""Settings of limits: the table [limits] for all callers together, and `limits` of a tenant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from knapcache.errors import InvalidInput
from knapcache.price.weights import MAX_AMOUNT, Weights


class LimitSettings(BaseModel):
    """Limits on calls to upstreams. Days and months are those of UTC."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    usd_per_day: float | None = Field(
        None, gt=0.0, le=MAX_AMOUNT, description="US dollars paid to upstreams in a day (UTC); none: no limit"
    )
    usd_per_month: float | None = Field(
        None,
        gt=0.0,
        le=MAX_AMOUNT,
        description="US dollars paid to upstreams in a calendar month (UTC); none: no limit",
    )
    requests_per_minute: int | None = Field(
        None, ge=1, le=10**9, description="requests sent to upstreams within 60 seconds; none: no limit"
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, le=10**12, description="tokens of these requests and their answers; none: no limit"
    )
    concurrent: int | None = Field(
        None, ge=1, le=10**6, description="requests to upstreams that are in flight at the same time; none: no limit"
    )


class HasLimits(Protocol):
    """A tenant."""

    name: str
    limits: LimitSettings | None


def check_spend_limits(cost: str, limits: LimitSettings | None, tenants: Iterable[HasLimits]) -> None:
    """Raise InvalidInput if there are spend limits, but the cost has no dollars."""
    if Weights.of(cost).usd is not None:
        return
    for place, found in (("limits", limits), *((f"limits of the tenant {one.name}", one.limits) for one in tenants)):
        if found is not None and (found.usd_per_day or found.usd_per_month):
            raise InvalidInput(f"{place}: dollars need a cost with usd, such as 0*usd + seconds, not {cost!r}")
