"""bench/prefix.py from end to end on a small trace; its synthetic traffic and its targets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from knapcache.prefix.tariff import ANTHROPIC
from knapcache.sim.prefix.sessions import COLUMNS

BENCH = Path(__file__).resolve().parents[2] / "bench" / "prefix.py"
sys.path.append(str(BENCH.parent))

import _prefix_traffic  # noqa: E402 - after the change of sys.path

import prefix  # noqa: E402


@pytest.fixture
def run_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that runs the benchmark with traces from `tmp_path`."""
    monkeypatch.setenv("KNAPCACHE_TRACES", str(tmp_path))

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["prefix.py", *arguments])
        prefix.main()

    return run


def test_a_run_writes_json_a_figure_and_markdown(
    run_bench: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{60 * k},s,{k},{k - 1},{2000 * k},{2000 * (k + 1)},9,0,tool,m" for k in range(20)]
    (tmp_path / "agent_sessions.csv.gz").write_text("\n".join((",".join(COLUMNS), *rows)) + "\n")
    arguments = ("--traces", "agent_sessions,chat_prefixes", "--random", "0", "--out", str(tmp_path / "out"))
    run_bench(*arguments)
    printed, error = capsys.readouterr()
    assert "chat_prefixes: skipped, " in error
    assert "open traces: bill / bill without marks" in printed
    record = json.loads((tmp_path / "out" / "prefix.json").read_text(encoding="utf-8"))
    assert (tmp_path / "out" / "prefix.png").read_bytes().startswith(b"\x89PNG")
    assert [cell["upgrades"] for cell in record["cells"]] == [True, False]
    cell = record["cells"][0]
    ratio = (1.25 * 20 + 0.1 * 190) / 210
    assert cell["ratios"]["last-5m"] == pytest.approx(ratio)
    assert (cell["best_fixed"], cell["best_fixed_ratio"]) == ("last-5m", pytest.approx(ratio))
    assert cell["learned_by_best"] == pytest.approx(cell["learned"] / ratio)
    path = "before the call, request of 100 KB, 50 blocks, mode "
    parts = ["decision, before the call", "report, after the answer", f"{path}observe", f"{path}on"]
    assert [row["part"] for row in record["times"]] == parts
    assert all(0.0 < row["min_us"] <= row["median_us"] <= row["p99_us"] for row in record["times"])
    run_bench("--markdown", str(tmp_path / "out" / "prefix.json"))
    page = capsys.readouterr().out
    assert f"| agent_sessions | yes | 1.000 | {ratio:.3f} | " in page
    assert "| agent_sessions, bill ratio | " in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--traces", "nowhere"), "'nowhere' is not one of agent_sessions, chat_prefixes, agents, "),
        (("--random", "-1"), "random must be at least 0, not -1"),
        (("--tariff", "azure"), "unknown tariff 'azure': allowed are anthropic, "),
        (("--traces", "agent_sessions", "--random", "0"), "no trace was found"),
    ],
)
def test_bad_arguments(
    run_bench: Callable[..., None], arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_bench(*arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def cell(trace: str, upgrades: bool, learned: float, system2: float) -> dict[str, Any]:
    ratios = {"system2-1h": system2, "learned": learned}
    best = {"learned": learned, "learned_by_best": learned / system2}
    return {"trace": trace, "upgrades": upgrades, "ratios": ratios, **best}


def test_targets() -> None:
    cells = [
        cell("agent_sessions", True, 0.165, 0.2),
        cell("agent_sessions", False, 0.203, 0.2),
        cell("chat_prefixes", True, 0.945, 1.4),
        cell("chat_prefixes", False, 0.946, 1.4),
        cell("agents", True, 0.204, 0.2),
        cell("random 1", False, 0.205, 0.2),
    ]
    found = {row["metric"]: row["met"] for row in prefix.check_targets(cells, [{"part": prefix.PATH, "min_us": 101.0}])}
    assert found == {
        "agent_sessions, bill ratio": True,
        "agent_sessions without upgrades, bill / system2-1h": False,
        "chat_prefixes, bill ratio": True,
        "chat_prefixes without upgrades, bill ratio": False,
        "worst of 4 open cells, bill / best fixed rule": True,
        "worst of 1 synthetic cells, bill / best fixed rule": True,
        "worst of 1 random cells, bill / best fixed rule": False,
        prefix.PATH: False,
    }


@pytest.mark.parametrize("kind", ["branches", "shared system prompts", "random 1"])
def test_synthetic_traffic_is_repeatable_and_continues_conversations(kind: str) -> None:
    requests = _prefix_traffic.draw(kind, ANTHROPIC.minimum_of)
    assert requests == _prefix_traffic.draw(kind, ANTHROPIC.minimum_of)
    assert len(requests) > 1000
    assert all(one.time <= other.time for one, other in pairwise(requests))
    ends = {request.end.id for request in requests}
    assert sum(position.id in ends for request in requests for position in request.positions[:-1]) > 1000


def test_the_docs_have_the_committed_numbers() -> None:
    root = BENCH.parents[1]
    record = json.loads((root / "bench/results/prefix.json").read_text(encoding="utf-8"))
    page = (root / "docs/reference/prefix-lab.md").read_text(encoding="utf-8")
    assert prefix.markdown(record) in page, "docs/reference/prefix-lab.md lacks what --markdown prints"
    cells = {(cell["trace"], cell["upgrades"]): cell for cell in record["cells"]}
    agents, chat = cells["agent_sessions", True], cells["chat_prefixes", True]
    without = cells["agent_sessions", False]
    readme = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    assert f"**{100 * (1 - agents['learned']):.0f} % of the input bill** of coding agents saved" in readme
    assert f"{100 * (1 - agents['learned_by_best']):.0f} % less than the best fixed rule" in readme
    assert f"({100 * (1 - without['learned']):.0f} % if it does not" in readme
    assert f"{100 * (1 - chat['learned']):.0f} % on production chat" in readme
    assert f"for an hour costs {100 * (chat['ratios']['last-1h'] - 1):.0f} % more" in readme
    guide = " ".join((root / "docs/guides/prefix.md").read_text(encoding="utf-8").split())
    chat_without = cells["chat_prefixes", False]
    rules = {
        "a mark at the end, 5 min": "last-5m",
        "a mark at the end, 1 h": "last-1h",
        "system prompt and last two turns, 5 min": "system2-5m",
        "system prompt and last two turns, 1 h": "system2-1h",
    }
    for label, rule in rules.items():
        assert f"| {label} | {agents['ratios'][rule]:.3f} | {chat['ratios'][rule]:.3f} |" in guide
    assert f"(below) | **{agents['learned']:.3f}** | **{chat['learned']:.3f}** |" in guide
    assert f"if it does not | **{without['learned']:.3f}** | **{chat_without['learned']:.3f}** |" in guide
    worst = {row["metric"].split(",")[0]: 100 * (row["measured"] - 1) for row in record["targets"]}
    assert f"the tier pays at most {worst['worst of 24 synthetic cells']:.1f} % more" in guide
    assert f"on 40 random ones at most {worst['worst of 40 random cells']:.1f} %" in guide
    (on_path,) = (row for row in record["times"] if row["part"].endswith("mode on"))
    assert f"takes {on_path['median_us'] / 1000:.2f} ms longer" in guide
