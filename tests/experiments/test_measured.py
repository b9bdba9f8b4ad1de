"""Workloads from timed calls: sizes, mean costs and drawn costs equal those of the table."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from knapcache_experiments import measured
from knapcache_experiments.measured import MeasuredWorkload

pytestmark = pytest.mark.tools


def lines(name: str) -> list[dict[str, str]]:
    text = (measured.TABLES / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


@pytest.mark.parametrize("name", measured.table_names())
def test_committed_tables_are_complete_and_describe_themselves(name: str) -> None:
    calls, rows = measured.read(name), lines(name)
    assert {"model", "hardware", "date", "method", "tokens"} <= set(calls.about)
    assert len(calls.tokens) >= 100
    assert all(len(seconds) >= 20 for seconds in calls.seconds)
    assert len({(r["prompt"], r["sample"]) for r in rows}) == len(rows) == sum(map(len, calls.seconds))
    assert list(rows[0]) == list(measured.COLUMNS)  # ids and numbers, no texts
    assert all(1 <= int(r["answer_tokens"]) <= 512 for r in rows)


def test_the_time_of_a_t5_call_is_proportional_to_its_answer_tokens() -> None:
    rows = lines("t5-3b-h200")
    tokens, seconds = (np.array([float(r[c]) for r in rows]) for c in ("answer_tokens", "seconds"))
    assert np.corrcoef(tokens, seconds)[0, 1] > 0.999
    assert 1.5e-3 < np.polyfit(tokens, seconds, 1)[0] < 3e-3


def test_the_workload_matches_the_table() -> None:
    source = MeasuredWorkload("t5-3b-h200", 100, 30_000, "uniform", 32)
    queries, trace = source.draw(np.random.default_rng(1))
    by_prompt: dict[str, list[dict[str, str]]] = {}
    for r in lines("t5-3b-h200"):
        by_prompt.setdefault(r["prompt"], []).append(r)
    sizes, means = [], []
    for rows in by_prompt.values():
        tokens = int(rows[0]["prompt_tokens"]) + sum(int(r["answer_tokens"]) for r in rows) / len(rows)
        sizes.append(math.ceil(tokens / 32))
        means.append(sum(float(r["seconds"]) for r in rows) / len(rows))
    assert sorted(queries.sizes.tolist()) == sorted(sizes)
    assert sorted(queries.costs.tolist()) == pytest.approx(sorted(means))
    known = {float(r["seconds"]) for rows in by_prompt.values() for r in rows}
    assert set(trace.costs.tolist()) <= known
    for q in np.argsort(queries.costs)[[0, 50, 99]]:
        costs = trace.costs[trace.keys == q]
        assert abs(costs.mean() - queries.costs[q]) < 4.5 * costs.std() / math.sqrt(len(costs))
    assert (trace.sizes == queries.sizes[trace.keys]).all()


def test_a_table_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "# model: mine\nprompt,sample,prompt_tokens,answer_tokens,seconds\na,0,3,4,2\na,1,3,6,4\nb,0,1,1,1\n"
    )
    queries, trace = MeasuredWorkload(str(path), 2, 500, "uniform", 4).draw(np.random.default_rng(0))
    assert sorted(zip(queries.sizes.tolist(), queries.costs.tolist(), strict=True)) == [(1, 1.0), (2, 3.0)]
    assert set(trace.costs.tolist()) == {1.0, 2.0, 4.0}
