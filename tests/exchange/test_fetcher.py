"""A response is written before it is stored, its waiters are always released, and streams end after they are stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from knapcache import Answer, Cache
from knapcache.cache import PendingFetch
from knapcache.cache.cache import internal_of
from knapcache.cache.internal import InternalCache
from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import exchange_of
from knapcache.exchange.fetched import Fetched, LiveStream
from knapcache.exchange.fetcher import Fetcher
from knapcache.keys.parse import SHORT
from knapcache.model import Endpoint
from knapcache.threads import run_blocking
from tests.exchange.conftest import (
    JSON,
    SSE,
    Provider,
    ScriptedResponse,
    answer_of,
    blocks_of,
    exchange,
    failure,
    plain,
)
from tests.support.caches import store_of


@pytest.fixture
def cache() -> Iterator[InternalCache]:
    with Cache("4MB", policy="lru", shadows=()) as opened:
        cache = internal_of(opened)
        yield cache
        assert len(cache.engine.single_flight) == 0, "a flight was not ended"
        cache.check()


async def fetch(fetcher: Fetcher, provider: Provider, **body: Any) -> Fetched:
    fetched = await fetcher.fetch(exchange(**body), "provider", provider.send)
    assert fetched is not None
    return fetched


def outcome(fetched: Fetched) -> str:
    return dict(fetched.headers)["x-knapcache"]


def live(fetched: Fetched) -> AsyncIterator[bytes]:
    assert isinstance(fetched, LiveStream)
    return fetched.blocks


async def waiter(fetcher: Fetcher, provider: Provider, **body: Any) -> asyncio.Task[Fetched]:
    """Start a fetch of the same request, which joins the one in flight."""
    task = asyncio.create_task(fetch(fetcher, provider, **body))
    await asyncio.sleep(0.01)
    assert not task.done()
    return task


async def test_a_plain_answer_is_returned_before_it_is_stored(cache: InternalCache) -> None:
    fetcher, provider = Fetcher(cache), Provider(plain())
    first = await fetch(fetcher, provider)
    second = await waiter(fetcher, provider)
    assert (first.status, first.failed, first.body, outcome(first)) == (200, False, answer_of("Hi"), "miss")
    assert cache.stats()["admitted"] == 0
    (answer,) = await first.finish()
    assert (answer.outcome, answer.key) == ("miss", dict(first.headers)["x-knapcache-key"])
    assert await first.finish() == (answer,)
    assert cache.stats()["admitted"] == 1
    assert outcome(await second) == "coalesced"
    assert outcome(await fetch(fetcher, provider)) == "hit"
    assert len(provider.requests) == 1


async def test_headers_of_one_client_are_not_stored(cache: InternalCache) -> None:
    fetcher, provider = Fetcher(cache), Provider(plain())
    first = await fetch(fetcher, provider)
    await first.finish()
    again = await fetch(fetcher, provider)
    for fetched in (first, again):
        headers = dict(fetched.headers)
        assert headers["x-request-id"] == "r1"
        assert "set-cookie" not in headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("upstream", "found"), [("local", "simulated"), ("https://a.test", None)])
async def test_dollars_of_the_embedded_model_are_marked(
    cache: InternalCache, upstream: str, found: str | None, stream: bool
) -> None:
    fetcher, provider = Fetcher(cache), Provider(ScriptedResponse(200, SSE, *blocks_of()) if stream else plain())
    asked = exchange(stream=stream)._replace(context={"upstream": upstream})
    headers: dict[str, str] = {}
    for _ in range(2):
        fetched = await fetcher.fetch(asked, "provider", provider.send)
        assert fetched is not None
        _ = [block async for block in live(fetched)] if isinstance(fetched, LiveStream) else None
        (answer,) = await fetched.finish()
        headers = dict(fetched.headers)
        assert answer.meta.get("embedded", False) is (found is not None)
    assert (headers["x-knapcache"], headers.get("x-knapcache-prices")) == ("hit", found)
    assert "x-knapcache-saved-usd" in headers


async def test_a_list_is_one_item_where_items_have_no_entries(cache: InternalCache) -> None:
    url = httpx.URL("https://api.example/v1/responses")
    raw = b'{"model": "m", "input": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}'
    asked, provider = exchange_of(Endpoint.RESPONSES, url, {}, raw), Provider(ScriptedResponse(500, JSON, b"{}"))
    fetched = await Fetcher(cache).fetch(asked, "provider", provider.send)
    assert fetched is not None
    await fetched.finish()
    assert (fetched.status, provider.requests) == (500, [json.loads(raw)])


async def test_a_stream_ends_after_it_is_stored(cache: InternalCache) -> None:
    fetcher, provider = Fetcher(cache), Provider(ScriptedResponse(200, SSE, *blocks_of()))
    first = await fetch(fetcher, provider, stream=True)
    second = await waiter(fetcher, provider, stream=True)
    written = []
    async for block in live(first):
        written.append(block)
        assert cache.stats()["admitted"] == (1 if b"[DONE]" in block else 0)
    assert b"".join(written) == b"".join(blocks_of(usage=False))
    (answer,) = await first.finish()
    assert (answer.outcome, first.failed) == ("miss", False)
    assert outcome(await second) == "coalesced"


LONG = "one two three four five six seven eight nine ten eleven twelve " * 12
ASKED = {"stream": True, "stream_options": {"include_usage": True}}


async def stored_stream(fetcher: Fetcher, provider: Provider) -> Answer:
    """Fetch a stream, and return its answer."""
    first = await fetch(fetcher, provider, **ASKED)
    assert [block async for block in live(first)] == blocks_of(LONG)
    (answer,) = await first.finish()
    return answer


@pytest.mark.parametrize("form", [{}, {"stream": True}, ASKED], ids=str)
async def test_a_stored_stream_is_compact_and_replayed_byte_for_byte(
    cache: InternalCache, form: dict[str, Any]
) -> None:
    sent = blocks_of(LONG)
    fetcher, provider = Fetcher(cache), Provider(ScriptedResponse(200, SSE, *sent))
    answer = await stored_stream(fetcher, provider)
    assert answer.meta["form"] == "compact"
    assert answer.size == cache.stats()["bytes"] < len(b"".join(sent)) / 2
    hit = await fetch(fetcher, provider, **form)
    assert outcome(hit) == "hit"
    if form:
        assert list(hit.body) == blocks_of(LONG, usage=form is ASKED)
    else:
        assert isinstance(hit.body, bytes)
        assert json.loads(hit.body) == json.loads(answer_of(LONG))
    assert len(provider.requests) == 1


async def test_a_compact_stream_that_is_long_when_expanded_is_expanded_elsewhere(cache: InternalCache) -> None:
    offloaded: list[Any] = []

    async def offload(work: Callable[[], Any]) -> Any:
        offloaded.append(work)
        return work()

    sent = blocks_of(LONG * 20)
    fetcher = Fetcher(cache, offload=offload)
    first = await fetch(fetcher, Provider(ScriptedResponse(200, SSE, *sent)), **ASKED)
    await first.finish()
    stored, calls = len(first.answers[0].payload), len(offloaded)
    assert stored < SHORT < len(b"".join(sent))
    hit = await fetch(fetcher, Provider(failure()), **ASKED)
    assert list(hit.body) == sent
    assert len(offloaded) == calls + 1


async def test_a_damaged_stream_is_fetched_again(cache: InternalCache) -> None:
    fetcher, provider = Fetcher(cache), Provider(ScriptedResponse(200, SSE, *blocks_of(LONG)))
    answer = await stored_stream(fetcher, provider)
    store = store_of(cache)
    entry = store.get(bytes.fromhex(answer.key))
    assert entry is not None
    store.apply(entry._replace(payload=entry.payload[:60] + b"\0" + entry.payload[61:])).result()
    assert await stored_stream(fetcher, provider)
    assert len(provider.requests) == 2
    assert outcome(await fetch(fetcher, provider, **ASKED)) == "hit"


async def test_a_block_is_forwarded_when_it_arrives(cache: InternalCache, gate: asyncio.Event) -> None:
    first, *rest = blocks_of()
    provider = Provider(ScriptedResponse(200, SSE, first, gate, *rest))
    fetched = await fetch(Fetcher(cache), provider, stream=True)
    assert await anext(live(fetched))
    gate.set()
    await fetched.finish()


@pytest.mark.parametrize("finish_abandoned", [True, False])
@pytest.mark.parametrize("read", [0, 1])
async def test_an_abandoned_stream_is_stored_or_aborted(
    cache: InternalCache, finish_abandoned: bool, read: int
) -> None:
    response = ScriptedResponse(200, SSE, *blocks_of())
    fetcher, provider = Fetcher(cache, finish_abandoned=finish_abandoned), Provider(response, plain())
    first = await fetch(fetcher, provider, stream=True)
    second = await waiter(fetcher, provider)
    for _ in range(read):
        await anext(live(first))
    answers = await first.finish()
    assert response.closed
    assert [answer.outcome for answer in answers] == (["miss"] if finish_abandoned else [])
    assert first.failed is not finish_abandoned
    served = await second
    await served.finish()
    assert outcome(served) == ("coalesced" if finish_abandoned else "miss")
    assert len(provider.requests) == (1 if finish_abandoned else 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_aborting_releases_the_waiters(cache: InternalCache, stream: bool) -> None:
    response = ScriptedResponse(200, SSE, *blocks_of()) if stream else plain()
    fetcher, provider = Fetcher(cache), Provider(response, plain())
    first = await fetch(fetcher, provider, stream=stream)
    second = await waiter(fetcher, provider, stream=stream)
    await first.abort()
    assert response.closed
    served = await second
    await served.finish()
    assert outcome(served) == ("miss" if stream else "coalesced")  # a plain answer was paid for


@pytest.mark.parametrize("read", [True, False])
async def test_a_cancelled_leader_releases_the_waiters(cache: InternalCache, gate: asyncio.Event, read: bool) -> None:
    response = ScriptedResponse(200, SSE if read else JSON, *(blocks_of()[:1] if read else []), gate)
    fetcher, provider = Fetcher(cache), Provider(response, plain())

    async def lead() -> None:
        fetched = await fetch(fetcher, provider, stream=True)
        async for _ in live(fetched):
            pass

    leader = asyncio.create_task(lead())
    await asyncio.sleep(0.01)
    second = await waiter(fetcher, provider)
    leader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leader
    served = await second
    await served.finish()
    assert (outcome(served), response.closed) == ("miss", True)


async def test_a_provider_that_fails_is_tried_again_for_a_waiter(cache: InternalCache, gate: asyncio.Event) -> None:
    broken = ScriptedResponse(200, JSON, gate, failure())
    fetcher, provider = Fetcher(cache), Provider(broken, plain())
    first = asyncio.create_task(fetch(fetcher, provider))
    await asyncio.sleep(0.01)
    second = await waiter(fetcher, provider)
    gate.set()
    with pytest.raises(UpstreamFailed):
        await first
    served = await second
    await served.finish()
    assert (outcome(served), broken.closed, cache.stats()["failed"]) == ("miss", True, 1)


async def test_a_stream_that_breaks_off_raises_and_is_not_stored(cache: InternalCache) -> None:
    provider = Provider(ScriptedResponse(200, SSE, blocks_of()[0], failure()))
    fetched = await fetch(Fetcher(cache), provider, stream=True)
    assert await anext(live(fetched))
    with pytest.raises(UpstreamFailed):
        await anext(live(fetched))
    await fetched.abort()
    assert (await fetched.finish(), fetched.failed) == ((), True)
    assert cache.stats()["admitted"] == 0


async def test_a_truncated_stream_is_forwarded_and_not_stored(cache: InternalCache) -> None:
    fetcher, provider = Fetcher(cache), Provider(ScriptedResponse(200, SSE, *blocks_of()[:-1]))
    fetched = await fetch(fetcher, provider, stream=True)
    second = await waiter(fetcher, provider, stream=True)
    blocks = [block async for block in live(fetched)]
    assert len(await fetched.finish()) == 1
    assert fetched.failed
    assert (await second).body == b"".join(blocks)
    assert cache.stats()["admitted"] == 0


@pytest.mark.parametrize("read", [True, False])
async def test_a_stream_that_is_too_long_is_forwarded_and_not_stored(cache: InternalCache, read: bool) -> None:
    response = ScriptedResponse(200, SSE, *blocks_of(LONG))
    fetcher, provider = Fetcher(cache, max_answer=2000), Provider(response, plain())
    fetched = await fetch(fetcher, provider, **ASKED)
    assert isinstance(fetched, LiveStream)
    second = await waiter(fetcher, provider)
    assert not fetched.overflowed
    if read:
        assert b"".join([block async for block in fetched.blocks]) == b"".join(blocks_of(LONG))
    assert await fetched.finish() == ()
    assert (fetched.overflowed, fetched.failed, response.closed) == (True, True, True)
    assert (response.taken == len(blocks_of(LONG))) is read, "the rest is read for its caller only"
    served = await second
    await served.finish()
    assert outcome(served) == "miss"
    assert cache.stats()["admitted"] == 1


async def test_a_caller_has_the_whole_stream_before_it_waits_for_the_store(
    cache: InternalCache, gate: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PendingFetch, "store_busy", True)
    monkeypatch.setattr(PendingFetch, "wait_for_store", lambda _: gate.wait())
    fetched = await fetch(Fetcher(cache), Provider(ScriptedResponse(200, SSE, *blocks_of())), **ASKED)
    written = []
    while (block := await anext(live(fetched))) != blocks_of()[-1]:
        written.append(block)
    assert [*written, block] == blocks_of()
    asyncio.get_running_loop().call_soon(gate.set)
    with pytest.raises(StopAsyncIteration):
        await anext(live(fetched))
    assert [answer.outcome for answer in await fetched.finish()] == ["miss"]


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_errors_go_to_all_waiters_and_are_not_stored(cache: InternalCache, status: int) -> None:
    fetcher, provider = Fetcher(cache), Provider(ScriptedResponse(status, JSON, b'{"error": {"message": "no"}}'))
    first = await fetch(fetcher, provider)
    second = await waiter(fetcher, provider)
    await first.finish()
    for fetched in (first, await second):
        assert (fetched.status, fetched.failed, fetched.body) == (status, True, b'{"error": {"message": "no"}}')
    assert cache.stats()["admitted"] == 0


class NoMarks:
    """A marker that adds nothing to a body. It records the statuses that are reported to it."""

    upstream, fallback, refusable = "provider", None, True

    def __init__(self) -> None:
        self.statuses: list[tuple[int, bool]] = []

    async def mark(self) -> dict[str, Any] | None:
        return None

    def answered(self, status: int, *, marked: bool) -> None:
        self.statuses.append((status, marked))


@pytest.mark.parametrize("marker", [None, NoMarks()])
@pytest.mark.parametrize("body", [{}, {"stream": True, "stream_options": {"include_usage": True}}])
async def test_a_refused_request_to_which_nothing_was_added_is_not_sent_again(
    cache: InternalCache, body: dict[str, Any], marker: NoMarks | None
) -> None:
    provider = Provider(ScriptedResponse(400, JSON, b'{"error": {"message": "no"}}'))
    fetched = await Fetcher(cache).fetch(exchange(**body)._replace(marker=marker), "provider", provider.send)
    assert fetched is not None
    await fetched.finish()
    assert fetched.status == 400
    assert len(provider.requests) == 1
    assert marker is None or marker.statuses == []


class Marks(NoMarks):
    """A marker that adds a field."""

    async def mark(self) -> dict[str, Any]:
        return {**exchange().body, "mark": True}


async def test_a_marker_gets_the_status_of_the_body_that_was_answered(cache: InternalCache) -> None:
    """Refused marks are left out, and the status of the second request says whether they were the reason."""
    fetcher, refused = Fetcher(cache), ScriptedResponse(400, JSON, b'{"error": {"message": "no"}}')
    provider, marker = Provider(refused, plain(), plain()), Marks()
    for n in (1, 2):
        fetched = await fetcher.fetch(exchange(n=n)._replace(marker=marker), "provider", provider.send)
        assert fetched is not None
        await fetched.finish()
        assert fetched.status == 200
    assert ["mark" in request for request in provider.requests] == [True, False, True]
    assert marker.statuses == [(200, False), (200, True)]
    assert refused.closed


async def test_a_provider_without_stream_options_is_asked_once(cache: InternalCache) -> None:
    refused = ScriptedResponse(400, JSON, b'{"error": {"message": "unknown field"}}')
    streams = [ScriptedResponse(200, SSE, *blocks_of(usage=False)) for _ in range(2)]
    fetcher, provider = Fetcher(cache), Provider(refused, streams[0], streams[1])
    for n in (1, 2):
        await (await fetch(fetcher, provider, stream=True, n=n)).drain()
    assert ["stream_options" in request for request in provider.requests] == [True, False, False]


@pytest.mark.parametrize("status", [400, 422])
async def test_a_request_that_is_wrong_in_itself_does_not_stop_asking_for_usage(
    cache: InternalCache, status: int
) -> None:
    wrong = [ScriptedResponse(status, JSON, b'{"error": {"message": "unknown model"}}') for _ in range(2)]
    fetcher, provider = Fetcher(cache), Provider(*wrong, ScriptedResponse(200, SSE, *blocks_of()))
    refused = await fetch(fetcher, provider, stream=True, n=1)
    await refused.finish()
    assert (refused.status, refused.failed) == (status, True)
    assert wrong[0].closed
    (answer,) = await (await fetch(fetcher, provider, stream=True, n=2)).drain()
    assert ["stream_options" in request for request in provider.requests] == [True, False, True]
    assert answer.bill.usd


async def test_a_stored_answer_that_lacks_usage_is_fetched_again_once(cache: InternalCache) -> None:
    stream = ScriptedResponse(200, SSE, *blocks_of(usage=False))
    fetcher, provider = Fetcher(cache, ask_usage=False), Provider(stream, plain())
    await (await fetch(fetcher, provider, stream=True)).drain()
    assert outcome(await fetch(fetcher, provider, stream=True)) == "hit"
    again = await fetch(fetcher, provider)
    await again.finish()
    assert outcome(again) == "miss"
    assert isinstance(again.body, bytes)
    assert json.loads(again.body)["usage"]["total_tokens"] == 6
    assert len(provider.requests) == 2


async def test_an_answer_that_lacks_usage_again_is_left_to_the_caller(
    cache: InternalCache, gate: asyncio.Event
) -> None:
    """The stored answer lacks it, and so does the one that another request is fetching."""
    streams = [ScriptedResponse(200, SSE, *first, *blocks_of(usage=False)) for first in ([], [gate])]
    fetcher, provider = Fetcher(cache, ask_usage=False), Provider(*streams)
    await (await fetch(fetcher, provider, stream=True)).drain()
    refresh = exchange({"cache-control": "no-cache"}, stream=True)
    other = await fetcher.fetch(refresh, "provider", provider.send)
    assert other is not None
    task = asyncio.create_task(fetcher.fetch(exchange(), "provider", provider.send))
    await asyncio.sleep(0.01)
    gate.set()
    await other.drain()
    assert await task is None
    assert len(provider.requests) == 2


async def test_a_request_for_stored_answers_only_is_not_sent(cache: InternalCache) -> None:
    fetcher, provider = Fetcher(cache), Provider(plain())
    only = exchange({"cache-control": "only-if-cached"})
    fetched = await fetcher.fetch(only, "provider", provider.send)
    assert fetched is not None
    assert (fetched.status, provider.requests) == (504, [])
    await (await fetch(fetcher, provider)).finish()
    fetched = await fetcher.fetch(only, "provider", provider.send)
    assert fetched is not None
    assert fetched.status == 200


async def test_requests_without_a_key_are_left_to_the_caller(cache: InternalCache) -> None:
    fetcher, provider = Fetcher(cache), Provider(plain())
    for headers, status in (({}, None), ({"cache-control": "only-if-cached"}, 504)):
        fetched = await fetcher.fetch(exchange(headers, messages=[1e400]), "provider", provider.send)
        assert (fetched and fetched.status) == status
    assert provider.requests == []
    assert cache.stats()["bypasses"] == 2


def test_blocking_callers_run_the_same_coroutine(cache: InternalCache) -> None:
    fetcher = Fetcher(cache, blocking=True)
    provider = Provider(ScriptedResponse(200, SSE, *blocks_of()))

    async def run() -> tuple[bytes, str]:
        fetched = await fetch(fetcher, provider, stream=True)
        if isinstance(fetched, LiveStream):
            text = b"".join([block async for block in fetched.blocks])
        else:
            assert not isinstance(fetched.body, bytes)
            text = b"".join(fetched.body)
        (answer,) = await fetched.finish()
        return text, answer.outcome

    assert run_blocking(run()) == (b"".join(blocks_of(usage=False)), "miss")
    assert run_blocking(run()) == (b"".join(blocks_of(usage=False)), "hit")


def test_a_coroutine_that_suspends_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="suspended"):
        run_blocking(asyncio.sleep(0))
