"""The comparison of designs: rows, means, tables and files."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.sim.grid import replay_grid
from knapcache.sim.sharing import report
from knapcache.sim.sharing.compare import SharingComparison, compare_designs, extra_cost, mean_extra_costs
from knapcache.sim.sharing.designs import DESIGNS, SharingSettings
from knapcache.sim.synthetic import Workload
from knapcache.sim.trace import Trace

SETTINGS = SharingSettings(hits_late=40, settles_late=10, nursery=Fraction(1, 10))
TRACES = {name: Workload(queries=40, rounds=800).draw(np.random.default_rng(seed))[1] for seed, name in enumerate("ab")}


def compare(**options: Any) -> list[dict[str, Any]]:
    arguments: dict[str, Any] = {
        "policies": ["lru"],
        "capacities": ["10%", "40%"],
        "proxies": [2, 3],
        "settings": SETTINGS,
    }
    return compare_designs(TRACES, SharingComparison(**arguments | options), jobs=1)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return compare()


def test_rows_are_complete_and_compared_with_a_plain_replay(rows: list[dict[str, Any]]) -> None:
    by_proxies, others = ("own", "hashed", "rebalanced", "federated"), ("shared", "decider", "nursery")
    expected = [(name, 2 if name in by_proxies else None) for name in ("shared", *DESIGNS)]
    expected += [(name, 3) for name in by_proxies]
    for name, trace in TRACES.items():
        plain = {row["capacity"]: row["miss_cost"] for row in replay_grid(trace, ["lru"], ["10%", "40%"], jobs=1)}
        for capacity, miss_cost in plain.items():
            here = [row for row in rows if (row["trace"], row["capacity"]) == (name, capacity)]
            assert sorted((row["design"], row["proxies"] or 0) for row in here) == sorted(
                (design, count or 0) for design, count in expected
            )
            for row in here:
                assert row["extra_cost"] == row["miss_cost"] / miss_cost - 1.0
                assert row["peak_size"] <= capacity
                late = (40, 10) if row["design"] in ("federated", "decider", "nursery") else (None, None)
                assert (row["hits_late"], row["settles_late"]) == late
                assert row["nursery"] == (0.1 if row["design"] == "nursery" else None)
    assert {row["design"] for row in rows if row["proxies"] is None} == set(others)


def test_means_are_over_traces_and_capacities(rows: list[dict[str, Any]]) -> None:
    means = {(mean["design"], mean["proxies"]): mean for mean in mean_extra_costs(rows)}
    assert len(means) == 4 * 2 + 2
    cells = [row["extra_cost"] for row in rows if (row["design"], row["proxies"]) == ("own", 3)]
    assert len(cells) == means["own", 3]["cells"] == 4
    assert means["own", 3]["mean_extra_cost"] == pytest.approx(np.mean(cells))
    assert means["own", 3]["largest_extra_cost"] == max(cells)
    assert means["own", 3]["mean_extra_cost"] > means["own", 2]["mean_extra_cost"] > 0.0


def test_extra_cost_of_free_requests() -> None:
    assert (extra_cost(0.0, 0.0), extra_cost(1.0, 0.0), extra_cost(3.0, 2.0)) == (0.0, None, 0.5)


def test_tables_csv_and_json_have_the_same_numbers(rows: list[dict[str, Any]]) -> None:
    assert report.proxy_counts(rows) == [2, 3]
    table = report.table(rows, 3)
    assert [line["trace, capacity"] for line in table] == ["a, 10 %", "a, 40 %", "b, 10 %", "b, 40 %", "mean"]
    own = next(row for row in rows if (row["design"], row["proxies"], row["trace"]) == ("own", 3, "a"))
    assert table[0]["own"] == f"{100 * own['extra_cost']:+.2f} %"
    assert json.loads(report.to_json(rows)) == rows
    read = list(csv.DictReader(io.StringIO(report.to_csv(rows))))
    assert [float(row["miss_cost"]) for row in read] == [row["miss_cost"] for row in rows]
    assert len(report.legend(rows)) == 1 + len(DESIGNS)
    assert "hits 40 requests late, misses 10; nursery of 10 % of the capacity" in report.legend(rows)[-1]


def test_means_are_by_policy() -> None:
    comparison = SharingComparison(["lru", "fifo"], ["10%", "40%"], [2], SETTINGS, designs=["own"])
    table = report.table(compare_designs({"a": TRACES["a"]}, comparison, jobs=1), 2)
    labels = [line["capacity, policy"] for line in table]
    assert labels == ["10 %, lru", "10 %, fifo", "40 %, lru", "40 %, fifo", "mean, lru", "mean, fifo"]


def test_one_capacity_of_one_trace_has_no_mean() -> None:
    rows = compare_designs(
        {"a": TRACES["a"]}, SharingComparison(["lru"], ["60"], [2], SETTINGS, designs=["nursery"]), jobs=1
    )
    assert report.proxy_counts(rows) == [0]
    (line,) = report.table(rows, 0)
    assert list(line) == ["capacity", "shared", "nursery"]
    assert line["capacity"] == "60 B"


def test_the_figure_is_a_png(rows: list[dict[str, Any]]) -> None:
    assert report.figure_png(rows, "title").startswith(b"\x89PNG")


def test_policies_of_fixed_capacity_are_compared_without_rebalancing() -> None:
    comparison = SharingComparison(["s3-fifo"], ["20%"], [2], SETTINGS)
    assert [cell.design for cell in comparison.cells("a", TRACES["a"])] == [
        "shared",
        *(name for name in DESIGNS if name != "rebalanced"),
    ]


def test_equal_seeds_give_equal_rows_and_others_differ() -> None:
    def costs(seed: int) -> list[float]:
        settings = SharingSettings(hits_late=40, settles_late=10, seed=seed)
        comparison = SharingComparison(["lru"], ["20%"], [3], settings, designs=["own", "nursery"])
        return [row["miss_cost"] for row in compare_designs(TRACES, comparison, jobs=1)]

    assert costs(1) == costs(1)
    assert costs(1) != costs(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": ["belady"]}, "policy 'belady' knows the future"),
        ({"policies": ["pfoo"]}, "'pfoo' is a bound, not a policy"),
        ({"policies": ["lru", "lru"]}, "policy 'lru' is named twice"),
        ({"policies": ["arc"], "designs": ["rebalanced"]}, "policy 'arc' cannot change its capacity"),
        ({"capacities": ["x"]}, "capacity 'x' cannot be read"),
        ({"capacities": ["2"]}, "a: a capacity of 2 cannot be divided among 3 proxies"),
        ({"proxies": [2, 2]}, "proxies must be a list without repetitions, not '2, 2'"),
        ({"proxies": [0]}, "proxies must be 1 to 1000, not 0"),
        ({"designs": ["own", "other"]}, "unknown design 'other'"),
        ({"designs": ["shared"]}, "'shared' is what designs are compared with"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        compare(**options)
    assert message in str(error.value)


def test_a_trace_without_requests() -> None:
    nothing = Trace(np.empty(0, int), np.empty(0, int), np.empty(0), 3)
    with pytest.raises(InvalidInput, match="the trace has no requests"):
        compare_designs({"a": nothing}, SharingComparison(["lru"], ["60"], [2], SETTINGS), jobs=1)
