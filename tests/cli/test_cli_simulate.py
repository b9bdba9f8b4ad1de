"""`knapcache simulate cluster`, as a user runs it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from knapcache.cli.main import build_parser, main
from knapcache.sim.synthetic import Workload

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("traces")
    for seed, name in enumerate(("one.csv", "two.csv")):
        _, drawn = Workload(queries=30, rounds=500).draw(np.random.default_rng(seed))
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["time", "key", "size", "cost"])
            columns = (np.arange(500), drawn.keys, drawn.sizes, drawn.costs)
            writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    return [str(folder / "one.csv"), str(folder / "two.csv")]


def run(*arguments: str) -> int:
    return main(["simulate", "cluster", *arguments, "--jobs", "1"])


def test_tables_and_files(traces: list[str], tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a narrower terminal shows a table in parts
    options = ["--proxies", "2,3", "--hits-late", "50", "--settles-late", "9", "--nursery", "5%"]
    out = tmp_path / "new" / "report"
    assert run(*traces, *options, "--policy", "lru", "--capacity", "10%,50%", "--out", str(out)) == 0
    printed, error = capsys.readouterr()
    assert error == ""
    lines = printed.splitlines()
    assert lines[-3:] == [str(out / f"cluster.{kind}") for kind in ("json", "csv", "png")]
    assert "nursery of 5 % of the capacity" in printed
    assert [line for line in lines if line.endswith("proxies")] == ["2 proxies", "3 proxies"]
    assert sum(line.split()[:1] == ["mean"] for line in lines) == 2
    rows = json.loads((out / "cluster.json").read_text())
    assert {row["trace"] for row in rows} == {"one.csv", "two.csv"}
    assert len((out / "cluster.csv").read_text().splitlines()) == 1 + len(rows)
    first = next(line.split() for line in lines if line.split()[:1] == ["one.csv,"])
    own = next(row for row in rows if row["design"] == "own")
    assert f"{100 * own['extra_cost']:+.2f}" in first


def test_json_on_stdout_replaces_the_table(traces: list[str], capsys: Captured) -> None:
    options = ["--policy", "lru", "--capacity", "60", "--design", "decider, nursery", "--json", "-"]
    assert run(traces[0], *options) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["design"] for row in rows] == ["shared", "decider", "nursery"]
    assert [row["hits_late"] for row in rows] == [None, 250, 250]
    assert [row["settles_late"] for row in rows] == [None, 25, 25]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--proxies ten", "proxies must be whole numbers, such as 10 or 3,10,50, not 'ten'"),
        ("--proxies 0", "proxies must be 1 to 1000, not 0"),
        ("--nursery 100%", "nursery must be from 0 % to less than 100 %, not 100 %"),
        ("--nursery much", "nursery 'much' cannot be read"),
        ("--hits-late -1", "hits_late must be at least 0 requests, not -1"),
        ("--settles-late x", "invalid int value: 'x'"),
        ("--design hash", "unknown design 'hash': did you mean hashed?"),
        ("--policy static", "policy 'static' knows the future"),
        ("--capacity 3 --proxies 4", "one.csv: a capacity of 3 cannot be divided among 4 proxies"),
        ("--jobs 0", "jobs must be at least 1, not 0"),
    ],
)
def test_bad_input_is_one_line(options: str, message: str, traces: list[str], capsys: Captured) -> None:
    try:
        code = main(["simulate", "cluster", traces[0], *options.split()])
    except SystemExit as stop:
        code = int(stop.code or 0)
    printed, error = capsys.readouterr()
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert message in error


def test_a_trace_named_twice(traces: list[str], capsys: Captured) -> None:
    assert run(traces[0], traces[0]) == 2
    assert "a trace is named twice" in capsys.readouterr().err


def test_the_defaults_are_the_settings_of_the_table_in_the_guide() -> None:
    args = build_parser(["simulate"]).parse_args(["simulate", "cluster", "trace.csv"])
    assert (args.proxies, args.nursery, args.policy) == ("3,10,50", "2%", "adaptive")
    row = f"(hits known {args.hits_late} requests late, answers {args.settles_late} late)"
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "cluster.md").read_text(encoding="utf-8")
    assert "| 3 proxies | 10 | 50 |" in guide
    assert row in guide
