"""The public methods of Cache."""

from __future__ import annotations

import json
import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from knapcache import Answer, Cache, InvalidInput, NotCached, Reply
from knapcache.cache.roles import SWEEP_ENTRIES
from knapcache.errors import CorruptState, StoreError
from knapcache.keys import Key
from knapcache.store.memory import MemoryStore
from knapcache.store.sqlite.store import SqliteStore
from tests.support.caches import (
    CHAT,
    Upstream,
    admission_of,
    is_answer,
    keyed,
    payload_of,
    read_line,
    request_of,
    small_cache,
    spawn,
    store_of,
    wait_ended,
)
from tests.support.clock import Clock

USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
PRICES = {"m": {"input": 1.0, "output": 10.0}}


def test_a_miss_and_a_hit() -> None:
    upstream = Upstream()
    with small_cache() as cache:
        first = cache.fetch(CHAT, request_of(1), upstream(1, meta={"a": [1]}))
        second = cache.fetch(CHAT, b'{"messages":[{"content":"question 1","role":"user"}],"model":"m"}', upstream(1))
        assert (first.outcome, second.outcome, upstream.calls) == ("miss", "hit", 1)
        assert first.payload == second.payload == payload_of(1)
        assert first.key == second.key
        assert (first.age, first.saved_usd) == (0.0, None)
        assert second.meta == {"a": [1]}
        second.meta["a"].append(2)
        assert cache.fetch(CHAT, request_of(1), upstream(1)).meta == {"a": [1]}, "one caller changed another's answer"


def test_a_request_as_text() -> None:
    with small_cache() as cache:
        upstream = Upstream()
        cache.fetch(CHAT, request_of(1), upstream(1))
        assert cache.fetch(CHAT, json.dumps(request_of(1)), upstream(1)).outcome == "hit"
        assert cache.fetch(CHAT, '{"model": "\ud800"}', upstream(1)).outcome == "bypass"


def test_dollars() -> None:
    with Cache("1MiB", policy="lru", shadows=(), prices=PRICES) as cache:
        call = lambda: Reply(b"answer", "m", USAGE, seconds=2.0)  # noqa: E731
        assert cache.fetch(CHAT, request_of(1), call).saved_usd is None
        answer = cache.fetch(CHAT, request_of(1), call)
        assert answer.saved_usd == pytest.approx(0.002)
        stats = cache.stats()
        assert stats.usd_spent == stats.usd_saved == pytest.approx(0.002)
        assert stats.seconds_spent == stats.seconds_saved == 2.0
        assert stats.by_model["m"].hits == 1
        assert stats.bytes_saved == len(b"answer")


def test_tenants_share_nothing() -> None:
    with small_cache(namespace="me") as cache:
        tenants = [f"tenant {k}" for k in range(10)]
        for tenant in tenants:
            cache.fetch(CHAT, request_of(1), Upstream()(tenant), namespace=tenant)
        for tenant in tenants:
            answer = cache.fetch(CHAT, request_of(1), Upstream()("wrong"), namespace=tenant)
            assert (answer.outcome, answer.payload) == ("hit", payload_of(tenant))
        assert cache.fetch(CHAT, request_of(1), Upstream()("me")).outcome == "miss"
        assert cache.stats().by_tenant["me"].misses == 1
        assert cache.fetch(CHAT, request_of(1), Upstream()(1), context={"upstream": "x"}).outcome == "miss"
        assert cache.purge(tenant="tenant 3") == 1
        assert cache.fetch(CHAT, request_of(1), Upstream()("tenant 3"), namespace="tenant 3").outcome == "miss"


def test_a_collision_of_digests_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_cache() as cache:
        keyer = type(cache._keyer.keyer)
        digested = keyer.digested
        monkeypatch.setattr(keyer, "digested", lambda self, request: Key(bytes(32), digested(self, request).canonical))
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        answer = cache.fetch(CHAT, request_of(2), Upstream()(2))
        assert (answer.outcome, answer.payload) == ("miss", payload_of(2))
        assert cache.stats().key_collisions == 1
        cache.check()


