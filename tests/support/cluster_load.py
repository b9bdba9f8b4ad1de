"""Several proxies on one store in Valkey or Redis, OpenAI's SDK as their load, and samples of the store's totals.

Every answer is verified. A request that fails, or that gets the answer to another one, is recorded as such.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import openai

from knapcache.cache.options import seal_secret
from knapcache.errors import StoreError
from knapcache.store.redis.store import RedisStore
from knapcache.testing import FakeUpstream
from tests.support.owner_scenarios import open_redis_store
from tests.support.proxy_process import ProxyProcess
from tests.support.stores import entry_of
from tests.support.timing import wait_until

SECRET = "5e" * 32
CAPACITY = 8 << 20
PADDING = " lorem ipsum" * 100
"""Makes an entry of about 4 kB, so that the capacity is used up."""
HOT = 40
"""Prompts that are sent again and again."""
REPEAT_SECONDS = 0.6
"""How long after a new prompt it is sent again, to another proxy."""


def open_proxies_store(url: str, capacity: int = CAPACITY, **options: Any) -> RedisStore:
    """Open the store of proxies with SECRET."""
    return open_redis_store(url, capacity, secret=seal_secret(bytes.fromhex(SECRET)), **options)


def fill_store(url: str, share: float = 0.95) -> None:
    """Fill the store of proxies that are not yet started, so that every new answer evicts others."""
    with open_proxies_store(url) as store:
        assert store.owner
        changes, size, number = [], 0, 0
        while size < share * store.capacity:
            entry = entry_of(store, f"filler {number}", 4000)
            changes.append(store.apply(entry))
            size, number = size + entry.size, number + 1
        for change in changes:
            change.result(60)


def start_proxy(folder: Path, upstream: FakeUpstream, url: str, **settings: Any) -> ProxyProcess:
    """Start `knapcache serve` on a shared store, in a process of its own."""
    defaults: dict[str, Any] = {"capacity": CAPACITY, "secret": SECRET, "store": url}
    return ProxyProcess(folder, upstream.openai_url, **(defaults | settings))


@contextmanager
def proxies_on(
    folder: Path, upstream: FakeUpstream, url: str, count: int = 3, **settings: Any
) -> Iterator[list[ProxyProcess]]:
    """Run so many proxies on one store."""
    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        started = list(pool.map(lambda k: start_proxy(folder / f"proxy{k}", upstream, url, **settings), range(count)))
        for proxy in started:
            stack.callback(proxy.stop)
        yield started


class SdkAnswer(NamedTuple):
    """One request: when it was sent (monotonic), its prompt, the outcome and key that the proxy named, its seconds."""

    at: float
    name: str
    outcome: str
    key: bytes
    seconds: float


class SdkClient:
    """OpenAI's SDK without its retries: a request that fails counts as failed."""

    def __init__(self, url: str) -> None:
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60.0)

    def send(self, name: str, stream: bool = False) -> SdkAnswer:
        """Send the prompt of this name; AssertionError for a wrong answer."""
        at, prompt = time.monotonic(), f"<{name}>{PADDING}"
        create = self._client.chat.completions.with_raw_response.create
        response = create(model="m", messages=[{"role": "user", "content": prompt}], stream=stream)
        if stream:
            chunks: list[Any] = list(response.parse())
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert any(chunk.choices and chunk.choices[0].finish_reason == "stop" for chunk in chunks), "a cut stream"
        else:
            answer: Any = response.parse()
            text = answer.choices[0].message.content or ""
        assert text == f"You said: {prompt}", f"a wrong answer to {name}: {text[:80]}"
        key = bytes.fromhex(response.headers.get("x-knapcache-key", ""))  # a stream that is a miss has none
        return SdkAnswer(at, name, response.headers["x-knapcache"], key, time.monotonic() - at)

    def close(self) -> None:
        self._client.close()


