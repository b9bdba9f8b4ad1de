"""Sessions of several proxies on one store."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from knapcache.proxy.admin.auth import SESSION_SECONDS, Session
from knapcache.proxy.admin.shared_sessions import CHECK_SECONDS, KIND, MAX_COOKIE, SharedSessions
from knapcache.proxy.admin.tokens import AdminTokens, token_digest
from knapcache.proxy.settings import Settings
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import parse
from tests.support.clock import Clock
from tests.support.programs import find_module
from tests.support.redis_servers import RedisProcess

find_module("redis", "the extra redis")

SECRET = b"5" * 32
_prefixes = itertools.count()


class Login:
    """The tokens and sessions of one proxy."""

    def __init__(self, store: RedisStore, clock: Clock, token: str = "the token", secret: bytes = SECRET) -> None:
        settings = Settings(memory_only=True, upstreams=[{"url": "http://127.0.0.1:9/v1"}])
        self.tokens = AdminTokens(settings, None, token)
        self.sessions = SharedSessions(self.tokens, store.documents, secret, clock)

    def begin(self) -> Session:
        identity = self.tokens.find("the token")
        assert identity is not None
        return asyncio.run(self.sessions.begin(identity))

    def find(self, session: str) -> Session | None:
        asyncio.run(self.sessions.refresh(session))
        return self.sessions.find(session)

    def end(self, session: Session) -> None:
        asyncio.run(self.sessions.end(session))


def open_store(engine: RedisProcess, prefix: str) -> RedisStore:
    return RedisStore(parse("redis", f"//127.0.0.1:{engine.port}?prefix={prefix}&near=0"), 1 << 20)


@pytest.fixture
def store(engine: RedisProcess) -> Iterator[RedisStore]:
    with open_store(engine, f"sessions{next(_prefixes)}") as store:
        yield store


def test_a_login_at_one_proxy_is_valid_at_others_with_the_same_csrf_token(store: RedisStore) -> None:
    clock = Clock(1000.0)
    first, second, stranger = Login(store, clock), Login(store, clock), Login(store, clock, token="another token")
    session = first.begin()
    assert first.find(session.id) == second.find(session.id) == session
    assert stranger.find(session.id) is None
    assert second.find("unknown") is second.find("x" * (MAX_COOKIE + 1)) is None
    assert Login(store, clock, secret=b"6" * 32).find(session.id) != session


def test_a_logout_is_effective_everywhere_after_a_second(store: RedisStore) -> None:
    clock = Clock(1000.0)
    first, second = Login(store, clock), Login(store, clock)
    session = first.begin()
    assert second.find(session.id) == session
    second.end(session)
    assert second.find(session.id) is None
    assert first.find(session.id) == session  # trusted for a second
    clock.now += CHECK_SECONDS
    assert first.find(session.id) is None
    clock.now += 10 * CHECK_SECONDS
    assert first.find(session.id) is second.find(session.id) is None


def test_a_session_ends_after_its_time_at_every_proxy(store: RedisStore) -> None:
    clock = Clock(1000.0)
    first, second = Login(store, clock), Login(store, clock)
    session = first.begin()
    assert second.find(session.id) == session
    clock.now += SESSION_SECONDS
    assert first.sessions.find(session.id) is second.sessions.find(session.id) is None


def test_without_the_engine_local_sessions_go_on(engine: RedisProcess) -> None:
    clock, prefix = Clock(1000.0), f"sessions{next(_prefixes)}"
    with open_store(engine, prefix) as store:
        first = Login(store, clock)
        known = first.begin()
    clock.now += CHECK_SECONDS
    assert first.find(known.id) == known
    new = first.begin()
    assert first.find(new.id) == new
    first.end(known)
    assert first.find(known.id) is None
    with open_store(engine, prefix) as store:  # the server is back
        first.sessions._documents = store.documents
        second = Login(store, clock)
        assert second.find(known.id) == known  # its document is still there
        assert first.find(known.id) is None
        assert first.find(new.id) == new == second.find(new.id)
        clock.now += CHECK_SECONDS
        assert second.find(known.id) is None


GOOD: dict[str, Any] = {"version": 1, "token": token_digest("the token").hex(), "name": "admin", "expires": 4e9}
CHANGES: list[dict[str, Any]] = [
    {"version": 2},
    {"token": ""},
    {"token": "zz"},
    {"token": 7},
    {"token": token_digest("another").hex()},
    {"name": "grafana"},
    {"name": None},
    {"expires": time.time() - 1.0},
    {"expires": None},
    {"expires": "soon"},
    {"expires": {}},
]
HOSTILE = [b"", b"no json", b"[]", b"null", *(orjson.dumps(GOOD | changes) for changes in CHANGES)]


@pytest.mark.parametrize("document", HOSTILE)
def test_a_document_that_is_not_valid_is_no_session(store: RedisStore, document: bytes) -> None:
    login, cookie = Login(store, Clock(1000.0)), "cookie-of-somebody"
    store.documents.put(KIND, token_digest(cookie).hex(), document, 60.0, limit=10)
    assert login.find(cookie) is None


def test_a_document_is_valid_until_its_end(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: GOOD["expires"] - 0.5)
    clock = Clock(1000.0)
    login, cookie = Login(store, clock), "cookie-of-somebody"
    store.documents.put(KIND, token_digest(cookie).hex(), orjson.dumps(GOOD), 60.0, limit=10)
    assert login.find(cookie) is not None
    clock.now += 0.5
    assert login.sessions.find(cookie) is None


def test_a_valid_document_does_not_outlive_a_session(store: RedisStore) -> None:
    clock = Clock(1000.0)
    login, cookie = Login(store, clock), "cookie-of-somebody"
    store.documents.put(KIND, token_digest(cookie).hex(), orjson.dumps(GOOD), 60.0, limit=10)
    found = login.find(cookie)
    assert found is not None
    assert (found.identity.name, found.identity.role) == ("admin", "operator")
    clock.now += SESSION_SECONDS
    assert login.sessions.find(cookie) is None


def test_a_document_without_a_seal_is_no_session(engine: RedisProcess, store: RedisStore) -> None:
    cookie = "cookie-of-somebody"
    name = f"{{{store.address.prefix}:o}}:d:{KIND}:{token_digest(cookie).hex()}"
    with engine.client() as client:
        client.set(name, bytes(16) + orjson.dumps(GOOD))
    assert Login(store, Clock(1000.0)).find(cookie) is None
