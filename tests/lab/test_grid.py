"""Rows of a grid equal those of single replays, on any number of processes."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.lab.grid import GridCell, even_order, replay_cells, replay_grid
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Trace
from knapcache.policy import registry
from knapcache.policy.classic.lru import LRU

_, TRACE = Workload(queries=40, rounds=3000).draw(np.random.default_rng(1))
POLICIES = ["lru", "vsocb", "static"]
FIELDS = [
    "policy",
    "capacity",
    "requests",
    "hits",
    "miss_cost",
    "total_cost",
    "cost_ratio",
    "peak_size",
    "oracle_calls",
    "seconds",
    "hits_error",
    "cost_ratio_error",
    "rate",
]


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def lru_by_hand(trace: Trace, capacity: int) -> tuple[int, float]:
    """Return the number of hits and the cost of the misses."""
    cached: OrderedDict[int, int] = OrderedDict()
    hits, paid = 0, 0.0
    for key, size, cost in zip(trace.keys.tolist(), trace.sizes.tolist(), trace.costs.tolist(), strict=True):
        if key in cached:
            cached.move_to_end(key)
            hits += 1
            continue
        paid += cost
        if size <= capacity:
            while sum(cached.values()) + size > capacity:
                cached.popitem(last=False)
            cached[key] = size
    return hits, paid


def test_rows() -> None:
    rows = replay_grid(TRACE, POLICIES, ["10%", 60, "1k"], jobs=1)
    largest: dict[int, int] = {}
    for key, size in zip(TRACE.keys.tolist(), TRACE.sizes.tolist(), strict=True):
        largest[key] = max(size, largest.get(key, 0))
    tenth = sum(largest.values()) // 10
    assert [(r["capacity"], r["policy"]) for r in rows] == [(c, p) for c in (tenth, 60, 1000) for p in POLICIES]
    for row in rows:
        assert list(row) == FIELDS
        assert row["requests"] == 3000
        assert row["total_cost"] == pytest.approx(sum(TRACE.costs.tolist()))
        assert row["cost_ratio"] == row["miss_cost"] / row["total_cost"]
        assert row["peak_size"] <= row["capacity"]
        assert (row["oracle_calls"] > 0) == (row["policy"] == "vsocb")
        if row["policy"] == "lru":
            hits, paid = lru_by_hand(TRACE, row["capacity"])
            assert (row["hits"], row["miss_cost"]) == (hits, pytest.approx(paid))
    # Everything fits: `static` misses only first requests.
    assert rows[-1]["hits"] == 3000 - len(largest)


def test_the_number_of_processes_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, two = (replay_grid(TRACE, POLICIES, ["10%", "30%"], jobs=jobs) for jobs in (1, 2))
    assert without_seconds(one) == without_seconds(two)
    assert list(tmp_path.iterdir()) == []  # temporary files are removed


class Seeded(LRU):
    """A policy with a seed."""

    seen: ClassVar[list[int]] = []

    def __init__(self, capacity: int, ids: int, *, seed: int = 7) -> None:
        super().__init__(capacity, ids)
        self.seen.append(seed)


def test_every_round_has_all_policies_and_progress_is_reported() -> None:
    cells = [GridCell(policy, capacity, 0) for policy in ("lru", "fifo") for capacity in (50, 100, 200, 400)]
    order = even_order(cells)
    assert sorted(order) == list(range(8))
    rounds = [{cells[k].policy for k in order[start : start + 2]} for start in range(0, 8, 2)]
    assert rounds == [{"lru", "fifo"}] * 4
    seen: list[tuple[int, int]] = []
    rows = replay_cells([TRACE], cells, jobs=1, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(k, 8) for k in range(1, 9)]
    assert [(row["policy"], row["capacity"]) for row in rows] == [(cell.policy, cell.capacity) for cell in cells]


def test_the_seed_reaches_policies_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.Spec, "policy_class", Seeded)
    replay_grid(TRACE, ["lru"], [60], seed=3, jobs=1)
    registry.find("lru").build_for(60, TRACE)
    assert Seeded.seen == [3, 7]


@pytest.mark.parametrize(
    ("policies", "capacities", "more", "message"),
    [
        (["lru", "lrru"], [5], {}, "unknown policy 'lrru': did you mean lru?"),
        (["lru", "lru"], [5], {}, "policy 'lru' is named twice"),
        ([], [5], {}, "at least one policy and one capacity"),
        (["lru"], [], {}, "at least one policy and one capacity"),
        (["lru"], ["many"], {}, "capacity 'many' cannot be read"),
        (["lru"], [0], {}, "must be at least 1"),
        (["lru"], [-5], {}, "cannot be read"),
        (["lru"], [5], {"seed": -1}, "seed must not be negative, not -1"),
        (["lru"], [5], {"jobs": 0}, "jobs must be at least 1, not 0"),
    ],
)
def test_bad_arguments(policies: list[str], capacities: list[Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replay_grid(TRACE, policies, capacities, **more)


def test_unusable_traces() -> None:
    nothing = Trace(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), 1)
    with pytest.raises(InvalidInput, match="the trace has no requests"):
        replay_grid(nothing, ["lru"], [5])
    expensive = Trace(np.zeros(9, np.int64), np.ones(9, np.int64), np.full(9, 1e308), 1)
    with pytest.raises(InvalidInput, match="sum to more than a float can hold"):
        replay_grid(expensive, ["lru"], [5])


def test_a_total_cost_of_0_has_no_ratio() -> None:
    free = Trace(np.zeros(9, np.int64), np.ones(9, np.int64), np.zeros(9), 1)
    (row,) = replay_grid(free, ["lru"], [5], jobs=1)
    assert (row["hits"], row["miss_cost"], row["cost_ratio"]) == (8, 0.0, None)


def test_the_working_set_may_be_larger_than_64_bits() -> None:
    huge = Trace(np.arange(8), np.full(8, 2**62 - 1), np.ones(8), 8)
    assert huge.working_set == 8 * (2**62 - 1)
    assert replay_grid(huge, ["lru"], ["12.5%"], jobs=1)[0]["capacity"] == 2**62 - 1