def test_a_request_without_a_key_is_sent() -> None:
    upstream = Upstream()
    with small_cache() as cache:
        for _ in range(2):
            answer = cache.fetch(CHAT, b'{"temperature": NaN}', upstream(1))
            assert (answer.outcome, answer.key, answer.payload) == ("bypass", "", payload_of(1))
        assert upstream.calls == 2
        assert cache.stats().bypasses == 2
        lookup = cache._internal.lookup(CHAT, b"[]")
        assert lookup.bypass
        assert "not a JSON object" in lookup.bypass
        assert not cache._internal.settle(lookup, Reply(b"x"))
        assert cache.get(CHAT, b"[]") is None
        assert not cache.put(CHAT, b"[]", Reply(b"x"))
        assert cache.stats().bypasses == 4
        with pytest.raises(NotCached, match="no key"):
            cache.fetch(CHAT, b"[]", upstream(1), only_cached=True)
        cache.check()


async def test_afetch() -> None:
    async def call() -> Reply:
        return Reply(payload_of(1), cost=1.0)

    async def failing() -> Reply:
        raise ConnectionError("no")

    async with small_cache() as cache:
        assert (await cache.afetch(CHAT, b"[]", call)).outcome == "bypass"
        with pytest.raises(ConnectionError):
            await cache.afetch(CHAT, b"[]", failing)
        with pytest.raises(NotCached):
            await cache.afetch(CHAT, request_of(1), call, only_cached=True)
        assert (await cache.afetch(CHAT, request_of(1), call, store=False)).outcome == "miss"
        assert [(await cache.afetch(CHAT, request_of(1), call)).outcome for _ in range(2)] == ["miss", "hit"]
        assert (await cache.afetch(CHAT, request_of(1), call, refresh=True)).outcome == "miss"
        with pytest.raises(ConnectionError):
            await cache.afetch(CHAT, request_of(2), failing)
        assert cache.stats().failed == 2
        cache.check()


def test_embeddings_are_stored_whole_and_their_order_counts() -> None:
    with small_cache() as cache:

        def embed(texts: Any) -> Answer:
            return cache.fetch("embeddings", {"model": "e", "input": texts}, Upstream()(str(texts)))

        assert [embed(texts).outcome for texts in (["a", "b"], ["b", "a"], ["a", "b"], "a", ["a"])] == [
            "miss", "miss", "hit", "miss", "hit",
        ]  # fmt: skip


def test_fetch_options() -> None:
    clock = Clock()
    with small_cache(clock=clock) as cache:
        assert cache.fetch(CHAT, request_of(1), Upstream()(1), store=False).outcome == "miss"
        with pytest.raises(NotCached):
            cache.fetch(CHAT, request_of(1), Upstream()(1), only_cached=True)
        assert cache.stats().misses == 2
        cache.fetch(CHAT, request_of(1), Upstream()(1, version=1))
        clock.now += 10
        assert cache.fetch(CHAT, request_of(1), Upstream()(1), max_age=10).age == 10
        assert cache.fetch(CHAT, request_of(1), Upstream()(1), only_cached=True).outcome == "hit"
        assert cache.fetch(CHAT, request_of(1), Upstream()(1, version=2), max_age=9).payload == payload_of(1, version=2)
        assert cache.fetch(CHAT, request_of(1), Upstream()(1, version=3), refresh=True).payload == payload_of(
            1, 1000, 3
        )
        assert cache.fetch(CHAT, request_of(1), Upstream()(1)).payload == payload_of(1, version=3)
        assert cache.fetch(CHAT, request_of(2), Upstream()(2, cacheable=False)).outcome == "miss"
        assert cache.fetch(CHAT, request_of(2), Upstream()(2)).outcome == "miss"
        cache.check()


def test_time_to_live(tmp_path: Path) -> None:
    for path in (None, tmp_path / "answers.db"):
        clock = Clock()
        with small_cache(clock=clock, ttl=100.0, path=path) as cache:
            cache.fetch(CHAT, request_of(1), Upstream()(1))
            cache.fetch(CHAT, request_of(2), Upstream()(2, ttl=10.0))
            clock.now += 10
            assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
            cache.maintain()
            assert cache.stats().entries == 1
            assert cache.fetch(CHAT, request_of(2), Upstream()(2)).outcome == "miss"
            clock.now += 90
            assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "miss"
            cache.check()


def test_expired_answers_leave_memory_without_maintenance() -> None:
    clock = Clock()
    with small_cache(clock=clock, ttl=5.0, capacity="16MiB") as cache:
        for name in range(200):
            cache.fetch(CHAT, request_of(name), Upstream()(name))
        clock.now += 10
        for name in range(200, 1224):
            cache.fetch(CHAT, request_of(name), Upstream()(name))
        assert cache.stats().entries == 1024
        cache.check()


