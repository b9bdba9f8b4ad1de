"""The fast path serves what the slow path serves, and stays within its capacity."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache import Answer, Cache
from knapcache.cache import async_reads
from knapcache.cache.cache import internal_of
from knapcache.exchange.exchange import make_exchange, parse_request
from knapcache.exchange.headers import VARY_HEADERS
from knapcache.model import Endpoint
from knapcache.proxy.events.events import Event
from knapcache.proxy.http.app import App
from knapcache.proxy.http.fast_path import FastPath, charge
from knapcache.testing import FakeUpstream
from tests.support.proxy_fixtures import Start
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
VARIABLE_HEADERS = ("age", "date")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the disk: on a busy machine, a hit that is read from it may miss its deadline and be fetched again."""
    monkeypatch.setattr(async_reads, "DEADLINE", 30.0)


def post(proxy: RunningProxy, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(f"{proxy.openai_url}/chat/completions", json=body, headers=headers)


def fixed_headers(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in VARIABLE_HEADERS}


def fast_path_of(proxy: RunningProxy) -> FastPath:
    app = proxy._server.config.app
    assert isinstance(app, App)
    assert app._handler is not None
    assert app._handler._fast_path is not None
    return app._handler._fast_path


@pytest.mark.parametrize("stored", ["plain", "stream"])
@pytest.mark.parametrize(
    "form", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}], ids=str
)
def test_both_paths_send_the_same_response(proxy: RunningProxy, stored: str, form: dict[str, Any]) -> None:
    post(proxy, {**CHAT, "stream": stored == "stream"})
    slow = post(proxy, {**CHAT, **form})
    assert slow.headers["x-knapcache"] == "hit"
    assert len(fast_path_of(proxy)) == 1
    fast = post(proxy, {**CHAT, **form})
    assert (fast.status_code, fixed_headers(fast), fast.content) == (200, fixed_headers(slow), slow.content)
    assert len(fast_path_of(proxy)) == 1


