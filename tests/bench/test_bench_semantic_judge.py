"""bench/semantic_judge.py: a small run with the local embedding model, its limit, and the page with its results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.programs import find_module

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

import semantic_judge  # noqa: E402 - after the change of sys.path


def test_no_wrong_answer_is_accepted_in_a_small_run() -> None:
    for package in ("onnxruntime", "tokenizers"):
        find_module(package, "the extra semantic")
    record = semantic_judge.measure(each=1)
    assert record["accepted_wrongly"] == {"equal": 0, "embedding": 0}
    assert sum(row["pairs"] for row in record["rows"]) == record["pairs"]
    assert record["pairs"] > 250
    alone = record["thresholds"][2]
    assert alone["accepted_wrongly"] == 0.0
    assert alone["cosine_alone_accepted_wrongly"] > 0.2


@pytest.mark.parametrize(("wrong", "total", "limit"), [(0, 3000, 0.000998), (0, 10, 0.2589), (3, 100, 0.0757)])
def test_the_upper_limit_is_that_of_clopper_and_pearson(wrong: int, total: int, limit: float) -> None:
    assert semantic_judge.upper_limit(wrong, total) == pytest.approx(limit, rel=0.002)


def test_the_page_has_the_committed_results() -> None:
    record = json.loads((ROOT / "bench/results/semantic_judge.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/background/semantic-judge.md").read_text(encoding="utf-8")
    found = {rung: sum(row.get(f"same {rung}", 0) for row in record["rows"]) for rung in ("equal", "embedding")}
    assert record["accepted_wrongly"] == {"equal": 0, "embedding": 0}
    different, same = f"{record['different']:,}", record["same"]
    for rung, count in found.items():
        assert f"| rung `{rung}` | {count / same:.1%} | 0 of {different} |".replace("%", " %") in page
    limit = f"{record['accepted_wrongly_limit']:.2%}".replace("%", " %")
    both = f"{sum(found.values()) / same:.1%}".replace("%", " %")
    assert f"| both | {both} | 0 of {different}; at most {limit} with 95 % confidence |" in page
    for row in record["thresholds"]:
        if row["cosine"] in (0.85, 0.95):
            same_found, accepted = (
                f"{row[f'cosine_alone_{name}']:.1%}".replace("%", " %") for name in ("same_found", "accepted_wrongly")
            )
            assert f"≥ {row['cosine']:.2f} alone | {same_found} | {accepted} |".replace("0.", ".", 1) in page
    assert f"{record['pairs']:,} pairs" in page