def test_a_hit_of_an_answer_without_a_usage_saves_no_tokens() -> None:
    with small_cache() as cache:
        cache.fetch(CHAT, request_of(1), lambda: Reply(b"x", "m", cost=1.0))
        assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
        assert cache._engine.get_entry_nowait(keyed(cache, request_of(1)), lambda _: True)
        assert (cache.stats().hits, cache.stats().tokens_saved) == (2, 0)


def test_a_request_removes_only_some_of_many_expired_answers() -> None:
    clock = Clock()
    with small_cache(clock=clock, ttl=5.0, capacity="16MiB") as cache:
        store = store_of(cache)
        for name in range(2000):
            cache.fetch(CHAT, request_of(name), Upstream()(name))
        clock.now += 10
        counts = [2000]
        for name in range(2000, 3100):
            cache.fetch(CHAT, request_of(name), Upstream()(name))
            counts.append(store.totals().entries)
        assert min(after - before for before, after in pairwise(counts)) == 1 - SWEEP_ENTRIES
        assert counts[-1] == 1100, "expired answers are left"
        cache.check()


def test_an_answer_that_is_too_large_is_returned_and_the_older_one_evicted() -> None:
    with small_cache() as cache:
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        answer = cache.fetch(CHAT, request_of(1), Upstream()(1, 2_000_000), refresh=True)
        assert len(answer.payload) > 2_000_000
        assert cache.stats().rejected_too_large == 1
        assert cache.stats().entries == 0
        cache.check()


def test_an_answer_that_no_store_can_hold_is_returned() -> None:
    with small_cache() as cache:
        call = lambda: Reply(b"x", model="\ud800")  # noqa: E731
        assert cache.fetch(CHAT, request_of(1), call).payload == b"x"
        assert cache.stats().rejected_unstorable == 1
        cache.check()


@pytest.mark.parametrize("policy", ["lru", "gdsf-cost", "adaptive"])
def test_ids_are_recycled(policy: str) -> None:
    with small_cache(policy=policy, ids=8, shadows=("lru",)) as cache:
        for name in [*range(40), *range(30, 40)]:
            answer = cache.fetch(CHAT, request_of(name), Upstream()(name))
            assert is_answer(answer.payload, name)
            cache.check()
        stats = cache.stats()
        assert stats.ids == 8
        assert stats.recycled_ids >= 32
        assert stats.entries <= 8


def test_an_id_that_was_recycled_during_the_call() -> None:
    with small_cache(ids=2) as cache:
        assert cache.get(CHAT, request_of(0)) is None
        for name in range(1, 6):
            cache.fetch(CHAT, request_of(name), Upstream()(name))
        assert cache.put(CHAT, request_of(0), Reply(payload_of(0), cost=1.0))
        assert cache.fetch(CHAT, request_of(0), Upstream()(0)).payload == payload_of(0)
        cache.check()


