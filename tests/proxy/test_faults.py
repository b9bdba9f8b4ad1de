"""Upstream faults and clients that disconnect: no incomplete answer is stored, no request hangs, errors are
reported.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import httpx
import openai
import pytest

from knapcache.proxy.events.events import Event
from knapcache.testing import FakeUpstream
from tests.support.events import EventList
from tests.support.proxy_fixtures import Start
from tests.support.proxy_scenarios import body, concurrent_clients, many_faults
from tests.support.running_proxy import RunningProxy
from tests.support.timing import Deadline, async_wait_until, within


def events(proxy: RunningProxy) -> list[Event]:
    """Return a list that gets all later events."""
    seen = EventList()
    proxy.proxy.events.add_consumer(seen)
    return seen


async def test_concurrent_clients_make_one_call(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    await concurrent_clients(proxy, upstream, 60, killed=3)


@pytest.mark.long
async def test_five_hundred_concurrent_clients_make_one_call(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    await concurrent_clients(proxy, upstream, 500, killed=5)


async def test_faults_store_nothing_incomplete(start: Start, upstream: FakeUpstream) -> None:
    await many_faults(start(upstreams=[upstream_with(upstream, retries=0)]), upstream, 100, 0.2)


@pytest.mark.long
async def test_many_faults_store_nothing_incomplete(start: Start, upstream: FakeUpstream) -> None:
    await many_faults(start(upstreams=[upstream_with(upstream, retries=0)]), upstream, 4000, 0.2)


def upstream_with(upstream: FakeUpstream, **more: Any) -> dict[str, Any]:
    return {"name": "fake", "url": upstream.openai_url, **more}


@pytest.mark.parametrize("fault", ["429", "500"])
def test_a_call_is_retried_before_the_first_byte(start: Start, upstream: FakeUpstream, fault: str) -> None:
    proxy = start()
    upstream.fail(fault)
    assert httpx.post(f"{proxy.openai_url}/chat/completions", json=body("a")).status_code == 200
    assert upstream.count() == 2


@pytest.mark.parametrize(("fault", "status"), [("429", 429), ("500", 500)])
def test_errors_are_forwarded_when_no_retries_are_left(
    start: Start, upstream: FakeUpstream, fault: str, status: int
) -> None:
    proxy = start(upstreams=[upstream_with(upstream, retries=0)])
    upstream.fail(fault)
    answer = httpx.post(f"{proxy.openai_url}/chat/completions", json=body("a"))
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == "try again"
    assert httpx.post(f"{proxy.openai_url}/chat/completions", json=body("a")).status_code == 200


def test_retries_are_limited(start: Start, upstream: FakeUpstream) -> None:
    proxy = start()
    upstream.fail(*["500"] * 60)
    with httpx.Client(base_url=proxy.openai_url) as client:
        for k in range(30):
            client.post("/chat/completions", json=body(str(k)))
    assert 30 < upstream.count() <= 30 + 10 + 3


def test_an_unreachable_upstream(start: Start) -> None:
    proxy = start(upstreams=[{"name": "unreachable", "url": "http://127.0.0.1:9/v1"}])
    for stream in (False, True):
        answer = httpx.post(f"{proxy.openai_url}/chat/completions", json=body("a", stream=stream), timeout=60)
        assert answer.status_code == 502
        assert answer.json()["error"]["type"] == "upstream_failed"
        assert "unreachable" in answer.json()["error"]["message"]
        assert "127.0.0.1" not in answer.text
    assert httpx.get(f"{proxy.openai_url}/models").status_code == 502


@pytest.mark.parametrize("fault", ["reset", "stall", "cut", "error-event"])
def test_a_stream_that_breaks_off_is_an_error_to_the_sdk_or_ends_early(
    start: Start, upstream: FakeUpstream, fault: str
) -> None:
    upstream.stall = 0.2
    proxy = start()
    upstream.fail(fault)
    with openai.OpenAI(base_url=proxy.openai_url, api_key="k", max_retries=0) as sdk:
        text = ""
        with nullcontext() if fault == "cut" else pytest.raises(openai.APIError):  # a clean close looks like the end
            for chunk in sdk.chat.completions.create(**body("one two three four"), stream=True):
                text += chunk.choices[0].delta.content or ""
        assert text != "You said: one two three four"
        again = sdk.chat.completions.create(**body("one two three four"))
    assert again.choices[0].message.content == "You said: one two three four"
    assert upstream.count() == 2


async def test_a_stream_is_stored_after_its_client_disconnects(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    upstream.pace = 0.1
    seen = events(proxy)
    async with httpx.AsyncClient(base_url=proxy.openai_url) as client:
        async with client.stream("POST", "/chat/completions", json=body("one two three", stream=True)) as answer:
            async for _ in answer.aiter_raw():
                break
        await async_wait_until(lambda: len(seen) == 1)
        assert (seen[0].outcome, seen[0].status) == ("miss", 499)
        assert seen[0].cost > 0
        again = await client.post("/chat/completions", json=body("one two three"))
    assert again.headers["x-knapcache"] == "hit"
    assert upstream.disconnects == 0


async def test_an_abandoned_stream_is_aborted_if_finish_abandoned_is_off(start: Start, upstream: FakeUpstream) -> None:
    upstream.pace = 0.1
    proxy = start(finish_abandoned=False)
    seen = events(proxy)
    async with httpx.AsyncClient(base_url=proxy.openai_url) as client:
        words = " ".join(map(str, range(40)))
        async with client.stream("POST", "/chat/completions", json=body(words, stream=True)) as answer:
            async for _ in answer.aiter_raw():
                break
        await async_wait_until(lambda: len(seen) == 1)
        await async_wait_until(lambda: upstream.disconnects == 1)
    assert seen[0].status == 499


async def test_stale_answers_are_served_and_refreshed(start: Start, upstream: FakeUpstream) -> None:
    proxy = start(ttl=1.0, stale_while_revalidate=60.0)
    async with httpx.AsyncClient(base_url=proxy.openai_url) as client:

        async def post() -> httpx.Response:
            return await client.post("/chat/completions", json=body("news"))

        with within(0.9, "a request and its repetition"):
            assert [(await post()).headers["x-knapcache"] for _ in range(2)] == ["miss", "hit"]
        await asyncio.sleep(1.2)
        stale = await post()
        assert stale.headers["x-knapcache"] == "stale"
        await async_wait_until(lambda: upstream.count() >= 2)
        deadline = Deadline("a refreshed answer")
        while (fresh := await post()).json()["id"] == stale.json()["id"]:
            deadline.check()
            await asyncio.sleep(0.02)
        assert fresh.headers["x-knapcache"] in ("hit", "stale")  # stale: a second has passed on a busy machine


async def test_an_expired_answer_is_served_if_the_upstream_fails(start: Start, upstream: FakeUpstream) -> None:
    proxy = start(ttl=0.2, stale_if_error=60.0, upstreams=[upstream_with(upstream, retries=0)])
    async with httpx.AsyncClient(base_url=proxy.openai_url) as client:

        async def post() -> httpx.Response:
            return await client.post("/chat/completions", json=body("news"))

        old = await post()
        assert old.headers["x-knapcache"] == "miss"
        await asyncio.sleep(0.3)
        upstream.fail("500")
        assert (await post()).json()["id"] == old.json()["id"]
        assert upstream.count() == 2
        newest = await post()
        assert newest.headers["x-knapcache"] == "miss"
        assert newest.json()["id"] != old.json()["id"]


def test_invalid_requests_bypass_the_cache_or_are_rejected(start: Start) -> None:
    proxy = start(max_body=20_000)

    def post(content: bytes, **headers: str) -> httpx.Response:
        named = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return httpx.post(f"{proxy.openai_url}/chat/completions", content=content, headers=named)

    for invalid in (b"", b"[]", b"{", b'{"model": "m", "model": "n"}', b'{"model": NaN}', b"\xff"):
        assert post(invalid).headers["x-knapcache"] == "bypass"
    assert post(b" " * 20_001).status_code == 413
    assert post(b"xx", content_encoding="br").status_code == 415
    assert post(b"xx", content_encoding="gzip").status_code == 400
    assert post(b"{}", origin="https://evil.example").status_code == 403
    assert post(b"{}", host="evil.example").status_code == 421
    assert post(b"{}", x_long="x" * 70_000).status_code == 431


def test_stopping_waits_for_streams(start: Start, upstream: FakeUpstream) -> None:
    upstream.pace = 0.1
    proxy = start(grace=10.0)
    with httpx.stream(
        "POST", f"{proxy.openai_url}/chat/completions", json=body("one two three", stream=True)
    ) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        proxy._server.should_exit = True
        rest = b"".join(pieces)
    assert rest.rstrip().endswith(b"[DONE]")
