"""An example of a feature in a package of its own: counts requests that take long, and names the limit in a header."""

from __future__ import annotations

from pydantic import BaseModel, Field

from knapcache.proxy.feature_list import FeatureSpec


class SlowSettings(BaseModel):
    """Becomes a setting of the proxy."""

    slow_after: float = Field(0.0, ge=0.0, description="seconds from which on a request is slow; 0: none is")


SPEC = FeatureSpec(
    name="slow_requests",
    title="Slow requests",
    feature="slow_requests.feature:SlowRequests",
    is_on=lambda settings: settings.slow_after > 0.0,
    turn_on="slow_after = 2.0",
    settings=SlowSettings,
)
