"""Admission: what leaves the policy leaves the store, and every decision is made under the lock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from knapcache.cache.apply_queue import StoreChange
from knapcache.model import Decision
from tests.support.caches import CHAT, Upstream, admission_of, request_of, small_cache, store_of
from tests.support.timing import check_waits_for


def test_entries_that_a_policy_evicts_without_admitting_leave_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_cache() as cache:
        admission = admission_of(cache)
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        (victim,) = admission.policy.residents

        def evict(*_: object) -> Decision:
            admission.policy.forget(victim)
            return Decision(False, (victim,))

        monkeypatch.setattr(admission, "_timed_settle", evict)
        cache.fetch(CHAT, request_of(2), Upstream()(2))
        assert store_of(cache).totals() == (0, 0)
        assert cache.stats().evictions == 1
        cache.check()


def test_a_missing_entry_has_left_the_store_when_it_is_forgotten() -> None:
    with small_cache() as cache:
        admission = admission_of(cache)
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        (i,) = admission.policy.residents
        admission.forget_missing(admission.ids.keys[i], i, admission.ids.serial[i])
        assert not admission.queue.changes
        assert store_of(cache).totals() == (0, 0)
        cache.check()


@pytest.mark.parametrize("resident", [True, False])
def test_a_request_applies_what_is_queued(resident: bool) -> None:
    with small_cache() as cache:
        admission = admission_of(cache)
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        (i,) = admission.policy.residents
        admission.queue.append(StoreChange(evict=[bytes(32)]))
        if resident:
            assert admission.count_if_resident(admission.ids.keys[i], 1, 1.0)
        else:
            admission.arrive(bytes(31) + b"1")
        assert not admission.queue.changes
        cache.check()


def test_a_key_without_an_entry_is_not_counted() -> None:
    with small_cache() as cache:
        admission = admission_of(cache)
        assert not admission.count_if_resident(bytes(32), 1, 1.0)
        assert admission.touch({bytes(32): 3}) == admission.arrived == 0


def test_a_new_price_decides_what_is_evicted() -> None:
    """The first entry would be evicted first; it has become the dearest, and the second the cheapest."""
    with small_cache(policy="gdsf-cost") as cache:
        admission = admission_of(cache)
        keys = [
            bytes.fromhex(cache.fetch(CHAT, request_of(k), Upstream()(k, 200_000, cost=1.0 + k)).key) for k in range(4)
        ]
        admission.reprice({keys[0]: 50.0, keys[1]: 0.5, bytes(32): 1.0})
        for name in range(10, 12):
            cache.fetch(CHAT, request_of(name), Upstream()(name, 200_000, cost=40.0))
        assert [store_of(cache).get(key) is not None for key in keys] == [True, False, False, True]
        cache.check()


STEPS = ("arrive", "count_if_resident", "observe", "touch", "reprice", "forget_missing", "settle")


@pytest.mark.parametrize("step", STEPS)
def test_every_decision_waits_for_the_lock(step: str) -> None:
    with small_cache(policy="gdsf-cost") as cache:
        admission = admission_of(cache)
        cache.fetch(CHAT, request_of(1), Upstream()(1))
        (i,) = admission.policy.residents
        key = admission.ids.keys[i]
        entry = store_of(cache).get(key)
        assert entry is not None
        steps: dict[str, Callable[[], object]] = {
            "arrive": lambda: admission.arrive(key),
            "count_if_resident": lambda: admission.count_if_resident(key, 1, 1.0),
            "observe": lambda: admission.observe(key, i, 1, 1.0),
            "touch": lambda: admission.touch({key: 1}),
            "reprice": lambda: admission.reprice({key: 2.0}),
            "forget_missing": lambda: admission.forget_missing(key, i, admission.ids.serial[i]),
            "settle": lambda: admission.settle(i, entry),
        }
        check_waits_for(admission.deciding, steps[step])
        cache.check()
