"""Settings of the proxy, their sources, and the secrets that the proxy generates."""

from knapcache.proxy.settings.model import AdminTokenSettings, RouteSettings, Settings, TenantSettings, UpstreamSettings

__all__ = ["AdminTokenSettings", "RouteSettings", "Settings", "TenantSettings", "UpstreamSettings"]
