"""Base classes for the settings of features.

At run time a feature's settings are models with nothing but its own fields, and `Settings` derives from them
(composition.py). Type checkers see it the other way round: the feature's class has the fields of the core's class, too.
So the code of a feature can be typed:

    assert isinstance(settings, LimitsSettings)
    settings.cost, settings.limits
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from knapcache.proxy.settings.endpoints import TenantSettings as TenantPart
    from knapcache.proxy.settings.endpoints import UpstreamSettings as UpstreamPart
    from knapcache.proxy.settings.model import Settings as SettingsPart
    from knapcache.proxy.settings.routes import RouteSettings as RoutePart
else:

    class _Part(BaseModel):
        model_config = ConfigDict(defer_build=True)  # only the schema of `Settings` is used

    RoutePart = SettingsPart = TenantPart = UpstreamPart = _Part

__all__ = ["RoutePart", "SettingsPart", "TenantPart", "UpstreamPart"]
