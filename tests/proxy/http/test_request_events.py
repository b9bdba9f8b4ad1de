"""The events of requests: one each, and every upstream call in exactly one of them."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from knapcache.proxy.http.handler import Handler
from knapcache.testing import FakeUpstream
from tests.support.events import EventList
from tests.support.proxy_fixtures import Start
from tests.support.running_proxy import RunningProxy
from tests.support.timing import at_once, check_seconds, wait_until, within


def record(proxy: RunningProxy) -> EventList:
    events = EventList()
    proxy.proxy.events.add_consumer(events)
    return events


def chat(proxy: RunningProxy, text: str, **more: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
    return httpx.post(f"{proxy.openai_url}/chat/completions", json=body, timeout=60)


def wait_for(events: EventList, count: int) -> None:
    wait_until(lambda: len(events) >= count, lambda: f"{count} events, not {events}")
    assert len(events) == count, events


@pytest.mark.parametrize("stream", [False, True])
def test_attempts_are_the_statuses_of_upstream_calls(start: Start, upstream: FakeUpstream, stream: bool) -> None:
    proxy = start()
    events = record(proxy)
    upstream.fail("500")
    assert chat(proxy, "retried", stream=stream).status_code == 200
    assert chat(proxy, "retried", stream=stream).headers["x-knapcache"] == "hit"
    upstream.fail("500", "500")
    assert chat(proxy, "failing", stream=stream).status_code == 500
    assert chat(proxy, "bypassed", stream=stream, previous_response_id="x", user=1.5).status_code == 200
    wait_for(events, 4)
    assert [(e.outcome, e.upstream, e.attempts) for e in events][:3] == [
        ("miss", "fake", (500, 200)),
        ("hit", "", ()),
        ("failed", "fake", (500, 500)),
    ]
    assert events[3].attempts == (200,)
    assert sum(len(e.attempts) for e in events) == upstream.count()


def test_coalesced_requests_make_no_calls(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    events = record(proxy)
    upstream.delay = 0.5
    assert {r.status_code for r in at_once(4, lambda _: chat(proxy, "same"), upstream.delay / 2)} == {200}
    wait_for(events, 4)
    assert sorted(e.outcome for e in events) == ["coalesced"] * 3 + ["miss"]
    assert sorted(e.attempts for e in events) == [(), (), (), (200,)]
    assert {e.upstream for e in events} == {"fake"}


def test_the_calls_of_a_batch_are_in_one_of_its_events(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    events = record(proxy)
    for texts in (["a"], ["a", "b", "c"]):
        upstream.fail("500")
        response = httpx.post(f"{proxy.openai_url}/embeddings", json={"model": "m", "input": texts}, timeout=60)
        assert response.status_code == 200
    wait_for(events, 4)
    assert [e.outcome for e in events] == ["miss", "hit", "miss", "miss"]
    assert [e.attempts for e in events] == [(500, 200), (), (500, 200), ()]
    assert upstream.count() == 4


def test_a_stale_answer_has_the_calls_of_its_refresh(start: Start, upstream: FakeUpstream) -> None:
    proxy = start(ttl=0.2, stale_while_revalidate=60)
    events = record(proxy)
    assert chat(proxy, "old").headers["x-knapcache"] == "miss"
    time.sleep(0.3)
    upstream.delay = 1.5
    upstream.fail("500")
    with within(upstream.delay, "a stale answer"):
        assert chat(proxy, "old").headers["x-knapcache"] == "stale"
    wait_for(events, 2)
    assert [(e.outcome, e.upstream, e.attempts) for e in events] == [
        ("miss", "fake", (200,)),
        ("stale", "fake", (500, 200)),
    ]
    check_seconds(events[1].seconds, upstream.delay, "a response that does not wait for the refresh")


@pytest.mark.parametrize(
    ("url", "recorded"),
    [("", ("passthrough", 200, "fake", (200,))), ("http://127.0.0.1:9", ("failed", 502, "fake", (0,)))],
)
def test_passthrough_requests_have_attempts_too(
    start: Start, upstream: FakeUpstream, url: str, recorded: tuple[Any, ...]
) -> None:
    proxy = start(upstreams=[{"name": "fake", "url": url or upstream.openai_url}])
    events = record(proxy)
    assert httpx.get(f"{proxy.openai_url}/models").status_code == recorded[1]
    wait_for(events, 1)
    assert (events[0].outcome, events[0].status, events[0].upstream, events[0].attempts) == recorded


def test_an_error_inside_the_proxy_is_recorded(proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ArithmeticError("secret")

    monkeypatch.setattr(Handler, "serve", fail)
    events = record(proxy)
    response = chat(proxy, "any")
    assert (response.status_code, response.json()["error"]["type"]) == (500, "internal_error")
    assert "secret" not in response.text
    wait_for(events, 1)
    assert (events[0].outcome, events[0].status) == ("failed", 500)
