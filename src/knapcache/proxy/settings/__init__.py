"""Settings of the proxy, their sources, and the secrets that the proxy generates.

`Settings` and its tables are made when one of them is first imported from here. Until then this package imports none
of its modules, because the settings of features import some of them, and are imported for `Settings`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from knapcache.proxy.settings.endpoints import AdminTokenSettings, TenantSettings, UpstreamSettings
    from knapcache.proxy.settings.model import Settings
    from knapcache.proxy.settings.routes import RouteSettings
else:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from knapcache.proxy.settings import model

        globals().update({each: getattr(model, each) for each in __all__})
        return globals()[name]


__all__ = ["AdminTokenSettings", "RouteSettings", "Settings", "TenantSettings", "UpstreamSettings"]
