"""Several processes on one file: one decides, the others read, hand over, and take its place when it is gone."""

from __future__ import annotations

import gc
import os
import signal
import time
from pathlib import Path

import pytest

from knapcache import Cache, InvalidInput, NotOwner
from tests.support.caches import CHAT, Upstream, ended, payload_of, request_of, right, small, spawn, told

# Does as it is told: "fetch NAME", "tend", "owner", "stats", "end".
CHILD = """
import sys
from tests.support.caches import CHAT, Upstream, request_of, right, small
cache = small(capacity=2 << 20, path=sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "fetch":
        answer = cache.fetch(CHAT, request_of(int(rest)), Upstream()(int(rest)))
        assert right(answer.payload, int(rest))
        print(answer.outcome, flush=True)
    elif word == "tend":
        cache.maintain()
        print("tended", flush=True)
    elif word == "owner":
        print(cache.stats()["owner"], flush=True)
    elif word == "check":
        cache.check()
        print("sound", flush=True)
    else:
        break
cache.close()
"""


def owned(path: Path) -> Cache:
    return small(capacity=2 << 20, path=path)


def test_a_reader_reads_and_hands_over(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    with owned(path) as cache:
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        cache._keeper.store.flush()
        child = spawn(CHILD, path)
        assert told(child) == "ready"
        assert told(child, "owner") == "False"
        assert told(child, "fetch 1") == "hit"
        assert told(child, "fetch 2") == "miss"
        cache.maintain()
        answer = cache.fetch(CHAT, request_of(2), Upstream()(2))
        assert (answer.outcome, right(answer.payload, 2)) == ("hit", True)
        assert cache.stats()["collected"] == 1
        assert told(child, "fetch 2") == "hit"
        assert told(child, "check") == "sound"
        cache.purge()
        assert told(child, "fetch 2") == "miss"
        cache.check()
        assert child.stdin
        child.stdin.write("end\n")
        child.stdin.flush()
        child.wait(30)
        ended(child)


def test_a_reader_in_the_same_process_cannot_purge(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    with owned(path) as cache:
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        cache._keeper.store.flush()
        with owned(path) as reader:
            assert not reader.stats()["owner"]
            assert reader.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
            with pytest.raises(NotOwner):
                reader.purge()


def test_readers_take_over_from_an_owner_that_was_killed(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    first = spawn(CHILD, path)
    assert told(first) == "ready"
    second = spawn(CHILD, path)
    assert told(second) == "ready"
    assert (told(first, "owner"), told(second, "owner")) == ("True", "False")
    for name in range(20):
        assert told(first, f"fetch {name}") == "miss"
    assert told(second, "fetch 30") == "miss"  # handed over, and not collected yet, or collected: both are fine
    first.send_signal(signal.SIGKILL)
    ended(first)
    assert told(second, "fetch 31") == "miss"  # answered, whoever owns the file
    limit = time.monotonic() + 20
    while told(second, "owner") != "True":
        assert time.monotonic() < limit, "nobody takes over"
        assert told(second, "tend") == "tended"
    assert told(second, "tend") == "tended"
    assert sum(told(second, f"fetch {name}") == "hit" for name in range(20)) >= 15  # the youngest may not be promised
    assert told(second, "fetch 31") == "hit"
    assert told(second, "check") == "sound"
    os.kill(second.pid, signal.SIGKILL)
    ended(second)
    with owned(path) as cache:
        cache.check()


def test_an_owner_that_closes_hands_over_its_place(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    owner, reader = owned(path), owned(path)
    owner.fetch(CHAT, request_of(1), Upstream()(1))
    owner.close()
    reader.maintain()
    assert reader.stats()["owner"]
    assert reader.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
    reader.check()
    reader.close()


def test_a_full_outbox_costs_nothing_but_the_answer(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    with owned(path), owned(path) as reader:
        for name in range(40):
            answer = reader.fetch(CHAT, request_of(name), Upstream()(name, 20_000))
            assert right(answer.payload, name)
        assert reader.stats()["not_handed_over"] > 0


def test_what_was_handed_over_is_not_taken_for_younger_than_it_is(ram_path: Path) -> None:
    path, now = ram_path / "answers.db", [1000.0]
    clock = lambda: now[0]  # noqa: E731
    with (
        small(capacity=2 << 20, path=path, clock=clock) as owner,
        small(capacity=2 << 20, path=path, clock=clock) as reader,
    ):
        reader.fetch(CHAT, request_of(1), Upstream()(1, version=1))
        reader.fetch(CHAT, request_of(2), Upstream()(2, ttl=5.0))
        now[0] += 10
        owner.fetch(CHAT, request_of(1), Upstream()(1, version=2), refresh=True)
        owner.maintain()
        assert owner.fetch(CHAT, request_of(1), Upstream()(1)).payload == payload_of(1, version=2)
        assert owner.fetch(CHAT, request_of(2), Upstream()(2)).outcome == "miss"
        owner.check()


def test_a_cache_that_nobody_closed_lets_go(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    cache = owned(path)
    cache.fetch(CHAT, request_of(1), Upstream()(1))
    thread = cache._keeper._thread
    assert thread
    del cache
    gc.collect()
    with owned(path) as cache:
        assert cache.stats()["owner"]
        assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
        thread.join(10)
        assert not thread.is_alive()


FORKS = """
import os, sys, threading
from tests.support.caches import CHAT, Upstream, request_of, right, small
cache = small(capacity=2 << 20, path=sys.argv[1])
cache.fetch(CHAT, request_of(1), Upstream()(1))
cache._keeper.store.flush()
with cache._keeper.books.deciding, cache._ledger._lock, cache._engine.single_flight._lock:  # held by nobody in the child
    child = os.fork()
if child == 0:
    assert not cache.stats()["owner"]
    assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
    assert cache.fetch(CHAT, request_of(2), Upstream()(2)).outcome == "miss"
    cache.check()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
cache.maintain()
assert cache.fetch(CHAT, request_of(2), Upstream()(2)).outcome == "hit"
cache.check()
cache.close()
child = os.fork()
if child == 0:
    assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "miss"
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("done", flush=True)
"""


def test_a_child_of_the_owner_is_a_reader(ram_path: Path) -> None:
    child = spawn(FORKS, ram_path / "answers.db")
    assert told(child) == "done"
    ended(child)


def requests_of_rows(cache: Cache) -> dict[str, float]:
    return {row["key"]: row["requests"] for row in cache.entries(limit=1000)["rows"]}


def test_hits_of_readers_reach_the_owner(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    options = {"capacity": 2 << 20, "path": path, "policy": "gdsf-cost", "shadows": ("lru",)}
    with small(**options) as owner, small(**options) as reader:
        keys = [owner.fetch(CHAT, request_of(name), Upstream()(name)).key for name in range(3)]
        owner._keeper.store.flush()
        for name in (0, 1, 1, 1):
            assert reader.fetch(CHAT, request_of(name), Upstream()(name)).outcome == "hit"
        paid = owner.stats()["shadows"]["none"]
        reader.maintain()
        owner.maintain()
        assert [requests_of_rows(owner)[key] for key in keys] == [2, 4, 1]
        stats = owner.stats()
        assert stats["touched"] == 4
        assert stats["requests"] == 3, "the ledger counts its own"
        assert stats["shadows"]["none"] == paid + 4.0
        reader.maintain()
        owner.maintain()
        assert owner.stats()["touched"] == 4, "told once"
        owner.check()


def test_a_reader_for_whom_somebody_else_tells(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    with owned(path) as owner, small(capacity=2 << 20, path=path, report_hits=False) as reader:
        key = owner.fetch(CHAT, request_of(1), Upstream()(1)).key
        owner._keeper.store.flush()
        assert reader.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
        reader.maintain()
        owner.maintain()
        assert "touched" not in owner.stats()
        assert owner.touch({key: 1}) == 1


def test_a_reader_that_leaves_or_takes_over_has_told(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    options = {"capacity": 2 << 20, "path": path, "policy": "gdsf-cost"}
    owner, reader, heir = small(**options), small(**options), small(**options)
    (key,) = [owner.fetch(CHAT, request_of(1), Upstream()(1)).key]
    owner._keeper.store.flush()
    for cache in (reader, heir, heir):
        assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
    reader.close()
    owner.maintain()
    assert requests_of_rows(owner)[key] == 2
    owner.close()
    heir.maintain()
    assert heir.stats()["owner"]
    assert requests_of_rows(heir)[key] == 4
    heir.check()
    heir.close()


def test_what_readers_tell_is_bounded(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    with owned(path) as owner, owned(path) as reader:
        spool = reader._keeper.store._spool  # type: ignore[attr-defined]
        bound = reader._keeper.store.max_counted_keys
        many = {f"{k:064x}": k + 1 for k in range(2 * bound)}
        assert reader.touch(many) == sum(range(1, bound + 1))
        assert len(reader._keeper._hits) == bound
        reader.maintain()
        assert 0 < spool.size() <= spool.size_limit
        for _ in range(50):
            reader.touch(many)
            reader.maintain()
        assert spool.size() <= spool.size_limit
        assert len(reader._keeper._hits) <= bound
        owner.maintain()
        assert spool.size() == 0
        assert owner.stats()["touched"] == 0, "keys that it does not know"
        owner.check()


def test_counts_that_were_tampered_with_are_not_believed(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    with owned(path) as owner, owned(path) as reader:
        key = owner.fetch(CHAT, request_of(1), Upstream()(1)).key
        reader.touch({key: 5})
        reader.maintain()
        (file,) = Path(f"{path}.spool").glob("*.counts")
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        owner.maintain()
        assert owner.stats().get("touched", 0) == 0


def test_touching_by_hand() -> None:
    with small(policy="gdsf-cost") as cache:
        key = cache.fetch(CHAT, request_of(1), Upstream()(1)).key
        assert cache.touch({key: 3, "00" * 32: 7}) == 3
        assert requests_of_rows(cache) == {key: 4}
        assert cache.stats()["requests"] == 1
        for bad in ({key: -1}, {key: 1.5}, {"no key": 1}):
            with pytest.raises(InvalidInput):
                cache.touch(bad)  # type: ignore[arg-type]
        cache.check()
