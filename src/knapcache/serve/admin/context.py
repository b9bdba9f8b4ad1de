"""The objects of the proxy that the admin API uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from knapcache.cache.internal import InternalCache
from knapcache.serve.admin.audit import AuditLog
from knapcache.serve.admin.auth import Sessions
from knapcache.serve.admin.semantic_control import SemanticControl
from knapcache.serve.admin.tokens import AdminTokens
from knapcache.serve.http.auth import Authenticator
from knapcache.serve.limits.limits import Limits
from knapcache.serve.observe.events import VerdictEvent
from knapcache.serve.observe.history import History
from knapcache.serve.observe.merged import MergedHealth, MergedHistory, MergedRecent, SharedProxies
from knapcache.serve.observe.metrics import Metrics
from knapcache.serve.observe.recent import RecentRequests
from knapcache.serve.observe.recent_matches import RecentMatches
from knapcache.serve.observe.upstream_health import UpstreamHealth
from knapcache.serve.observe.webhooks import Webhook
from knapcache.serve.settings import Settings


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
    append_verdict: Callable[[VerdictEvent], object]
    """Add a verdict on a match to the buffered events. Runs on the event loop's thread."""
    history: History | MergedHistory
    metrics: Metrics
    recent: RecentRequests | MergedRecent
    matches: RecentMatches
    """Recent matches of the semantic tier."""
    upstream_health: UpstreamHealth | MergedHealth
    request_log: Path | None
    """The folder of the request log, if there is one."""
    sessions: Sessions | None = None
    """Those of a shared store; None: those of this process."""
    shared: SharedProxies | None = None
    """The proxies of a shared store; None without one."""
    limits: Limits | None = None
    """The limits of this process, whose counters all processes share; None: there are none."""
    webhooks: Sequence[Webhook] = ()
    semantic: SemanticControl | None = None
    """The semantic tier of this process; None: it is off."""

    def refresh(self) -> None:
        """Read the numbers of other proxies, which may wait for the engine of a shared store."""
        if self.shared is not None:
            self.shared.refresh()
