"""bench/policies.py from end to end on a small trace; its random worlds and its mixture."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from knapcache.policy import registry
from knapcache.sim.grid import replay_grid
from knapcache.sim.trace import Trace
from knapcache.sim.worlds import draw_world

BENCH = Path(__file__).resolve().parents[2] / "bench" / "policies.py"
sys.path.append(str(BENCH.parent))

import _mixture  # noqa: E402 - after the change of sys.path
import _worlds  # noqa: E402
from policies import PUBLIC_TRACES, check_targets  # noqa: E402

SEEDS = range(5000, 5004)


def run_bench(traces: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark with traces from this directory."""
    return subprocess.run(
        [sys.executable, str(BENCH), "--jobs", "1", *arguments],
        env=os.environ | {"KNAPCACHE_TRACES": str(traces)},
        capture_output=True,
        text=True,
        check=False,
    )


def write_trace(path: Path) -> None:
    rng = np.random.default_rng(0)
    with gzip.open(path, "wt", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", "key", "size", "cost"])
        rows.writerows((t, key, 10 + key % 7, 1 + key % 3) for t, key in enumerate(rng.zipf(1.3, 2000) % 300))


def test_a_run_writes_json_a_figure_and_markdown(tmp_path: Path) -> None:
    write_trace(tmp_path / "oasst_zipf_0.6.csv.gz")
    names = "lru,fifo,gdsf-cost,pfoo"
    arguments = ("--traces", "oasst_zipf_0.6,oasst_zipf_1.0", "--capacities", "5%,10%", "--policies", names)
    done = run_bench(tmp_path, *arguments, "--subject", "gdsf-cost", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "oasst_zipf_1.0: skipped, " in done.stderr
    assert "closes" in done.stdout
    record = json.loads((tmp_path / "out" / "policies.json").read_text(encoding="utf-8"))
    assert (tmp_path / "out" / "policies.png").read_bytes().startswith(b"\x89PNG")
    ratio = record["ratios"]["oasst_zipf_0.6"]["10%"]
    assert list(ratio) == names.split(",")
    cell = record["cells"][1]
    assert (cell["capacity"], cell["subject"]) == ("10%", ratio["gdsf-cost"])
    best = min(("lru", "fifo"), key=ratio.__getitem__)
    assert (cell["best_other_name"], cell["best_other"]) == (best, ratio[best])
    assert cell["ratio_to_best_other"] == pytest.approx(ratio["gdsf-cost"] / ratio[best])
    assert cell["gap_closed"] == pytest.approx((ratio["lru"] - ratio["gdsf-cost"]) / (ratio["lru"] - ratio["pfoo"]))
    by_capacity = list(record["ratios"]["oasst_zipf_0.6"].values())
    lru, subject, bound = (sum(cell[p] for cell in by_capacity) for p in ("lru", "gdsf-cost", "pfoo"))
    assert record["gap_closed"] == pytest.approx((lru - subject) / (lru - bound))
    measured = {b["metric"]: (b["measured"], b["met"]) for b in record["targets"]}
    assert measured["mean of 2 cells without agent_contexts, cost / gdsf-cost"] == (1.0, False)
    assert measured["oasst_zipf_0.6 at 10%, cost / gdsf-cost"] == (1.0, False)
    worst = max(c["ratio_to_best_other"] for c in record["cells"])
    assert measured["worst of 2 cells, cost / best other policy"] == (worst, worst <= 1.01)
    page = run_bench(tmp_path, "--markdown", str(tmp_path / "out" / "policies.json")).stdout
    assert (
        f"| oasst_zipf_0.6 | 10% | {ratio['gdsf-cost']:.3f} | {ratio[best]:.3f} (`{best}`) | {ratio['gdsf-cost']:.3f} |"
        in page
    )
    assert (
        f"| worst of 2 cells, cost / best other policy | {worst:.3f} | ≤ 1.01 × | {'yes' if worst <= 1.01 else 'no'} |"
        in page
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--traces", "nowhere"), "'nowhere' is not one of oasst_zipf_0.6, "),
        (("--policies", "offline"), "'offline' is not one of "),
        (("--policies", "lru,lru"), "'lru' is named twice"),
        (("--capacities", "4MB"), "capacities must be shares of the working set, such as 10%, not 4MB"),
        (("--capacities", "many"), "capacity 'many' cannot be read"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run_bench(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def cell(trace: str, subject: float) -> dict[str, object]:
    """Return a cell in which every other policy has the cost ratio 1."""
    others = {"gdsf-cost": 1.0, "lru": 1.0, "ratio_to_best_other": subject}
    return {"trace": trace, "capacity": "1%", "subject": subject, **others}


def test_session_cells_count_for_the_worst_and_not_for_the_means() -> None:
    rows = [cell("mooncake_conversation", 0.8), cell("adaptsize_camp", 0.88), cell("agent_contexts", 1.2)]
    measured = {b["metric"]: (b["measured"], b["met"]) for b in check_targets(rows)}
    assert measured["worst of 3 cells, cost / best other policy"] == (1.2, False)
    assert measured["mean of 2 cells without agent_contexts, cost / lru"] == (pytest.approx(0.84), True)
    assert sum(len(capacities) for name, capacities in PUBLIC_TRACES.items() if name != "agent_contexts") == 16
    assert PUBLIC_TRACES["agent_contexts"] == ("1%", "2%", "5%", "10%")


def test_textbook_policies_are_all_online_policies_of_others() -> None:
    online = {name for name, spec in registry.SPECS.items() if spec.online}
    assert set(_worlds.textbook([*online, "belady", "pfoo"])) == online - {
        "adaptive", "horizon", "vsocb", "vsocb-lazy", "vsocb-apx"
    }  # fmt: skip


def test_worlds_are_compared_with_the_best_textbook_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_worlds, "SETS", {"development": SEEDS[:2], "held-out": SEEDS[2:3], "unrestricted": SEEDS[3:]})
    policies = ["gdsf-cost", "lru", "fifo"]
    assert _worlds.measure("none", policies, 1) == []
    assert {c["seed"] for c in _worlds.measure("held-out", policies, 1)} == {5002}
    cells = _worlds.measure("all", policies, 1)
    assert "development worlds: 2 of 2 done" in capsys.readouterr().err
    sets = ("development", "development", "held-out", "unrestricted")
    assert [(c["set"], c["seed"]) for c in cells] == [cell for cell in zip(sets, SEEDS, strict=True) for _ in range(2)]
    world = draw_world(5003, unrestricted=True)
    assert cells[-1]["description"] == world.description
    world = draw_world(5001)
    rows = replay_grid(world.trace, policies, world.capacities, jobs=1)
    assert [p for c in cells[2:4] for p in c["ratios"].values()] == [row["cost_ratio"] for row in rows]
    for c in cells:
        best = min(("lru", "fifo"), key=c["ratios"].__getitem__)
        assert (c["best_name"], c["best"]) == (best, c["ratios"][best])
        assert c["ratio"] == c["ratios"]["gdsf-cost"] / c["ratios"][best]
    cells[-1]["ratio"] = 9.0
    record = json.loads(json.dumps(_worlds.summarize(cells, "gdsf-cost")))
    assert list(record["distributions"]) == ["development", "held-out", "unrestricted", "all"]
    assert record["distributions"]["unrestricted"]["worst"] == 9.0
    assert record["distributions"]["all"]["worst"] == max(c["ratio"] for c in cells[:6]), "without unrestricted worlds"
    assert record["distributions"]["held-out"]["cells"] == 2
    assert record["worst"][0]["description"] == draw_world(record["worst"][0]["seed"]).description
    assert record["by_policy"]["lru"]["min"] >= 1.0
    assert len(_worlds.check_targets(record)) == 9
    page = _worlds.markdown(record)
    worst = record["distributions"]["all"]["worst"]
    assert any(line.startswith("| all, 6 cells | ") and f" | {worst:.3f} | " in line for line in page)
    assert any(line.startswith(f"| {record['worst'][0]['seed']} | ") for line in page)
    assert [title for title, _ in _worlds.tables(record)][-1] == "random worlds: worst cells"
    _worlds.draw(cells, record, tmp_path / "worlds.png")
    assert (tmp_path / "worlds.png").read_bytes().startswith(b"\x89PNG")


def test_the_distribution_of_ratios() -> None:
    ratios = [0.9] * 50 + [1.0] * 30 + [1.005] * 14 + [1.02] * 5 + [1.3]
    found = _worlds.distribution(ratios)
    assert (found["min"], found["p95"], found["worst"], found["cells"]) == (0.9, 1.02, 1.3, 100)
    assert found["median"] == 1.0, "half of the cells are below 1: the median is the higher neighbour"
    assert (found["below_1"], found["above_1_01"]) == (0.5, 0.06)


@pytest.mark.parametrize(
    ("ratios", "met"),
    [
        ([0.99] * 19 + [1.05], [True, False, True]),
        ([0.99] * 190 + [1.01] * 9 + [1.06], [False, True, True]),
        ([1.0] * 20, [True, True, False]),
    ],
)
def test_targets_of_the_worlds(ratios: list[float], met: list[bool]) -> None:
    targets = _worlds.check_targets({"distributions": {"all": _worlds.distribution(ratios)}})
    assert [b["target"] for b in targets] == ["≤ 1.05 ×", "≤ 1.01 ×", "< 1 ×"]
    assert [b["met"] for b in targets] == met


def test_the_mixture_has_equal_working_sets_and_totals() -> None:
    rng = np.random.default_rng(0)
    traces = {
        name: Trace(rng.integers(0, ids, count), rng.integers(1, 50, count), rng.random(count) + 0.1, ids)
        for name, ids, count in zip(_mixture.TRACES, (20, 300), (1000, 40_000), strict=True)
    }
    one, other = (_mixture.scaled(trace, _mixture.REQUESTS) for trace in traces.values())
    assert (len(one), len(other)) == (1000, 30_000)
    assert one.working_set == pytest.approx(other.working_set, rel=1e-6)
    assert one.total_cost == pytest.approx(1.0)
    assert other.total_cost == pytest.approx(1.0)
    whole = _mixture.mixed(one, other)
    first = whole.keys < one.ids
    assert np.array_equal(whole.keys[first], one.keys)
    assert np.array_equal(whole.keys[~first] - one.ids, other.keys)
    assert all(abs(part.sum() - 100) <= 1 for part in np.array_split(first, 10)), "evenly interleaved"
    record = _mixture.measure(traces, ["lru", "fifo"])
    lru = next(row for row in record["rows"] if row["policy"] == "lru")
    capacity = int(0.05 * whole.working_set)
    assert lru["one_cache"] == replay_grid(whole, ["lru"], [capacity], jobs=1)[0]["cost_ratio"]
    parts = [replay_grid(part, ["lru"], [capacity // 2], jobs=1)[0]["miss_cost"] for part in (one, other)]
    assert lru["two_caches"] == pytest.approx(sum(parts) / 2)
    assert f"| `lru` | {lru['one_cache']:.4f} | {lru['two_caches']:.4f} | {lru['one_by_two']:.4f} |" in (
        _mixture.markdown(record)
    )
