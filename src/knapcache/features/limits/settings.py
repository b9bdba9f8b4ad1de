"""Settings of limits: the table [limits] for all callers together, and `limits` of a tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from knapcache.errors import InvalidInput
from knapcache.price.weights import MAX_AMOUNT, Weights
from knapcache.proxy.settings.parts import SettingsPart, TenantPart
from knapcache.proxy.settings.tables import Table


class LimitSettings(Table):
    """Limits on calls to upstreams. Days and months are those of UTC."""

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

    def shown(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_defaults=True)


class LimitsTenantSettings(TenantPart):
    """The limits of a tenant."""

    limits: LimitSettings | None = Field(
        None, description="limits on the tenant's calls to upstreams, a table as the setting limits; none: no limits"
    )


class LimitsSettings(SettingsPart):
    """The limits of all callers together."""

    if TYPE_CHECKING:
        tenants: tuple[LimitsTenantSettings, ...]

    limits: LimitSettings | None = Field(
        None, description="limits on the calls of all callers together to upstreams: a table; none: no limits"
    )

    @model_validator(mode="after")
    def _dollars_are_counted(self) -> Self:
        """Reject spend limits if the cost has no dollars."""
        if Weights.of(self.cost).usd is not None:
            return self
        tenants = ((f"limits of the tenant {tenant.name}", tenant.limits) for tenant in self.tenants)
        for place, found in (("limits", self.limits), *tenants):
            if found is not None and (found.usd_per_day or found.usd_per_month):
                raise InvalidInput(f"{place}: dollars need a cost with usd, such as 0*usd + seconds, not {self.cost!r}")
        return self
