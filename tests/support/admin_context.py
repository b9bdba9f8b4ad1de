"""An admin API with a real cache and real event consumers, without HTTP and without an upstream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from knapcache import Cache, Reply
from knapcache.cache.cache import internal_of
from knapcache.features.prefix.totals import PrefixTotals
from knapcache.features.semantic.control import SemanticControl
from knapcache.features.semantic.recent_matches import RecentMatches
from knapcache.features.semantic.totals import SemanticTotals
from knapcache.proxy.admin.app import admin_app
from knapcache.proxy.admin.audit import AuditLog
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.admin.panels import feature_panels
from knapcache.proxy.admin.tokens import AdminTokens
from knapcache.proxy.events.events import Event, EventBuffer, EventConsumer, Note
from knapcache.proxy.events.history import History
from knapcache.proxy.events.metrics import Metrics
from knapcache.proxy.events.recent import RecentRequests
from knapcache.proxy.events.upstream_health import UpstreamHealth
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings import Settings

TOKEN = "the token of these tests"
BEARER = {"authorization": f"Bearer {TOKEN}"}
BASE = "http://127.0.0.1:8080"
CHAT = "chat/completions"


class KnownMatches(RecentMatches):
    """Recent matches as a consumer of the buffer."""

    def consume_notes(self, notes: Sequence[Note]) -> None:
        self.consume_verdicts([verdict for _, verdict in notes])


class AdminHarness:
    """An `AdminContext`, and requests that fill it. folder: the data directory, or None for memory only."""

    def __init__(
        self,
        folder: Path | None = None,
        request_log: Path | None = None,
        tier: SemanticControl | None = None,
        **settings: Any,
    ) -> None:
        values: dict[str, Any] = {"upstreams": [{"name": "fake", "url": "http://127.0.0.1:9/v1"}], "cost": "seconds"}
        values |= {"policy": "lru", "shadows": ("lru",), "capacity": "20MB", "memory_only": folder is None}
        if folder is not None:
            folder.mkdir(exist_ok=True)
            values["path"] = folder
        self.settings = Settings(**(values | settings))
        self.authenticator = Authenticator(self.settings, b"secret" * 6)
        self.cache = Cache(
            self.settings.capacity,
            path=self.settings.cache_file,
            policy=self.settings.policy,
            cost=self.settings.cost,
            shadows=self.settings.shadows,
        )
        self.events, internal = EventBuffer(), internal_of(self.cache)
        totals = {"prefix": PrefixTotals, "semantic": SemanticTotals}
        self.history, metrics = History(folder, internal.stats, totals=totals), Metrics(internal.stats)
        matches = KnownMatches()
        recent, upstream_health = RecentRequests(), UpstreamHealth(self.settings.upstreams)
        self.context = AdminContext(
            settings=self.settings,
            tokens=AdminTokens(self.settings, None, TOKEN),
            audit=AuditLog(folder, self.settings.audit_log_bytes),
            started=time.time(),
            cache=internal,
            memory_fallback=False,
            authenticator=self.authenticator,
            flush_events=self.events.flush,
            append_note=self.events.append_note,
            matches=matches,
            semantic=tier,
            history=self.history,
            metrics=metrics,
            recent=recent,
            upstream_health=upstream_health,
            request_log=request_log,
            panels=feature_panels(lambda spec: spec.is_on(self.settings)),
        )
        consumers: tuple[EventConsumer, ...] = (self.history, metrics, recent, matches, upstream_health)
        for consumer in consumers:
            self.events.add_consumer(consumer)

    def request(self, name: object, key: str = "", cost: float = 2.0, model: str = "m") -> str:
        """Serve a request as the proxy does, and return the key of its answer."""
        principal = self.authenticator.authenticate({"authorization": f"Bearer {key}"} if key else {})
        assert principal is not None
        body = {"model": model, "messages": [{"role": "user", "content": f"question {name}"}]}
        reply = Reply(f'{{"answer": "{name}"}}'.encode(), model=model, cost=cost, seconds=cost)
        answer = self.cache.fetch(CHAT, body, lambda: reply, namespace=principal.namespace)
        called = answer.outcome == "miss"
        self.events.append(
            Event(
                time=time.time(),
                endpoint=CHAT,
                model=model,
                tenant=principal.name,
                outcome=answer.outcome,
                status=200,
                seconds=0.1,
                ttfb=0.1,
                stream=False,
                key=answer.key,
                size=100,
                cost=cost,
                upstream_seconds=cost,
                upstream="fake" if called else "",
                attempts=(503, 200) if called else (),
            )
        )
        return answer.key

    def client(self, *, headers: dict[str, str] | None = None, base: str = BASE) -> TestClient:
        """Return a client of the admin API; it sends the token unless other headers are given."""
        sent = BEARER if headers is None else headers
        return TestClient(admin_app(self.context), base, headers=sent, follow_redirects=False)

    def close(self) -> None:
        """Close history and cache, in the proxy's order."""
        self.history.close()
        self.cache.close()
