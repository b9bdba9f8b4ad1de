"""The parts of a proxy that the admin API looks at: all of them real, but for providers, who are never asked here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from knapcache import Cache, Reply
from knapcache.serve.admin.app import admin_app
from knapcache.serve.http.auth import Authenticator
from knapcache.serve.observe.events import Event, EventBuffer
from knapcache.serve.observe.history import History
from knapcache.serve.settings import Settings

TOKEN = "the token of these tests"
BEARER = {"authorization": f"Bearer {TOKEN}"}
BASE = "http://127.0.0.1:8080"
CHAT = "chat/completions"


@dataclass
class Provider:
    """What is known of one."""

    name: str = "fake"
    calls: int = 3
    errors: int = 1
    state: str = "ok"


@dataclass
class Providers:
    """One of them."""

    all: list[Provider]


@dataclass
class Folder:
    """A request log that somebody else writes."""

    path: Path


class Metrics:
    """Something to show."""

    def render(self) -> bytes:
        """One line."""
        return b"knapcache_entries 1\n"


class AdminContext:
    """As `admin_app` takes them."""

    def __init__(self, folder: Path | None = None, log: Path | None = None, **settings: Any) -> None:
        given: dict[str, Any] = {"upstreams": [{"name": "fake", "url": "http://127.0.0.1:9/v1"}], "cost": "seconds"}
        given |= {"policy": "lru", "shadows": ("lru",), "capacity": "20MB", "memory_only": folder is None}
        given |= {"path": folder} if folder is not None else {}
        self.settings = Settings(**(given | settings))
        self.admin_token = TOKEN
        self.started = time.time()
        self.callers = Authenticator(self.settings, b"secret" * 6)
        self.cache = Cache(
            self.settings.capacity,
            path=self.settings.cache_file,
            policy=self.settings.policy,
            cost=self.settings.cost,
            shadows=self.settings.shadows,
        )
        self.store_lost = False
        self.journal = EventBuffer()
        self.history = History(folder, self.cache.stats)
        self.journal.listen(self.history.listen)
        self.metrics = Metrics()
        self.request_log = Folder(log) if log is not None else None
        self.upstreams = Providers([Provider()])

    def ask(self, name: object, key: str = "", cost: float = 2.0, model: str = "m") -> str:
        """A request as the proxy serves it; the key of its answer."""
        caller = self.callers.admit({"authorization": f"Bearer {key}"} if key else {})
        assert caller is not None
        request = {"model": model, "messages": [{"role": "user", "content": f"question {name}"}]}
        reply = Reply(f'{{"answer": "{name}"}}'.encode(), model=model, cost=cost, seconds=0.5)
        answer = self.cache.fetch(CHAT, request, lambda: reply, namespace=caller.namespace)
        line = Event(time.time(), CHAT, model, caller.name, answer.outcome, 200, 0.1, 0.1, False, answer.key, cost=cost)
        self.journal.write(line._replace(size=100, upstream_seconds=0.5))
        return answer.key

    def client(self, *, headers: dict[str, str] | None = None, base: str = BASE) -> TestClient:
        """A client of the admin API, with the token unless told otherwise."""
        sent = BEARER if headers is None else headers
        return TestClient(admin_app(self), base, headers=sent, follow_redirects=False)

    def close(self) -> None:
        """In the order of the proxy."""
        self.history.close()
        self.cache.close()
