"""Settings of the proxy, their sources, and the secrets that the proxy generates."""

from knapcache.serve.settings.model import Settings, TenantSettings, UpstreamSettings

__all__ = ["Settings", "TenantSettings", "UpstreamSettings"]
