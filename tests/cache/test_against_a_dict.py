"""Random sequences of calls compared with a dict: every answer is right, and all totals agree after each step."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from knapcache import Cache, NotCached, Reply
from tests.support.caches import CHAT, is_answer, payload_of, request_of, residents
from tests.support.clock import Clock

names = st.integers(0, 11)
sizes = st.sampled_from([0, 100, 3000, 10_000, 20_000, 60_000])
"""For a cache of 64 KB; on disk, where a megabyte is the minimum, ten times that."""
tenants = st.sampled_from(["", "a", "b"])


class Machine(RuleBasedStateMachine):
    """`paid` has every answer that was paid for: version → (name, tenant, created, expires)."""

    path: Path | None = None
    capacity = 1 << 16
    times = 1

    @initialize(
        policy=st.sampled_from(["adaptive", "lru", "gdsf-cost"]),
        ids=st.sampled_from([3, 8, 1000]),
        quotas=st.sampled_from([{}, {"a": 4}, {"a": 2, "b": 1000}]),
    )
    def begin(self, policy: str, ids: int, quotas: dict[str, int]) -> None:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.clock = Clock()
        self.quotas = {tenant: self.capacity // share for tenant, share in quotas.items()}
        self.options: dict[str, Any] = {
            "capacity": self.capacity, "cost": "seconds", "policy": policy, "shadows": ("lru",), "ids": ids,
            "quotas": self.quotas, "clock": self.clock, "path": self.path and Path(self.folder.name) / "answers.db",
        }  # fmt: skip
        self.cache = Cache(**self.options)
        self.paid: dict[int, tuple[int, str, float, float]] = {}
        self.newest: dict[tuple[int, str], int] = {}
        self.purged: set[int] = set()
        self.requests = 0

    def call(self, name: int, tenant: str, n: int, ttl: float | None, cacheable: bool) -> Any:
        def call() -> Reply:
            version = len(self.paid) + 1
            expires = self.clock.now + ttl if ttl else float("inf")
            self.paid[version] = name, tenant, self.clock.now, expires if cacheable else 0.0
            if cacheable:
                self.newest[name, tenant] = version
            return Reply(payload_of((name, tenant), n, version), cost=1.0 + name % 4, ttl=ttl, cacheable=cacheable)

        return call

    @rule(name=names, n=sizes, tenant=tenants, ttl=st.sampled_from([None, None, 50.0]), cacheable=st.booleans())
    def fetch(self, name: int, n: int, tenant: str, ttl: float | None, cacheable: bool) -> None:
        before = len(self.paid)
        call = self.call(name, tenant, n * self.times, ttl, cacheable)
        answer = self.cache.fetch(CHAT, request_of(name), call, namespace=tenant)
        self.requests += 1
        self.verify(answer, name, tenant, before)

    @rule(name=names, tenant=tenants, max_age=st.sampled_from([0.0, 20.0]))
    def only_recent(self, name: int, tenant: str, max_age: float) -> None:
        before = len(self.paid)
        answer = self.cache.fetch(
            CHAT, request_of(name), self.call(name, tenant, 100, None, True), namespace=tenant, max_age=max_age
        )
        self.requests += 1
        self.verify(answer, name, tenant, before)
        assert answer.age <= max_age

    @rule(name=names, tenant=tenants)
    def refresh(self, name: int, tenant: str) -> None:
        before = len(self.paid)
        answer = self.cache.fetch(
            CHAT, request_of(name), self.call(name, tenant, 3000, None, True), namespace=tenant, refresh=True
        )
        self.requests += 1
        assert answer.outcome == "miss"
        self.verify(answer, name, tenant, before)

    @rule(name=names, tenant=tenants)
    def only_cached(self, name: int, tenant: str) -> None:
        self.requests += 1
        try:
            answer = self.cache.fetch(CHAT, request_of(name), self.forbidden, namespace=tenant, only_cached=True)
        except NotCached:
            return
        self.verify(answer, name, tenant, len(self.paid))

    @staticmethod
    def forbidden() -> Reply:
        raise AssertionError("called")

    def verify(self, answer: Any, name: int, tenant: str, before: int) -> None:
        assert is_answer(answer.payload, (name, tenant))
        version = int(answer.payload.split(b" ", 2)[1])
        if answer.outcome == "miss":
            assert version == before + 1 == len(self.paid)
            return
        assert answer.outcome == "hit"
        assert len(self.paid) == before
        paid_name, paid_tenant, created, expires = self.paid[version]
        assert (paid_name, paid_tenant) == (name, tenant)
        assert self.clock.now < expires
        assert answer.age == self.clock.now - created
        assert version == self.newest[name, tenant], "an older answer than the last one"
        assert version not in self.purged

    @rule(seconds=st.sampled_from([1.0, 30.0]))
    def advance_clock(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def maintain(self) -> None:
        self.cache.maintain()

    @rule(tenant=tenants)
    def purge_tenant(self, tenant: str) -> None:
        self.cache.purge(tenant=tenant)
        self.purged |= {version for version, (_, paid_by, _, _) in self.paid.items() if paid_by == tenant}

    @rule()
    def purge_old(self) -> None:
        self.cache.purge(older_than=40.0)
        limit = self.clock.now - 40.0
        self.purged |= {version for version, (_, _, created, _) in self.paid.items() if created < limit}

    @rule()
    def restart(self) -> None:
        if self.path is not None:
            before = residents(self.cache)
            self.cache.close()
            self.cache = Cache(**self.options)
            self.requests = 0
            assert residents(self.cache) <= before

    @invariant()
    def totals_agree(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check()
            stats = self.cache.stats()
            assert stats.requests == self.requests
            assert stats.bytes <= stats.capacity
            assert stats.shadows["none"] >= stats.shadows["lru"]
            rows = self.cache.entries(limit=1000).rows
            assert {row.tenant for row in rows} <= {"", "a", "b"}
            assert all(stats.tenant_bytes.get(tenant, 0) <= limit for tenant, limit in self.quotas.items())
            assert sum(row.size for row in rows) <= stats.bytes  # expired entries are not listed

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.cache.close()
            self.folder.cleanup()


class OnDisk(Machine):
    path = Path("answers.db")
    capacity = 1 << 20
    times = 10


@pytest.mark.parametrize(
    ("machine", "examples", "steps"),
    [
        (Machine, 25, 30),
        (OnDisk, 8, 30),
        *(pytest.param(machine, 300, 60, marks=pytest.mark.long) for machine in (Machine, OnDisk)),
    ],
)
def test_any_sequence(machine: type[Machine], examples: int, steps: int) -> None:
    options = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(machine, settings=options)