def test_check_finds_wrong_totals() -> None:
    with small_cache() as cache:
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        cache._internal.ledger._total.hits += 1
        with pytest.raises(CorruptState, match="hits"):
            cache.check()
        cache._internal.ledger._total.hits -= 1
        admission_of(cache).policy.forget(0)
        with pytest.raises(CorruptState, match="the policy holds 0 entries"):
            cache.check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": "lots"}, "capacity must be"),
        ({"capacity": "10%"}, "capacity must be"),
        ({"capacity": 0}, "capacity must be"),
        ({"capacity": True}, "capacity must be"),
        ({"policy": "lruu"}, "did you mean lru"),
        ({"policy": "belady"}, "needs to know future requests"),
        ({"shadows": ("static",)}, "needs to know future requests"),
        ({"cost": "euro"}, "a cost is"),
        ({"ttl": 0}, "ttl must be"),
        ({"ttl": "1"}, "ttl must be"),
        ({"wait": -1}, "wait must be"),
        ({"secret": b"short"}, "secret must be 16 to 64 bytes"),
        ({"shadows": None}, "shadows must be a tuple of policies, .* not None"),
        ({"shadows": "lru"}, "shadows must be a tuple of policies, .* not 'lru'"),
        ({"rules": 5}, "rules must be knapcache.keys.Rules, or None, not 5"),
        ({"clock": 5}, "clock must be a function that returns Unix time, not 5"),
        ({"path": b"answers.db"}, "path must be text or a pathlib.Path, not b'answers.db'"),
        ({"path": 5}, "path must be text or a pathlib.Path, not 5"),
        ({"ids": 0}, "ids must be a number of keys, at least 1, or None, not 0"),
        ({"ids": True}, "ids must be a number of keys"),
        ({"synchronous": "off"}, "synchronous must be 'normal' or 'full', not 'off'"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        small_cache(**options)


def test_a_store_instance_is_used_and_closed(tmp_path: Path) -> None:
    for store in (MemoryStore(1 << 20), SqliteStore(tmp_path / "answers.db", 1 << 20)):
        with small_cache(store=store) as cache:
            assert store_of(cache) is store
            cache.fetch(CHAT, request_of(1), Upstream()(1))
            assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
            assert cache.stats().capacity == store.capacity
            cache.check()
        assert store.get(bytes(32)) is None
        with pytest.raises(StoreError):
            store.apply(evict=[bytes(32)]).result()


async def test_leaving_async_with_closes_the_store() -> None:
    store = MemoryStore(1 << 20)
    async with small_cache(store=store) as cache:
        cache.put(CHAT, request_of(1), Upstream()(1)())
    with pytest.raises(StoreError):
        store.apply(evict=[bytes(32)]).result()


def test_a_path_may_be_the_url_of_a_store(tmp_path: Path) -> None:
    with small_cache(path="memory:") as cache:
        assert isinstance(store_of(cache), MemoryStore)
    with small_cache(path=f"sqlite:{tmp_path / 'answers.db'}") as cache:
        cache.fetch(CHAT, request_of(1), Upstream()(1))
    with small_cache(path=tmp_path / "answers.db") as cache:
        assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
    with pytest.raises(InvalidInput, match="unknown store nosuch:"):
        small_cache(path="nosuch://somewhere")


@pytest.mark.parametrize("option", [{"path": "answers.db"}, {"capacity": "1MiB"}])
def test_a_store_instance_has_its_own_path_and_capacity(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"store and {next(iter(option))} cannot be combined"):
        small_cache(store=MemoryStore(1 << 20), **option)


@pytest.mark.parametrize(
    "wrong",
    [{"payload": "text"}, {"payload": b"", "model": None}, {"payload": b"", "seconds": -1.0},
     {"payload": b"", "cost": float("nan")}, {"payload": b"", "meta": {"a": object()}}, {"payload": b"", "meta": 5}],
)  # fmt: skip
def test_bad_replies(wrong: dict[str, Any]) -> None:
    with pytest.raises((InvalidInput, TypeError)):
        Reply(**wrong)


def test_a_tier_is_a_string() -> None:
    with pytest.raises(InvalidInput, match="tier must be a str such as 'flex' or 'batch', or None, not 5"):
        Reply(b"", tier=5)  # type: ignore[arg-type]


def test_a_call_must_return_a_reply() -> None:
    with small_cache() as cache:
        with pytest.raises(InvalidInput, match="must return a Reply, not a str"):
            cache.fetch(CHAT, request_of(1), lambda: "text")  # type: ignore[arg-type, return-value]
        with pytest.raises(InvalidInput, match="endpoint must be one of"):
            cache.fetch("chat", request_of(1), Upstream()(1))


def test_answers_are_billed_at_their_tier() -> None:
    def paid(tier: str | None) -> float:
        with Cache("1MiB", policy="lru", shadows=()) as cache:
            answer = cache.fetch(CHAT, request_of(1), lambda: Reply(b"x", "gpt-4o", USAGE, tier=tier))
            assert answer.bill.source == "genai-prices"
            assert answer.bill.usd is not None
            return answer.bill.usd

    assert paid(None) == paid("default") == pytest.approx((1000 * 2.5 + 100 * 10) / 1e6)
    assert paid("priority") == pytest.approx((1000 * 4.25 + 100 * 17) / 1e6)
    assert paid("batch") == pytest.approx((1000 * 1.25 + 100 * 5) / 1e6)


@pytest.mark.parametrize(("synchronous", "level"), [("normal", 1), ("full", 2)])
def test_synchronous_is_passed_to_the_store(tmp_path: Path, synchronous: str, level: int) -> None:
    with small_cache(path=tmp_path / "answers.db", synchronous=synchronous) as cache:
        store: Any = store_of(cache)
        assert store._writer._connection.pragma("synchronous") == level


def test_another_secret_finds_nothing(path: Path) -> None:
    with small_cache(path=path, secret=b"the first secret") as cache:
        key = cache.fetch(CHAT, request_of(1), Upstream()(1)).key
        with small_cache(path=path, secret=b"another secret!!") as reader:
            answer = reader.fetch(CHAT, request_of(1), Upstream()(1))
            assert answer.outcome == "miss"
            assert answer.key != key
            assert reader.get(CHAT, request_of(1)) is None
    for other in (b"another secret!!", None):
        with pytest.raises(StoreError, match="another secret"):
            small_cache(path=path, secret=other)
    with small_cache(path=path, secret=b"the first secret") as cache:
        assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
        cache.check()


def test_nothing_of_a_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), small_cache() as cache:
        cache.fetch(CHAT, {"model": "m", "messages": "a secret question"}, Upstream()(1))
        cache.close()
        cache.fetch(CHAT, {"model": "m", "messages": "a secret question"}, Upstream()(1))
    assert "secret" not in caplog.text


