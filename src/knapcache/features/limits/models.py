"""Responses of the admin API about limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from knapcache.proxy.admin.models import ResponseModel

Amount = Annotated[float, Field(ge=0)]


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


class LimitPage(ResponseModel):
    """Every limit of the settings: of all callers together first, then of the tenants in their order."""

    rows: list[LimitUse]
    alone: Annotated[
        str, Field(description="Why this process counts for itself, without the others; empty: it does not.")
    ]
