"""The settings of limits."""

from __future__ import annotations

from typing import Any

import pytest

from knapcache import InvalidInput
from knapcache.features.limits.settings import LimitsSettings
from knapcache.features.limits.spec import SPEC
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import from_text

TENANT = {"name": "a", "keys": ["sha256:" + "0" * 64]}


def test_limits_of_all_callers_and_of_a_tenant() -> None:
    settings = Settings(limits={"usd_per_day": 5}, tenants=[{**TENANT, "limits": {"concurrent": 2}}])
    assert isinstance(settings, LimitsSettings)
    assert settings.limits is not None
    assert settings.limits.shown() == {"usd_per_day": 5.0}
    assert [tenant.limits and tenant.limits.concurrent for tenant in settings.tenants] == [2]
    assert SPEC.is_on(settings)
    assert not SPEC.is_on(Settings())
    assert SPEC.reloaded == ("limits",)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"limits": {"usd_per_day": 5}}, "limits"),
        ({"tenants": [{**TENANT, "limits": {"usd_per_month": 5}}]}, "limits of the tenant a"),
    ],
)
def test_dollars_need_a_cost_with_dollars(values: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        Settings(cost="seconds", **values)
    assert str(raised.value) == f"{place}: dollars need a cost with usd, such as 0*usd + seconds, not 'seconds'"
    Settings(cost="0*usd + seconds", **values)
    Settings(cost="seconds", limits={"concurrent": 1})


@pytest.mark.parametrize(
    ("limit", "most"), [("requests_per_minute", 10**9), ("tokens_per_minute", 10**12), ("concurrent", 10**6)]
)
def test_a_limit_is_at_least_one_and_has_a_bound(limit: str, most: int) -> None:
    Settings(limits={limit: 1})
    Settings(limits={limit: most})
    with pytest.raises(InvalidInput, match=f"{limit}: must be greater than or equal to 1, not 0"):
        Settings(limits={limit: 0})
    with pytest.raises(InvalidInput, match=f"{limit}: must be less than or equal to {most}, not {most + 1}"):
        Settings(limits={limit: most + 1})


@pytest.mark.parametrize("limit", ["usd_per_day", "usd_per_month"])
def test_a_spend_limit_is_above_zero(limit: str) -> None:
    Settings(limits={limit: 1e-9})
    with pytest.raises(InvalidInput, match=f"{limit}: must be greater than 0"):
        Settings(limits={limit: 0})


def test_an_unknown_limit() -> None:
    with pytest.raises(
        InvalidInput, match=r"^unknown setting limits\.rpmm: it must be one of usd_per_day, usd_per_month,"
    ):
        Settings(limits={"rpmm": 3})
    tenant = {"name": "a", "keys": ["sha256:" + "0" * 64], "limits": {"rpmm": 3}}
    with pytest.raises(
        InvalidInput, match=r"^unknown setting tenants\[0\]\.limits\.rpmm: it must be one of usd_per_day,"
    ):
        Settings(tenants=[tenant])
    with pytest.raises(
        InvalidInput, match=r"^unknown setting limits\.rpmm: a table is given as JSON, limits=.\"usd_per_day"
    ):
        from_text(["limits.rpmm=3"])