class SdkLoad:
    """Clients in threads, each with connections to all proxies: hot prompts, and new ones that are sent twice."""

    def __init__(self, urls: Sequence[str], clients: int = 6, per_second: float = 15.0, label: str = "") -> None:
        self.answers: list[SdkAnswer] = []
        self.failed: list[str] = []
        self.wrong: list[str] = []
        self._urls, self._pause, self._label = list(urls), 1.0 / per_second, label
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(k,)) for k in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def sent(self) -> int:
        return len(self.answers) + len(self.failed) + len(self.wrong)

    def wait_for(self, requests: int) -> None:
        """Wait until so many more requests are done."""
        sent = self.sent
        wait_until(lambda: self.sent >= sent + requests)

    def _run(self, k: int) -> None:
        rng = random.Random(k)
        clients = [SdkClient(url) for url in self._urls]
        again: list[tuple[float, int, str]] = []  # when, at which proxy, which prompt
        number = 0
        while not self._stop.wait(self._pause):
            number += 1
            proxy = (k + number) % len(clients)
            if again and again[0][0] <= time.monotonic():
                _, proxy, name = again.pop(0)
            elif number % 3 == 0:
                name = f"{self._label}new {k} {number}"
                again.append((time.monotonic() + REPEAT_SECONDS, (proxy + 1) % len(clients), name))
            else:
                name = f"hot {rng.randrange(HOT)}"
            try:
                # The key does not depend on `stream`; a hit is replayed in the form that the client wants.
                self.answers.append(clients[proxy].send(name, stream=number % 4 == 0))
            except AssertionError as error:
                self.wrong.append(str(error))
            except Exception as error:
                self.failed.append(f"{name}: {error!r}")
        for client in clients:
            client.close()

    def degraded_seconds(self, since: float, affected: Callable[[bytes], bool]) -> tuple[float, float]:
        """Return for how long after `since` stored prompts were misses, and new ones were not stored.

        Only keys that are affected count: in a cluster, those of the server that failed.
        """
        keys = {answer.name: answer.key for answer in self.answers if answer.key}
        answers = sorted(answer for answer in self.answers if affected(keys.get(answer.name, b"")))
        stored = {answer.name for answer in answers if answer.at < since - 1.0 and answer.name.startswith("hot")}
        reads = [(a.at - since, a.outcome == "hit") for a in answers if a.at > since and a.name in stored]
        first: dict[str, float] = {}
        writes = []
        for answer in answers:
            if answer.at > since and not answer.name.startswith("hot"):
                if answer.name in first:
                    writes.append((first[answer.name] - since, answer.outcome == "hit"))
                first.setdefault(answer.name, answer.at)
        return last_outage(reads), last_outage(sorted(writes))


def last_outage(events: Sequence[tuple[float, bool]], window: float = 1.0) -> float:
    """Return when the last failure happened that belongs to an outage: half of the next second's events are failures.

    A single request can miss for another reason: a busy machine lets its read take longer than the timeout.
    """
    last = 0.0
    for k, (at, succeeded) in enumerate(events):
        if not succeeded:
            near = [ok for then, ok in events[k:] if then < at + window]
            if 2 * sum(near) <= len(near):
                last = at
    return last


class BooksSampler:
    """Reads the totals of all shards continuously, as another process would, and compares them with the limits.

    One command reads the totals of a shard, so `used` and `limit` of one shard belong together. Sums over shards are
    taken when two rounds in succession found the same: in between, all of it held at once.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store, self.capacity = store, store.capacity
        self.samples = self.consistent_samples = self.failed_samples = 0
        self.most_used = self.most_limits = 0
        self.violations: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._store.close()

    def _run(self) -> None:
        before: list[tuple[int, int]] = []
        while not self._stop.wait(0.005):
            try:
                totals = self._store._member.attachment().reader.shard_totals()
            except StoreError:
                self.failed_samples += 1
                before = []
                continue
            self.samples += 1
            found = [(used, max(0, limit)) for used, _, _, limit in totals]
            for shard, (used, limit) in enumerate(found):
                if used > limit:
                    self.violations.append(f"shard {shard} uses {used} bytes of {limit}")
            if found == before:
                self._add_sums(found)
            before = found

    def _add_sums(self, found: Sequence[tuple[int, int]]) -> None:
        self.consistent_samples += 1
        used, limits = (sum(column) for column in zip(*found, strict=True))
        self.most_used, self.most_limits = max(self.most_used, used), max(self.most_limits, limits)
        if limits > self.capacity:
            self.violations.append(f"the limits sum to {limits} of {self.capacity} bytes")
