"""bench/reliability.py: a small run, broken promises, and earlier rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

from _reliability_rows import ROWS  # noqa: E402 - after the change of sys.path
from _reliability_run import Measured, ReliabilityRow, Run  # noqa: E402
from reliability import markdown, run_here, run_in_child, selected, write  # noqa: E402


def test_a_small_run(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "reliability.py"), "--out", str(tmp_path), "--only", "R2,R3"]
    done = subprocess.run([*command, "--scale", "0.001"], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "reliability.json").read_text(encoding="utf-8"))
    assert record["scale"] == 0.001
    assert [(row["row"], row["passed"]) for row in record["rows"]] == [("R2", True), ("R3", True)]
    for row in record["rows"]:
        assert row["how_often"]
        assert row["measured"]
        assert row["seconds"] > 0
    assert record["rows"][1]["counts"]["rounds"] == 30
    assert "2 of 2 rows passed" in done.stdout
    table = markdown(tmp_path / "reliability.json")
    assert '| `make reliability ARGS="--only R3"` |' in table


@pytest.mark.long
def test_every_row_at_a_small_scale(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "reliability.py"), "--out", str(tmp_path), "--scale", "0.002"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert f"{len(ROWS)} of {len(ROWS)} rows passed" in done.stdout


def broken(_: Run) -> Measured:
    raise AssertionError("3 answers were wrong")


def test_a_broken_promise_fails_its_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    row = ReliabilityRow(name="R1", done="nothing", promised="nothing", seconds=1, run=broken)
    found = run_here(row, 1.0)
    assert not found["passed"]
    assert "3 answers were wrong" in found["measured"]
    assert "3 answers were wrong" in capsys.readouterr().err
    write(tmp_path, [{"row": "R1", "done": "", "promised": "", "command": "", **found}], 1.0)
    assert "**failed**" in markdown(tmp_path / "reliability.json")


def test_a_crash_fails_its_row() -> None:
    row = ReliabilityRow(name="no such row", done="", promised="", seconds=1, run=broken)  # ends its process
    found = run_in_child(row, 1.0)
    assert (found["passed"], found["measured"]) == (False, "the process ended with status 1")


def test_rows_that_were_not_run_again_are_kept(tmp_path: Path) -> None:
    def row(name: str, measured: str) -> dict[str, str]:
        return {"row": name, "measured": measured}

    write(tmp_path, [row("R1", "old"), row("R3", "old")], 1.0)
    write(tmp_path, [row("R3", "new"), row("R2", "new")], 1.0)
    found = json.loads((tmp_path / "reliability.json").read_text(encoding="utf-8"))["rows"]
    assert found == [row("R1", "old"), row("R2", "new"), row("R3", "new")]
    write(tmp_path, [row("R2", "small")], 0.1)
    assert json.loads((tmp_path / "reliability.json").read_text(encoding="utf-8"))["rows"] == [row("R2", "small")]


def test_rows_are_selected_by_name() -> None:
    assert [row.name for row in selected("R3, R1")] == ["R1", "R3"]
    assert len(selected("")) == len(ROWS) == 15
    with pytest.raises(SystemExit, match="no row R99"):
        selected("R99")


def test_the_documentation_has_the_committed_result() -> None:
    """`python bench/reliability.py --markdown bench/results/reliability.json` prints the table."""
    path = BENCH / "results" / "reliability.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["scale"] == 1
    committed = [(row["row"], row["done"], row["promised"]) for row in record["rows"]]
    assert committed == [(row.name, row.done, row.promised) for row in ROWS], "run make reliability"
    assert [row["row"] for row in record["rows"] if not row["passed"]] == []
    page = (BENCH.parent / "docs" / "reference" / "reliability.md").read_text(encoding="utf-8")
    assert markdown(path) in page
