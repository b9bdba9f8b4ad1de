"""Random sequences of calls, compared with a dict: every answer and every total, after every step."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from knapcache.errors import StoreError
from knapcache.store.base import Entry, Store, Totals
from knapcache.store.memory import MemoryStore
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, files_bytes, key_of

NAMES = st.integers(0, 11)
SIZES = st.sampled_from([0, 1, 900, 1800, 1900, 2100, 4000, 9000, 40_000, 60_000])


class StoreMachine(RuleBasedStateMachine):
    """The model: entries by key, the clock, the last snapshot."""

    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.held: dict[bytes, Entry] = {}
        self.snapshot: bytes | None = None
        self.versions = 0
        self.store = self.build()

    def build(self) -> Store:
        raise NotImplementedError

    def clock(self) -> float:
        return self.now

    @rule(
        name=NAMES, n=SIZES, evict=st.sets(NAMES, max_size=4), ttl=st.none() | st.integers(1, 20),
        tenant=st.sampled_from("ab"), snapshot=st.none() | st.binary(max_size=9000), wait=st.booleans(),
    )  # fmt: skip
    def put(
        self, name: int, n: int, evict: set[int], ttl: int | None, tenant: str, snapshot: bytes | None, wait: bool
    ) -> None:
        self.versions += 1
        expires = None if ttl is None else self.now + ttl
        entry = entry_of(self.store, name, n, self.versions, created=self.now, expires=expires, tenant=tenant)
        for other in evict | {name}:
            self.held.pop(key_of(other), None)
        # In place of a policy, evict the oldest entries.
        gone = [key_of(other) for other in evict]
        while entry.size + sum(e.size for e in self.held.values()) > self.store.capacity:
            key = next(iter(self.held))
            del self.held[key]
            gone.append(key)
        done = self.store.apply(entry, gone, snapshot)
        if entry.size <= self.store.max_entry_size:
            self.held[entry.key] = entry
            self.snapshot = self.snapshot if snapshot is None else snapshot
            if wait:
                assert done.result(60) is None
        else:
            assert isinstance(done.exception(60), StoreError)

    @rule(evict=st.sets(NAMES, min_size=1, max_size=4))
    def evict(self, evict: set[int]) -> None:
        self.store.apply(evict=[key_of(name) for name in evict])
        for name in evict:
            self.held.pop(key_of(name), None)

    @rule(seconds=st.floats(0.0, 8.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        expected = {key for key, entry in self.held.items() if entry.expires is not None and entry.expires <= self.now}
        assert set(self.store.expire()) == expected
        for key in expected:
            del self.held[key]

    @rule()
    def compare_all(self) -> None:
        assert sorted(self.store.scan()) == sorted(entry.info for entry in self.held.values())
        assert self.store.totals() == Totals(len(self.held), sum(entry.size for entry in self.held.values()))
        assert self.store.load_snapshot() == self.snapshot
        self.store.check()

    @invariant()
    def every_entry_is_as_modelled(self) -> None:
        if hasattr(self, "store"):
            for name in range(12):
                entry = self.held.get(key_of(name))
                if entry is not None and entry.expires is not None and entry.expires <= self.now:
                    entry = None
                assert self.store.get(key_of(name)) == entry

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.check()
            assert not {"damaged", "failed_reads", "failed_writes", "quarantined"} & set(self.store.counters())
            self.store.close()


class MemoryMachine(StoreMachine):
    def build(self) -> Store:
        return MemoryStore(200_000, clock=self.clock)


class SqliteMachine(StoreMachine):
    memory_tier: ClassVar[int | None] = None

    def build(self) -> Store:
        if not hasattr(self, "folder"):
            self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "answers.db"
        return SqliteStore(self.path, 1 << 20, SqliteOptions(clock=self.clock, memory_tier=self.memory_tier))

    @precondition(lambda self: hasattr(self, "store"))
    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.build()

    @invariant()
    def files_are_within_the_size_limit(self) -> None:
        if hasattr(self, "store"):
            assert files_bytes(self.path) <= 1 << 20

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


class SqliteWithoutMemoryTierMachine(SqliteMachine):
    memory_tier = 0


MACHINES = [MemoryMachine, SqliteMachine, SqliteWithoutMemoryTierMachine]


@pytest.mark.parametrize(("examples", "steps"), [(15, 30), pytest.param(300, 80, marks=pytest.mark.long)])
@pytest.mark.parametrize("machine", MACHINES)
def test_a_store_behaves_like_a_dict(machine: type[StoreMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )
