"""What happens to a running proxy: failing disks, failing upstreams, clients that disconnect, many tenants.

Each scenario checks every answer, asserts what is promised, and returns what it counted. Tests run it at a small scale,
bench/reliability.py at full scale.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import httpx

from knapcache.testing import FakeUpstream
from knapcache.testing.upstream import FAULTS
from tests.support.caches import store_of
from tests.support.faulty_disk import DISK_FAULTS, SlowDisk, locked_by_another_process
from tests.support.running_proxy import RunningProxy
from tests.support.timing import Deadline, async_wait_until, check_seconds

UPSTREAM_FAULTS = tuple(fault for fault in FAULTS if fault != "no-options")  # that one is an answer


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


@contextmanager
def proxy_on(folder: Path, **settings: Any) -> Iterator[tuple[RunningProxy, FakeUpstream]]:
    """Run a proxy and an upstream in this block; the cache is checked at its end."""
    with FakeUpstream() as upstream:
        if "retries" in settings:
            settings["upstreams"] = [{"name": "fake", "url": upstream.openai_url, "retries": settings.pop("retries")}]
        with RunningProxy(folder, upstream.openai_url, **settings) as proxy:
            yield proxy, upstream
        proxy.proxy.cache.check()


# A failing disk.

STORED = 60
"""Requests whose answers are stored before the fault."""
DELAY = 0.02
"""Seconds that the upstream takes."""
MAX_ADDED = 0.05
"""Seconds that a broken disk may add at the 99th percentile."""


async def post(client: httpx.AsyncClient, name: object, stream: bool = False) -> tuple[str, float]:
    """Return the outcome and the seconds of a request. Its answer must be right, whatever the disk does."""
    start = time.perf_counter()
    answer = await client.post("/chat/completions", json=body(f"question <{name}>", stream=stream))
    seconds = time.perf_counter() - start
    assert answer.status_code == 200, answer.text
    assert f"<{name}>" in answer.text
    assert answer.text.rstrip().endswith("[DONE]" if stream else "}")
    return answer.headers["x-knapcache"], seconds


async def post_many(
    client: httpx.AsyncClient, names: Callable[[int], object], many: int, together: int = 4
) -> list[tuple[str, float]]:
    """Send many requests, `together` at a time, half of them streams."""

    async def some(first: int) -> list[tuple[str, float]]:
        return [await post(client, names(k), stream=k % 4 >= 2) for k in range(first, many, together)]

    return list(chain.from_iterable(await asyncio.gather(*(some(first) for first in range(together)))))


def p99(answers: list[tuple[str, float]]) -> float:
    """Return the 99th percentile of the seconds."""
    times = sorted(seconds for _, seconds in answers)
    return times[int(0.99 * len(times))]


def stored_or_new(k: int) -> object:
    """Return the name of request `k`: two in three are stored, the others were never sent before."""
    return k % STORED if k % 3 else f"new-{k}"


def breaker(proxy: RunningProxy) -> dict[str, Any]:
    found: dict[str, Any] = proxy.proxy.cache.stats()["breaker"]
    return found


async def open_breaker(client: httpx.AsyncClient, proxy: RunningProxy) -> None:
    for name in range(20):
        if breaker(proxy)["state"] != "closed":
            return
        await post(client, name)
    raise AssertionError("the breaker does not open")


async def wait_for_recovery(client: httpx.AsyncClient, proxy: RunningProxy, name: object = STORED - 1) -> None:
    deadline = Deadline(lambda: f"a closed breaker: {breaker(proxy)}")
    while breaker(proxy)["state"] != "closed" or (await post(client, name))[0] != "hit":
        await post(client, name)
        deadline.check()
        await asyncio.sleep(0.05)


async def store_answers(client: httpx.AsyncClient, proxy: RunningProxy) -> None:
    for name in range(STORED):
        await post(client, name)
    await asyncio.to_thread(store_of(proxy.proxy.cache).flush)
    assert (await post(client, 0))[0] == "hit"


async def latency_with_a_broken_disk(
    proxy: RunningProxy,
    upstream: FakeUpstream,
    disk: SlowDisk,
    kind: str,
    many: int,
    max_added: float = MAX_ADDED,
) -> dict[str, float]:
    """Compare the 99th percentile of misses with a healthy disk and of all requests with a broken one."""
    async with httpx.AsyncClient(base_url=proxy.openai_url, timeout=60.0) as client:
        await store_answers(client, proxy)
        upstream.delay = DELAY
        healthy = p99(await post_many(client, lambda k: f"before-{k}", many))
        DISK_FAULTS[kind](disk)
        await open_breaker(client, proxy)
        assert disk.injected > 0
        calls = upstream.count()
        broken = p99(await post_many(client, stored_or_new, many))
        check_seconds(broken - healthy, max_added, "added at the 99th percentile")
        assert upstream.count() > calls, "these answers cannot be hits"
        assert breaker(proxy)["skipped"] > 0
        assert (await client.get(f"{proxy.url}/healthz")).status_code == 200
        token = {"authorization": f"Bearer {proxy.proxy.admin_token}"}
        assert "knapcache_breaker_open 1.0" in (await client.get(f"{proxy.url}/metrics", headers=token)).text
        disk.repair()
        await wait_for_recovery(client, proxy)
    await asyncio.to_thread(store_of(proxy.proxy.cache).flush)
    return {"requests": many, "healthy_p99_ms": 1000 * healthy, "broken_p99_ms": 1000 * broken}


FAILING_DISKS: dict[str, Callable[[SlowDisk], None]] = {
    "full": lambda disk: setattr(disk, "full", True),
    "2 % I/O errors": lambda disk: setattr(disk, "error_rate", 0.02),
    "locked": lambda _: None,
}


async def answers_with_a_failing_disk(
    proxy: RunningProxy, upstream: FakeUpstream, disk: SlowDisk, kind: str, many: int
) -> dict[str, int]:
    """Send stored and new requests while the disk fails; all are answered, and stored again after the repair."""
    file = proxy.proxy.settings.cache_file
    assert file is not None
    async with httpx.AsyncClient(base_url=proxy.openai_url, timeout=60.0) as client:
        await store_answers(client, proxy)
        calls = upstream.count()
        with locked_by_another_process(file) if kind == "locked" else nullcontext():
            FAILING_DISKS[kind](disk)
            answers = await post_many(client, lambda k: k % STORED if k % 2 else f"new-{k}", many, 8)
            await asyncio.to_thread(proxy.proxy.cache.maintain)
        outcomes = Counter(outcome for outcome, _ in answers)
        calls = upstream.count() - calls
        assert len(answers) == many
        assert calls >= many // 2, "these answers cannot be hits"
        errors = disk.injected if kind != "locked" else proxy.proxy.cache.stats().get("store_errors", 0)
        assert errors > 0, "no fault was injected"
        disk.repair()
        await wait_for_recovery(client, proxy, "after the repair")
    await asyncio.to_thread(store_of(proxy.proxy.cache).flush)
    return {"requests": many, "answered": many, "hits": outcomes["hit"], "upstream_calls": calls, "disk_errors": errors}


# Clients that disconnect.


async def concurrent_clients(
    proxy: RunningProxy, upstream: FakeUpstream, clients: int, *, killed: int = 0, text: str = "cold"
) -> dict[str, int]:
    """Send one new request from many clients. Some disconnect before the answer, the leader among them."""
    upstream.delay = 0.5
    calls = upstream.count()
    async with AsyncExitStack() as stack:
        # httpx searches all connections of a client for each request, so a client has few.
        pools = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=proxy.openai_url, timeout=60.0))
            for _ in range(1 + clients // 20)
        ]

        async def post(k: int) -> httpx.Response:
            return await pools[k % len(pools)].post("/chat/completions", json=body(text, stream=k % 2 == 1))

        first = [asyncio.create_task(post(k)) for k in range(killed)]
        app: Any = proxy._server.config.app
        # httpx leaves a socket open if it is cancelled while it connects.
        await async_wait_until(lambda: len(app.connections) >= killed and upstream.count() == calls + bool(killed))
        others = [asyncio.create_task(post(k)) for k in range(clients)]
        await asyncio.sleep(0.1)
        for task in first:
            task.cancel()
        answers = await asyncio.gather(*others)
    assert all(answer.status_code == 200 and text.encode() in answer.content for answer in answers)
    assert upstream.count() == calls + 1, f"{upstream.count() - calls} upstream calls"
    return {"clients": clients + killed, "answered": len(answers), "killed": killed, "upstream_calls": 1}


# A failing upstream.


async def many_faults(
    proxy: RunningProxy,
    upstream: FakeUpstream,
    requests: int,
    share: float,
    progress: Callable[[int], object] = lambda _: None,
) -> dict[str, int]:
    """Send requests while the upstream fails in every way, then all of them again: answers must be complete."""
    upstream.stall = 0.3
    rng = random.Random(1)
    limit = asyncio.Semaphore(16)
    faults: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=proxy.openai_url, timeout=60.0) as client:

        async def post(k: int) -> None:
            async with limit:
                if rng.random() < share:
                    fault = rng.choice(UPSTREAM_FAULTS)
                    faults[fault] += 1
                    upstream.fail(fault)
                try:
                    await client.post("/chat/completions", json=body(f"prompt {k}", stream=k % 2 == 0))
                except httpx.HTTPError as error:
                    raise AssertionError("the proxy itself must not break") from error

        await asyncio.gather(*(post(k % (requests // 2)) for k in range(requests)))
        upstream._faults.clear()
        progress(requests)
        hits = 0
        for k in range(requests // 2):
            for stream in (False, True):
                answer = await client.post("/chat/completions", json=body(f"prompt {k}", stream=stream))
                hits += answer.headers["x-knapcache"] == "hit"
                check_complete(answer, k, stream)
            progress(requests + 2 * k)
    return {"requests": requests, "faults": faults.total(), "checked": requests, "hits": hits, **faults}


def check_complete(answer: httpx.Response, k: int, stream: bool) -> None:
    """Check that an answer is the whole answer to prompt `k`."""
    assert answer.status_code == 200
    assert answer.content.rstrip().endswith(b"[DONE]" if stream else b"}")
    found = answer.text if stream else answer.json()["choices"][0]["message"]["content"]
    assert f"{k}" in found
    assert "overloaded" not in found
    assert "<html>" not in found
    if stream:
        assert '"finish_reason": "stop"' in found or '"finish_reason":"stop"' in found
    else:
        assert found == f"You said: prompt {k}"
        assert answer.json()["choices"][0]["finish_reason"] == "stop"


# Tenants.


def key_of(k: int) -> str:
    return f"kc-tenant-{k}-{'x' * 20}"


def tenant(k: int, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(key_of(k).encode()).hexdigest()
    return {"name": f"tenant-{k}", "keys": [f"sha256:{digest}"], **more}


def tenant_matrix(proxy: RunningProxy, upstream: FakeUpstream, tenants: int, questions: int) -> dict[str, int]:
    """Every tenant sends every request three times: the first is a miss, the others are hits with its own answer."""
    counts: Counter[str] = Counter()
    own: dict[tuple[int, int], str] = {}
    with httpx.Client(base_url=proxy.openai_url) as client:
        for outcome in ("miss", "hit", "hit"):
            for k in range(tenants):
                for q in range(questions):
                    sent = {"authorization": f"Bearer {key_of(k)}"}
                    asked = body(f"question {q}", stream=(k + q) % 2 == 0)
                    answer = client.post("/chat/completions", json=asked, headers=sent)
                    assert answer.headers["x-knapcache"] == outcome, f"tenant {k}, question {q}"
                    assert f"question {q}" in answer.text or f"{q}" in answer.text
                    # The upstream numbers its answers, so an answer tells whose request it was paid for.
                    assert own.setdefault((k, q), answer.text) == answer.text, f"not the answer of tenant {k}"
                    counts[answer.headers["x-knapcache"]] += 1
    assert upstream.count() == tenants * questions
    assert len(set(own.values())) == tenants * questions
    return {"tenants": tenants, "questions": questions, "own_hits": counts["hit"], "first_misses": counts["miss"]}
