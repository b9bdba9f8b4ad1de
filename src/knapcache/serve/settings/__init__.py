"""What the proxy is told: its settings, from where they come, and the secrets that it makes for itself."""

from knapcache.serve.settings.model import Settings, TenantSettings, UpstreamSettings

__all__ = ["Settings", "TenantSettings", "UpstreamSettings"]
