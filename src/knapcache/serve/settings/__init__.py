"""Settings of the proxy, their sources, and the secrets that the proxy generates."""

from knapcache.serve.settings.model import AdminTokenSettings, Settings, TenantSettings, UpstreamSettings

__all__ = ["AdminTokenSettings", "Settings", "TenantSettings", "UpstreamSettings"]
