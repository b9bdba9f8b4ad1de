"""The objects of the proxy that the admin API uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from knapcache.cache.internal import InternalCache
from knapcache.proxy.admin.audit import AuditLog
from knapcache.proxy.admin.auth import Sessions
from knapcache.proxy.admin.tokens import AdminTokens
from knapcache.proxy.events.history_reader import HistoryReader
from knapcache.proxy.events.metrics import Metrics
from knapcache.proxy.events.published import MergedHealth, SharedProxies
from knapcache.proxy.events.recent import RecentReader
from knapcache.proxy.events.upstream_health import UpstreamHealth
from knapcache.proxy.features import Features
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings import Settings


@dataclass(frozen=True, kw_only=True)
class AdminContext:
    """The proxy's objects that the admin API uses. `Proxy` builds it when it becomes the owner."""

    settings: Settings
    tokens: AdminTokens
    audit: AuditLog
    started: float
    """When the proxy was started, Unix time."""
    cache: InternalCache
    memory_fallback: bool
    """Whether entries are in memory because the cache's file could not be opened."""
    authenticator: Authenticator
    flush_events: Callable[[], object]
    """Pass buffered events to the objects below. Runs on the event loop's thread."""
    history: HistoryReader
    metrics: Metrics
    recent: RecentReader
    upstream_health: UpstreamHealth | MergedHealth
    features: Features
    """The features that are on."""
    request_log: Path | None
    """The folder of the request log, if there is one."""
    sessions: Sessions | None = None
    """Those of a shared store; None: those of this process."""
    shared: SharedProxies | None = None
    """The proxies of a shared store; None without one."""

    def refresh(self) -> None:
        """Read the numbers of other proxies, which may wait for the server of a shared store."""
        if self.shared is not None:
            self.shared.refresh()
