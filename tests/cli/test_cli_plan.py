"""`knapcache plan`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from knapcache.cli.main import main
from knapcache.lab.synthetic import Workload
from tests.support.commands import error_of, write_log

Captured = pytest.CaptureFixture[str]
QUICK = ["--policy", "lru,gdsf-cost", "--jobs", "1"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.csv"
    return write_log(path, Workload(queries=300, rounds=4000), np.arange(4000) * 43.2)


def test_plan_prints_a_summary_and_writes_a_report(log: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "new" / "report"
    assert main(["plan", str(log), *QUICK, "-o", str(out), "--json", str(tmp_path / "also.json")]) == 0
    printed, error = capsys.readouterr()
    assert error == ""
    lines = printed.splitlines()
    assert lines[0].startswith("4,000 requests for ")
    assert " in 2 days, " in lines[0]
    assert sum(line.startswith(" ") and line.rstrip().count(" %") == 1 for line in lines) == 10  # capacities
    assert " ".join(lines).count("Recommended: ") == 1
    assert "On this log of 2 days it saves " in printed
    assert " a day, between " in printed
    names = ["plan.html", "plan.png", "plan.json"]
    assert lines[-4:] == [*(str(out / name) for name in names), str(tmp_path / "also.json")]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert (out / "plan.json").read_text() == (tmp_path / "also.json").read_text()


def test_json_on_stdout_is_reproducible(log: Path, capsys: Captured) -> None:
    arguments = ["plan", str(log), *QUICK, "--json", "-", "--sample", "2000", "--capacity", "10%..80%:3"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    record = json.loads(first)
    assert record["log"] == "log.csv"
    assert record["slices"] == 4
    assert len(record["rows"]) == 6
    assert all(row["saved_error"] >= 0 for row in record["rows"])
    assert main(arguments) == 0
    assert capsys.readouterr().out == first


def test_a_tiny_log_without_times(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "log.csv"
    path.write_text("prompt,bytes,usd\na,500,1\nb,600,2\na,500,1\n")
    mapping = ["--no-time", "--key-fields", "prompt", "--size", "bytes", "--cost", "usd"]
    assert main(["plan", str(path), *mapping, "--policy", "lru", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "without times" in printed
    printed = " ".join(printed.split())
    assert "it saves $0.900, 90 % of the largest possible saving" in printed
    assert "No projection: the log has no times." in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--policy nonsense", "unknown policy 'nonsense'"),
        ("--policy lru,lru", "policy 'lru' is named twice"),
        ("--capacity many", "capacity 'many' cannot be read"),
        ("--capacity 10%..", "capacity '' cannot be read"),
        ("--capacity 50%..10%", "range '50%..10%' must be increasing"),
        ("--capacity 1..10:1", "must have 2 to 100 capacities"),
        ("--capacity 1..10:x", "must have 2 to 100 capacities"),
        ("--capacity 1GB..1%", "must be increasing"),
        ("--capacity 0..5", "must be at least 1"),
        ("--sample few", "sample must be auto, off or a number of requests"),
        ("--sample 1", "the sample has a slice without requests"),
        ("--jobs 0", "jobs must be at least 1, not 0"),
        ("--seed -1", "seed must not be negative"),
        ("--key-fields prompt", "has no column 'prompt'"),
    ],
)
def test_bad_input(options: str, message: str, log: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    assert message in error_of("plan", log, *options.split(), "-o", out, capsys=capsys)
    assert list(tmp_path.iterdir()) == []


def test_unusable_paths(log: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").write_text("precious")
    for name in ("file", "file/below"):
        assert "cannot write to" in error_of("plan", log, "-o", tmp_path / name, capsys=capsys)
    assert "cannot write to" in error_of("plan", log, "--json", tmp_path / "no" / "plan.json", capsys=capsys)
    assert "directory name must not be empty" in error_of("plan", log, "-o", "", capsys=capsys)
    assert (tmp_path / "file").read_text() == "precious"
    (tmp_path / "empty").write_text("")
    assert "is empty" in error_of("plan", tmp_path / "empty", capsys=capsys)
    (tmp_path / "header.csv").write_text("time,key,size,cost\n")
    assert "requests" in error_of("plan", tmp_path / "header.csv", capsys=capsys)
