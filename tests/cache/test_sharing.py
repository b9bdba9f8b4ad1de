"""Several processes on one file: one owner; readers read, hand over, and become the owner when it ends."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest

from knapcache import Cache, InvalidInput, NotOwner
from knapcache.cache.roles import Reader
from tests.support.caches import (
    CHAT,
    Upstream,
    is_answer,
    payload_of,
    read_line,
    request_of,
    send,
    small_cache,
    spawn,
    store_of,
    wait_ended,
)
from tests.support.timing import Deadline, wait_until

# Commands: "fetch NAME", "maintain", "owner", "check", "end".
CHILD = """
import sys
from tests.support.caches import CHAT, Upstream, is_answer, request_of, small_cache, store_of
cache = small_cache(capacity=2 << 20, path=sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "fetch":
        answer = cache.fetch(CHAT, request_of(int(rest)), Upstream()(int(rest)))
        assert is_answer(answer.payload, int(rest))
        print(answer.outcome, flush=True)
    elif word == "maintain":
        cache.maintain()
        print("maintained", flush=True)
    elif word == "flush":
        store_of(cache).flush()
        print("flushed", flush=True)
    elif word == "owner":
        print(cache.stats().owner, flush=True)
    elif word == "check":
        cache.check()
        print("checked", flush=True)
    else:
        break
cache.close()
"""


def open_cache(path: Path) -> Cache:
    return small_cache(capacity=2 << 20, path=path)


def test_a_reader_reads_and_hands_over(path: Path) -> None:
    with open_cache(path) as cache:
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        store_of(cache).flush()
        child = spawn(CHILD, path)
        assert read_line(child) == "ready"
        assert send(child, "owner") == "False"
        assert send(child, "fetch 1") == "hit"
        assert send(child, "fetch 2") == "miss"
        cache.maintain()
        answer = cache.fetch(CHAT, request_of(2), Upstream()(2))
        assert (answer.outcome, is_answer(answer.payload, 2)) == ("hit", True)
        assert cache.stats().collected == 1
        assert send(child, "fetch 2") == "hit"
        assert send(child, "check") == "checked"
        cache.purge()
        assert send(child, "fetch 2") == "miss"
        cache.check()
        assert child.stdin
        child.stdin.write("end\n")
        child.stdin.flush()
        child.wait(30)
        wait_ended(child)


def test_a_reader_in_the_same_process_cannot_purge(path: Path) -> None:
    with open_cache(path) as cache:
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        store_of(cache).flush()
        with open_cache(path) as reader:
            assert not reader.stats().owner
            assert reader.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
            with pytest.raises(NotOwner):
                reader.purge()


def test_a_reader_becomes_the_owner_when_the_owner_is_killed(path: Path) -> None:
    first = spawn(CHILD, path)
    assert read_line(first) == "ready"
    second = spawn(CHILD, path)
    assert read_line(second) == "ready"
    assert (send(first, "owner"), send(second, "owner")) == ("True", "False")
    for name in range(20):
        assert send(first, f"fetch {name}") == "miss"
    assert send(first, "flush") == "flushed"
    assert send(second, "fetch 30") == "miss"  # handed over; whether it is collected yet does not matter
    first.send_signal(signal.SIGKILL)
    wait_ended(first)
    assert send(second, "fetch 31") == "miss"  # answered without an owner
    deadline = Deadline("a process becomes the owner")
    while send(second, "owner") != "True":
        deadline.check()
        assert send(second, "maintain") == "maintained"
    assert send(second, "maintain") == "maintained"
    assert [send(second, f"fetch {name}") for name in range(20)] == ["hit"] * 20
    assert send(second, "fetch 31") == "hit"
    assert send(second, "check") == "checked"
    os.kill(second.pid, signal.SIGKILL)
    wait_ended(second)
    with open_cache(path) as cache:
        cache.check()


def test_a_full_spool_loses_only_the_answer(path: Path) -> None:
    with open_cache(path), open_cache(path) as reader:
        for name in range(40):
            answer = reader.fetch(CHAT, request_of(name), Upstream()(name, 20_000))
            assert is_answer(answer.payload, name)
        assert reader.stats().handover_failed > 0


def test_a_collected_answer_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    path, now = tmp_path / "answers.db", [1000.0]
    clock = lambda: now[0]  # noqa: E731
    with (
        small_cache(capacity=2 << 20, path=path, clock=clock) as owner,
        small_cache(capacity=2 << 20, path=path, clock=clock) as reader,
    ):
        reader.fetch(CHAT, request_of(1), Upstream()(1, version=1))
        reader.fetch(CHAT, request_of(2), Upstream()(2, ttl=5.0))
        now[0] += 10
        owner.fetch(CHAT, request_of(1), Upstream()(1, version=2), refresh=True)
        owner.maintain()
        assert owner.fetch(CHAT, request_of(1), Upstream()(1)).payload == payload_of(1, version=2)
        assert owner.fetch(CHAT, request_of(2), Upstream()(2)).outcome == "miss"
        owner.check()


def test_a_purge_includes_answers_that_were_handed_over(path: Path) -> None:
    with open_cache(path) as owner, open_cache(path) as reader:
        for name in range(5):
            reader.fetch(CHAT, request_of(name), Upstream()(name))
        assert owner.purge() == 5
        owner.maintain()
        assert owner.fetch(CHAT, request_of(0), Upstream()(0)).outcome == "miss"
        owner.check()


def test_a_cache_that_is_not_closed_releases_the_store(path: Path) -> None:
    cache = open_cache(path)
    cache.fetch(CHAT, request_of(1), Upstream()(1))
    thread = cache._internal.coordinator._thread._thread
    assert thread
    del cache
    gc.collect()
    with open_cache(path) as cache:
        assert cache.stats().owner
        assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
        wait_until(lambda: not thread.is_alive(), "the thread")


FORKS = """
import os, sys
from tests.support.caches import CHAT, Upstream, admission_of, request_of, small_cache, store_of
cache = small_cache(capacity=2 << 20, path=sys.argv[1])
cache.fetch(CHAT, request_of(1), Upstream()(1))
store_of(cache).flush()
with admission_of(cache).deciding, cache._internal.ledger._lock, cache._engine.single_flight._lock:  # free in the child
    child = os.fork()
if child == 0:
    assert not cache.stats().owner
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


def test_a_child_of_the_owner_is_a_reader(tmp_path: Path) -> None:
    child = spawn(FORKS, tmp_path / "answers.db")
    assert read_line(child) == "done"
    wait_ended(child)


FORKED_OWNER = """
import os, sys
from tests.support.caches import CHAT, Upstream, request_of, small_cache, store_of
cache = small_cache(capacity=2 << 20, path=sys.argv[1])
cache.fetch(CHAT, request_of(1), Upstream()(1))
store_of(cache).flush()
closed, closing = os.pipe()
child = os.fork()
if child == 0:
    assert not cache.owner
    os.read(closed, 1)
    cache.maintain()
    assert cache.owner
    assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
    assert cache.fetch(CHAT, request_of(2), Upstream()(2)).outcome == "miss"
    assert cache.fetch(CHAT, request_of(2), Upstream()(2)).outcome == "hit"
    cache.check()
    cache.close()
    os._exit(0)
cache.close()
os.write(closing, b"1")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("done", flush=True)
"""


def test_a_child_becomes_the_owner_when_its_parent_closes(tmp_path: Path) -> None:
    child = spawn(FORKED_OWNER, tmp_path / "answers.db")
    assert read_line(child) == "done"
    wait_ended(child)


def request_counts(cache: Cache) -> dict[str, float]:
    return {row.key: row.requests for row in cache.entries(limit=1000).rows}


def test_hits_of_readers_reach_the_owner(path: Path) -> None:
    options = {"capacity": 2 << 20, "path": path, "policy": "gdsf-cost", "shadows": ("lru",)}
    with small_cache(**options) as owner, small_cache(**options) as reader:
        keys = [owner.fetch(CHAT, request_of(name), Upstream()(name)).key for name in range(3)]
        store_of(owner).flush()
        for name in (0, 1, 1, 1):
            assert reader.fetch(CHAT, request_of(name), Upstream()(name)).outcome == "hit"
        paid = owner.stats().shadows["none"]
        reader.maintain()
        owner.maintain()
        assert [request_counts(owner)[key] for key in keys] == [2, 4, 1]
        stats = owner.stats()
        assert stats.reported_hits == 4
        assert stats.requests == 3, "the ledger counts only its own requests"
        assert stats.shadows["none"] == paid + 4.0
        reader.maintain()
        owner.maintain()
        assert owner.stats().reported_hits == 4, "reported once"
        owner.check()


def test_a_reader_that_does_not_report_hits(path: Path) -> None:
    with open_cache(path) as owner, small_cache(capacity=2 << 20, path=path, report_hits=False) as reader:
        key = owner.fetch(CHAT, request_of(1), Upstream()(1)).key
        store_of(owner).flush()
        assert reader.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
        reader.maintain()
        owner.maintain()
        assert owner.stats().reported_hits == 0
        assert owner._internal.touch({key: 1}) == 1


def test_a_reader_that_leaves_or_takes_over_has_told(path: Path) -> None:
    options = {"capacity": 2 << 20, "path": path, "policy": "gdsf-cost"}
    owner, reader, successor = small_cache(**options), small_cache(**options), small_cache(**options)
    (key,) = [owner.fetch(CHAT, request_of(1), Upstream()(1)).key]
    store_of(owner).flush()
    for cache in (reader, successor, successor):
        assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
    reader.close()
    owner.maintain()
    assert request_counts(owner)[key] == 2
    owner.close()
    successor.maintain()
    assert successor.stats().owner
    assert request_counts(successor)[key] == 4
    successor.check()
    successor.close()


def test_the_number_of_reported_keys_is_bounded(path: Path) -> None:
    with open_cache(path) as owner, open_cache(path) as reader:
        role = reader._internal.coordinator.role
        assert isinstance(role, Reader)
        spool = role.store._spool  # type: ignore[attr-defined]
        bound = store_of(reader).max_counted_keys
        many = {f"{k:064x}": k + 1 for k in range(2 * bound)}
        assert reader._internal.touch(many) == sum(range(1, bound + 1))
        assert len(role._hits) == bound
        reader.maintain()
        assert 0 < spool.size() <= spool.size_limit
        for _ in range(50):
            reader._internal.touch(many)
            reader.maintain()
        assert spool.size() <= spool.size_limit
        assert len(role._hits) <= bound
        owner.maintain()
        assert spool.size() == 0
        assert owner.stats().reported_hits == 0, "unknown keys"
        owner.check()


def test_damaged_counts_are_dropped(path: Path) -> None:
    with open_cache(path) as owner, open_cache(path) as reader:
        key = owner.fetch(CHAT, request_of(1), Upstream()(1)).key
        reader._internal.touch({key: 5})
        reader.maintain()
        (file,) = Path(f"{path}.spool").glob("*.counts")
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        owner.maintain()
        assert owner.stats().reported_hits == 0


def test_touch() -> None:
    with small_cache(policy="gdsf-cost") as cache:
        key = cache.fetch(CHAT, request_of(1), Upstream()(1)).key
        assert cache._internal.touch({key: 3, "00" * 32: 7}) == 3
        assert request_counts(cache) == {key: 4}
        assert cache.stats().requests == 1
        for bad in ({key: -1}, {key: 1.5}, {"no key": 1}):
            with pytest.raises(InvalidInput):
                cache._internal.touch(bad)  # type: ignore[arg-type]
        cache.check()