def test_an_answer_of_the_fast_path_is_recorded_as_a_hit(proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        post(proxy, CHAT)
    events: list[Event] = []
    monkeypatch.setattr(fast_path_of(proxy), "_append_event", events.append)
    # It takes the slow path if the entry was written to disk meanwhile, and thus left the memory.
    wait_until(lambda: post(proxy, CHAT).headers["x-knapcache"] != "hit" or len(events) >= 3)
    event, *others = events
    assert len(others) == 2, "the second answer takes the fast path, too"
    assert (event.outcome, event.status, event.stream, event.model) == ("hit", 200, False, "m")
    assert event.endpoint == Endpoint.CHAT.value
    assert event.size > 0
    assert 0 < event.seconds == event.ttfb
    assert event.upstream_seconds > 0


def test_a_newer_answer_that_lacks_what_is_asked_for_is_fetched_again(start: Start, upstream: FakeUpstream) -> None:
    """A plain answer is stored and known. Then a stream without usage replaces it, which cannot be served plain."""
    proxy = start(upstreams=[{"name": "fake", "url": upstream.openai_url, "retries": 0}])
    for _ in range(2):
        post(proxy, CHAT)
    assert post(proxy, CHAT).headers["x-knapcache"] == "hit"
    upstream.fail(*["no-options"] * 2)
    assert post(proxy, {**CHAT, "stream": True}, **{"cache-control": "no-cache"}).status_code == 200
    assert post(proxy, {**CHAT, "stream": True}).headers["x-knapcache"] == "hit"
    again = post(proxy, CHAT)
    assert again.status_code == 200, again.text
    assert again.json()["choices"][0]["message"]["content"] == "You said: one two three"
    assert again.json()["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("header", ["cache-control", "x-portkey-cache-force-refresh"])
def test_directives_are_obeyed(proxy: RunningProxy, upstream: FakeUpstream, header: str) -> None:
    for _ in range(3):
        post(proxy, CHAT)
    assert upstream.count() == 1
    value = "no-cache" if header == "cache-control" else "true"
    assert post(proxy, CHAT, **{header: value}).headers["x-knapcache"] == "miss"
    assert upstream.count() == 2


@pytest.mark.parametrize("header", [*VARY_HEADERS, "x-portkey-config", "helicone-target-url"])
def test_a_header_that_is_part_of_the_key_is_not_ignored(
    proxy: RunningProxy, upstream: FakeUpstream, header: str
) -> None:
    for _ in range(3):
        post(proxy, CHAT)
    assert (len(fast_path_of(proxy)), upstream.count()) == (1, 1)
    assert post(proxy, CHAT, **{header: "other"}).headers["x-knapcache"] == "miss"
    assert post(proxy, CHAT, **{header: "other"}).headers["x-knapcache"] == "hit"
    assert post(proxy, CHAT, **{header: "third"}).headers["x-knapcache"] == "miss"
    assert upstream.count() == 3


@pytest.mark.parametrize("form", [{}, {"stream": True}], ids=str)
def test_a_query_is_part_of_the_key(proxy: RunningProxy, upstream: FakeUpstream, form: dict[str, Any]) -> None:
    for _ in range(3):
        post(proxy, {**CHAT, **form})
    assert (len(fast_path_of(proxy)), upstream.count()) == (1, 1)
    url = f"{proxy.openai_url}/chat/completions?api-version=2"
    for expected in ("miss", "hit", "hit"):
        assert httpx.post(url, json={**CHAT, **form}).headers["x-knapcache"] == expected
    assert (len(fast_path_of(proxy)), upstream.count()) == (1, 2)


def test_a_directive_in_the_body_is_obeyed_after_the_first_hit(
    proxy: RunningProxy, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {**CHAT, "cache": {"s-maxage": 600}}
    assert [post(proxy, body).headers["x-knapcache"] for _ in range(3)] == ["miss", "hit", "hit"]
    monkeypatch.setattr(proxy.proxy.cache.engine, "_clock", lambda: time.time() + 700)
    assert post(proxy, body).headers["x-knapcache"] == "miss"
    assert upstream.count() == 2
    assert len(fast_path_of(proxy)) == 0


ANSWER = Answer(b"", {"form": "json"}, "hit", "", 0.0, None, "m")


def test_the_memory_taken_is_what_is_charged_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    with Cache("8MB", path=tmp_path / "answers.db", policy="lru", shadows=()) as cache:
        for words in (1, 200):
            capacity = 1 << 20
            fast_path = FastPath(internal_of(cache), lambda _: None, capacity)
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            most = 0
            for k in range(3000):
                raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"{k} " + "word " * words}]})
                at = Endpoint.CHAT
                exchange = make_exchange(at, {}, raw.encode(), parse_request(raw.encode()), "n", {"upstream": "u"})
                fast_path.remember(exchange, None, "m", ANSWER, "n")  # type: ignore[arg-type]
                most = max(most, len(fast_path))
            taken = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert len(fast_path) < 3000
            assert len(fast_path) >= most - 1
            assert capacity / 2 < taken < capacity * 1.2
            assert (raw.encode(), "n", at) in fast_path._known


def test_the_oldest_requests_are_dropped_and_no_longer_charged() -> None:
    with Cache("8MB", policy="lru", shadows=()) as cache:
        bodies = [json.dumps({"model": "m", "messages": [], "n": k}).encode() for k in range(10)]
        fast_path = FastPath(internal_of(cache), lambda _: None, 3 * charge(bodies[0]))
        for k, raw in enumerate(bodies):
            exchange = make_exchange(Endpoint.CHAT, {}, raw, parse_request(raw), "n", {"upstream": "u"})
            fast_path.remember(exchange, None, "m", ANSWER, "n")  # type: ignore[arg-type]
            kept = bodies[max(0, k - 2) : k + 1]
            assert [body for body, _, _ in fast_path._known] == kept
            assert fast_path._charged == sum(map(charge, kept))
