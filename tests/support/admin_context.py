"""An admin API with a real cache and real event consumers, without HTTP and without an upstream."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import uvicorn
from starlette.testclient import TestClient

from knapcache import Cache, Reply
from knapcache.cache.cache import internal_of
from knapcache.price.meter import USD_PER_SECOND, Meter
from knapcache.proxy.admin.app import admin_app
from knapcache.proxy.admin.audit import AuditLog
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.admin.tokens import AdminTokens
from knapcache.proxy.admin_routes import Route
from knapcache.proxy.events.events import EventBuffer, EventConsumer
from knapcache.proxy.events.history import History
from knapcache.proxy.events.metrics import Metrics
from knapcache.proxy.events.recent import RecentRequests
from knapcache.proxy.events.upstream_health import UpstreamHealth
from knapcache.proxy.feature_list import feature_specs
from knapcache.proxy.features import Feature, Features, ProxyContext
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.run import listen
from knapcache.proxy.settings import Settings
from knapcache.proxy.upstream.upstreams import Upstreams
from knapcache.threads import DeadlinePool
from tests.support.events import event
from tests.support.timing import wait_until

TOKEN = "the token of these tests"
BEARER = {"authorization": f"Bearer {TOKEN}"}
BASE = "http://127.0.0.1:8080"
TURN_ON = "\n".join(spec.turn_on for spec in feature_specs())
ALL_FEATURES = tomllib.loads(TURN_ON) | {"show_content": True, "cost": "usd"}
ALL_FEATURES["upstreams"] = [
    {"name": "fake", "url": "http://127.0.0.1:9/v1", "headers": {"authorization": "Bearer own"}}
]
"""Settings that turn on every feature."""
CHAT = "chat/completions"


class AdminHarness:
    """An `AdminContext`, and requests that fill it.

    folder     the data directory, or None for memory only
    features   make further features, in place of those that the settings turn on with the same name
    """

    def __init__(
        self,
        folder: Path | None = None,
        request_log: Path | None = None,
        features: Iterable[Callable[[ProxyContext], Feature]] = (),
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
        recent, upstream_health = RecentRequests(), UpstreamHealth(self.settings.upstreams)
        self.features = Features()
        context = ProxyContext(
            settings=self.settings,
            folder=folder,
            secret=b"secret" * 6,
            encryption_keys=(),
            cache=internal,
            shared_store=None,
            upstreams=Upstreams(self.settings),
            meter=Meter(self.settings.cost, {}, USD_PER_SECOND),
            events=self.events,
            body_pool=DeadlinePool("bodies of tests", threads=1),
            features=self.features,
        )
        given = {feature.name: feature for feature in (make(context) for make in features)}
        self.features.active = tuple(
            given.get(spec.name) or spec.load()(context)
            for spec in feature_specs()
            if spec.name in given or spec.is_on(self.settings)
        )
        self.history = History(folder, internal.stats, totals=self.features.totals)
        metrics = Metrics(internal.stats, features=self.features.metrics)
        self.context = AdminContext(
            settings=self.settings,
            tokens=AdminTokens(self.settings, None, TOKEN),
            audit=AuditLog(folder, self.settings.audit_log_bytes),
            started=time.time(),
            cache=internal,
            memory_fallback=False,
            authenticator=self.authenticator,
            flush_events=self.events.flush,
            features=self.features,
            history=self.history,
            metrics=metrics,
            recent=recent,
            upstream_health=upstream_health,
            request_log=request_log,
        )
        consumers: tuple[EventConsumer, ...] = (self.history, metrics, recent, upstream_health)
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
            event(
                answer.outcome,
                time=time.time(),
                model=model,
                tenant=principal.name,
                key=answer.key,
                size=100,
                cost=cost,
                usd=None,
                upstream_seconds=cost,
                upstream="fake" if called else "",
                attempts=(503, 200) if called else (),
            )
        )
        return answer.key

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the admin API."""
        return admin_app(self.context).state.admin.routes  # type: ignore[no-any-return]

    def client(self, *, headers: dict[str, str] | None = None, base: str = BASE) -> TestClient:
        """Return a client of the admin API; it sends the token unless other headers are given."""
        sent = BEARER if headers is None else headers
        return TestClient(admin_app(self.context), base, headers=sent, follow_redirects=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def serve(self, path: str) -> Iterator[str]:
        """Serve the admin API and the page, and yield the address of a path, with the token."""
        socket = listen("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(admin_app(self.context), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
        thread.start()
        wait_until(lambda: server.started, "the server")
        yield f"http://127.0.0.1:{socket.getsockname()[1]}{path}#token={quote(TOKEN)}"
        server.should_exit = server.force_exit = True
        thread.join(10.0)
        socket.close()

    def close(self) -> None:
        """Close features, history and cache, in the proxy's order."""
        with ThreadPoolExecutor(1) as pool:  # the thread of a browser test has a running event loop
            pool.submit(asyncio.run, self.features.close()).result()
        self.history.close()
        self.cache.close()
