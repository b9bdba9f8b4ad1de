"""The short way of a hit gives what the long way gives, within its room."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache import Answer, Cache
from knapcache.exchange.exchange import body_of, opened
from knapcache.model import Endpoint
from knapcache.serve.http.app import App
from knapcache.serve.http.fast_path import FastPath
from knapcache.testing import FakeUpstream
from tests.serve.conftest import Start
from tests.support.running_proxy import RunningProxy

CHAT = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
VARIES = ("age", "date")


def tell(proxy: RunningProxy, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(f"{proxy.openai}/chat/completions", json=body, headers=headers)


def said(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in VARIES}


def calls(proxy: RunningProxy) -> FastPath:
    app = proxy._server.config.app
    assert isinstance(app, App)
    assert app._handler is not None
    return app._handler._shortcut


@pytest.mark.parametrize("kept", ["plain", "stream"])
@pytest.mark.parametrize(
    "asked", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}], ids=str
)
def test_both_ways_say_the_same(proxy: RunningProxy, kept: str, asked: dict[str, Any]) -> None:
    tell(proxy, {**CHAT, "stream": kept == "stream"})
    first = tell(proxy, {**CHAT, **asked})
    assert first.headers["x-knapcache"] == "hit"
    assert len(calls(proxy)) == 1
    again = tell(proxy, {**CHAT, **asked})
    assert (again.status_code, said(again), again.content) == (200, said(first), first.content)
    assert len(calls(proxy)) == 1


def test_an_answer_in_its_place_that_has_not_what_is_asked_for(start: Start, upstream: FakeUpstream) -> None:
    """A plain answer is kept and known; then a stream without usage takes its place, and nothing plain can be made."""
    proxy = start(upstreams=[{"name": "fake", "url": upstream.openai, "retries": 0}])
    for _ in range(2):
        tell(proxy, CHAT)
    assert tell(proxy, CHAT).headers["x-knapcache"] == "hit"
    upstream.fail(*["no-options"] * 2)
    assert tell(proxy, {**CHAT, "stream": True}, **{"cache-control": "no-cache"}).status_code == 200
    assert tell(proxy, {**CHAT, "stream": True}).headers["x-knapcache"] == "hit"
    again = tell(proxy, CHAT)
    assert again.status_code == 200, again.text
    assert again.json()["choices"][0]["message"]["content"] == "You said: one two three"
    assert again.json()["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("header", ["cache-control", "x-portkey-cache-force-refresh"])
def test_who_wants_it_fresh_gets_it_fresh(proxy: RunningProxy, upstream: FakeUpstream, header: str) -> None:
    for _ in range(3):
        tell(proxy, CHAT)
    assert upstream.count() == 1
    value = "no-cache" if header == "cache-control" else "true"
    assert tell(proxy, CHAT, **{header: value}).headers["x-knapcache"] == "miss"
    assert upstream.count() == 2


ANSWER = Answer(b"", {"form": "json"}, "hit", "", 0.0, None, "m")


def test_room(tmp_path: Path) -> None:
    """What is counted is what it takes, and the oldest goes."""
    with Cache("8MB", path=tmp_path / "answers.db", policy="lru", shadows=()) as cache:
        for words in (1, 200):
            shortcut, room = FastPath(cache, 1 << 20), 1 << 20
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            most = 0
            for k in range(3000):
                raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"{k} " + "word " * words}]})
                at = Endpoint.CHAT
                exchange = opened(at, {}, raw.encode(), body_of(raw.encode()), "n", {"upstream": "u"})
                shortcut.remember(exchange, None, "m", ANSWER)  # type: ignore[arg-type]
                most = max(most, len(shortcut))
            taken = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert len(shortcut) < 3000
            assert len(shortcut) >= most - 1
            assert room / 2 < taken < room * 1.2
            assert shortcut.get((raw.encode(), "n", at)) is not None
