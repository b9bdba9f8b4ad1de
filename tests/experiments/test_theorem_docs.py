"""The numbers on the theorems in docs/background/paper.md are those of the committed results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "docs" / "background" / "paper.md").read_text(encoding="utf-8").split())
GAPS = (0.001, 0.003, 0.01, 0.03)
EXACT = (("vsocb-as-printed", 1.0), ("vsocb", 1.0), ("vsocb", 0.0), ("vsocb-lazy", 0.3))
APPROXIMATE = (("vsocb-apx", 1.0), ("vsocb-worst-solver", 1.0), ("vsocb-worst-solver", 0.0))


def rows(name: str, **wanted: Any) -> list[dict[str, Any]]:
    path = ROOT / "experiments" / "results" / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [r for r in found if all(r.get(key) == value for key, value in wanted.items())]


def number(x: float) -> str:
    return f"{x:,.0f}".replace("-", "−")


def exponent(r: dict[str, Any]) -> str:
    return f"{r['exponent']:.2f} [{r['exponent_low']:.2f}, {r['exponent_high']:.2f}]".replace("-", "−")


def test_regret_and_bound_of_theorem_1() -> None:
    for gap in GAPS:
        found = [
            rows("gaps", claim="Theorem 1 (1)", policy=policy, gamma=gamma, gap=gap, rounds=1_000_000)[0]
            for policy, gamma in EXACT
        ]
        cells = [f"{number(r['regret_mean'])} ± {number(r['regret_se'])}" for r in found]
        assert f"| {gap:g} | {number(found[0]['bound'])} | {' | '.join(cells)} |" in PAGE
    measured = [r for r in rows("gaps", claim="Theorem 1 (1)") if "share_max" in r]
    largest = {v: max(r["share_max"] for r in measured if (r["policy"], r["gamma"]) == v) for v in EXACT}
    printed, repaired, means, lazy = largest.values()
    assert f"at most {printed:.2f} of the bound as printed, {repaired:.2f} repaired" in PAGE
    assert f"{means:.1f} times the bound" in PAGE
    assert f"`vsocb-lazy` at most {lazy:.2f}" in PAGE


def test_exponents_of_theorem_1() -> None:
    for policy, gamma in EXACT:
        over_rounds = [rows("gaps", policy=policy, gamma=gamma, gap=gap, fit="T")[0] for gap in GAPS]
        (over_gap,) = rows("gaps", policy=policy, gamma=gamma, fit="Δ")
        cells = [exponent(r) for r in (*over_rounds, over_gap)]
        assert f"| `{policy}`, γ = {gamma:g} | {' | '.join(cells)} |" in PAGE
    bound = " | ".join(f"{r['exponent_of_bound']:.2f}" for r in (*over_rounds, over_gap)).replace("-", "−")
    assert f"| the bound | {bound} |" in PAGE


def test_beta_regret_and_bound_of_theorem_2() -> None:
    for name, wanted in (
        ("0.9 of the limit", {"beta_share": 0.9}),
        ("0.05", {"beta_share": None, "beta": 0.05}),
        ("0.2", {"beta_share": None, "beta": 0.2}),
    ):
        for policy, gamma in APPROXIMATE:
            found = rows("gaps", claim="Theorem 2 (1)", policy=policy, gamma=gamma, **wanted)
            assert [r["rounds"] for r in found] == [1_000, 10_000, 100_000, 1_000_000]
            last = found[-1]
            cells = [
                *(number(r["regret_mean"]) for r in found),
                number(last["bound"]),
                f"{max(r['share_max'] for r in found):.2g}",
                f"{100 * last['premise']:.0f} %",
                f"{100 * last['printed_bound_negative']:.0f} %",
                f"{100 * max(r['refuted'] for r in found):.0f} %",
            ]
            assert f"| {name} | `{policy}`, γ = {gamma:g} | {' | '.join(cells)} |" in PAGE


def test_the_regret_where_everything_fits() -> None:
    for r in rows("gaps", claim="Theorem 1, all fits"):
        assert r["bound"] == 0
    (r,) = rows("gaps", claim="Theorem 1, all fits", policy="vsocb", gamma=1.0)
    assert f"regret {r['regret_mean']:.1f} ± {r['regret_se']:.1f}" in PAGE
    assert f"{r['first_misses']:.1f} are expected" in PAGE


def test_exponents_of_scaling() -> None:
    sweeps = ("capacity", "queries", "both", "rounds")
    for workload in ("paper", "ties"):
        for policy, gamma in EXACT[1:]:
            found = [
                next(
                    r
                    for r in rows("scaling", workload=workload, policy=policy, gamma=gamma, varied=varied)
                    if "exponent" in r
                )
                for varied in sweeps
            ]
            assert f"| `{workload}` | `{policy}`, γ = {gamma:g} | {' | '.join(map(exponent, found))} |" in PAGE
        bound = " | ".join(f"{r['exponent_of_bound']:.2f}" for r in found)
        assert f"| `{workload}` | √(N·l·T) | {bound} |" in PAGE
    largest = max(r["share_max"] for r in rows("scaling") if "share_max" in r)
    assert f"at most {largest:.2f}·√(N·l·T)" in PAGE