EVERY_POLICY = """
from knapcache.policy.registry import SPECS
from tests.support.caches import CHAT, Upstream, is_answer, request_of, small_cache
import tempfile, pathlib
for name, spec in SPECS.items():
    if spec.online:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                path = pathlib.Path(folder) / "answers.db"
                with small_cache(policy=name, shadows=(name,), ids=40, path=path) as cache:
                    for k in range(150):
                        number = (k * k) % 97 % 60
                        answer = cache.fetch(CHAT, request_of(number), Upstream()(number, 4000 * (number % 9)))
                        assert is_answer(answer.payload, number)
                    cache.purge(model="none")
                    cache.maintain()
                    cache.check()
                    assert cache.stats().hits > 20, name
print("done", flush=True)
"""


@pytest.mark.long
def test_every_policy_can_run_a_cache() -> None:
    """With too few ids."""
    child = spawn(EVERY_POLICY)
    assert read_line(child) == "done"
    wait_ended(child)


def test_an_answer_says_how_much_room_it_takes(tmp_path: Path) -> None:
    for path in (None, tmp_path / "answers.db"):
        with small_cache(path=path) as cache:
            first, again = (cache.fetch(CHAT, request_of(1), Upstream()(1)) for _ in range(2))
            assert (first.outcome, again.outcome) == ("miss", "hit")
            store_of(cache).flush()
            assert first.size == again.size == cache.stats().bytes > len(first.payload)
            assert cache.fetch(CHAT, request_of(2), Upstream()(2, cacheable=False)).size == 0
            assert cache.fetch(CHAT, b"{", Upstream()(3)).size == 0


def test_every_request_counts_as_arrived_once() -> None:
    """The policy's snapshot is saved when this number has changed."""
    with small_cache() as cache:
        admission = admission_of(cache)
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        assert (admission.arrived, admission.settled) == (1, 1)
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        request = keyed(cache, request_of(1))
        assert cache._internal.get_nowait(request) is not None
        assert (admission.arrived, admission.settled) == (3, 1)
        assert admission.touch({request.key.digest: 4, b"unknown" * 4 + b"key!": 2}) == 4
        assert (admission.arrived, admission.settled) == (7, 1)


def test_a_forked_child_gets_new_locks() -> None:
    with small_cache() as cache:
        admission = admission_of(cache)
        locks = [admission.deciding, admission.expiring, admission.queue.applying]
        for lock in locks:
            lock.acquire()
        admission.after_fork()
        for new, old in zip((admission.deciding, admission.expiring, admission.queue.applying), locks, strict=True):
            assert new is not old
            assert not new.locked()
        cache.check()


def test_a_path_in_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "x.db", f"sqlite://{tmp_path}/no/x.db"):
        with pytest.raises(InvalidInput, match=r"the directory .*/no does not exist: create it"):
            small_cache(path=path)
    assert list(tmp_path.iterdir()) == []


def test_the_default_capacity(tmp_path: Path) -> None:
    for path in (None, tmp_path / "answers.db"):
        with Cache(path=path, policy="lru", shadows=()) as cache:
            assert cache.stats().size_limit == 256_000_000
    guide = Path(__file__).resolve().parents[2] / "docs" / "guides" / "library.md"
    assert 'by default `"256MB"`' in guide.read_text("utf-8")
