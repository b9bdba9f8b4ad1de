"""`knapcache replay`, as a user runs it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache.cli.main import main
from knapcache.lab.synthetic import Workload
from tests.support.commands import COMMAND, error_of, write_log

Captured = pytest.CaptureFixture[str]
FIELDS = ["policy", "capacity", "requests", "hits", "miss_cost", "total_cost", "cost_ratio", "peak_size"]
FIELDS += ["oracle_calls", "seconds", "hits_error", "cost_ratio_error", "rate"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    return write_log(path, Workload(queries=30, rounds=1000), np.arange(1000.0))


def rows(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    for row in found:
        assert list(row) == FIELDS
        row.pop("seconds")
    return found


def test_json_on_stdout_replaces_the_table(trace: Path, capsys: Captured) -> None:
    arguments = ["replay", str(trace), "--policy", "lru, static", "--capacity", "10%,30%,60", "--json"]
    done = subprocess.run([*COMMAND, *arguments, "--jobs", "2"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = rows(done.stdout)
    assert [r["policy"] for r in found] == ["lru", "static"] * 3
    assert found[4]["capacity"] == 60
    assert all(r["requests"] == 1000 and r["hits"] > 0 for r in found)
    assert main([*arguments, "--jobs", "1"]) == 0
    assert rows(capsys.readouterr().out) == found


def test_a_table_on_stdout_and_a_json_file(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "rows.json"
    arguments = ["replay", str(trace), "--policy", "lru", "--capacity", "50%", "--jobs", "1", "--json", str(out)]
    assert main(arguments) == 0
    printed, error = capsys.readouterr()
    assert error == ""
    assert printed.splitlines()[-1] == str(out)
    (row,) = rows(out.read_text())
    shown = next(line.split() for line in printed.splitlines() if "lru" in line.split())
    assert shown[:4] == [str(row["capacity"]), "B", "lru", str(row["hits"])]
    assert printed.startswith("1,000 requests for 30 keys in 16.6 minutes, working set ")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_field_options_units_and_skipped_lines(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "log.csv"
    path.write_text("prompt,bytes,usd\na,500,1\nb,600,-1\nb,600,2\na,500,1\nc,x,1\nb,600,2\n")
    mapping = ["--no-time", "--key-fields", "prompt", "--size", "bytes", "--cost", "usd"]
    common = ["replay", path, "--policy", "lru", "--capacity", "1.1kB", *mapping, "--json", "-", "--jobs", "1"]
    assert "log.csv, line 3: cost must be" in error_of(*common, capsys=capsys)
    assert main([*map(str, common), "--on-error", "skip"]) == 0
    printed, error = capsys.readouterr()
    first = "line 3: cost must be finite and not negative, not -1.0"
    assert error == f"knapcache: skipped 2 broken lines of {path}, the first: {first}\n"
    (row,) = rows(printed)
    expected = {"capacity": 1100, "requests": 4, "hits": 2, "miss_cost": 3.0, "total_cost": 6.0}
    assert expected.items() <= row.items()


def test_costs_from_prices(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "calls.jsonl"
    usage = {"prompt_tokens": 1000, "completion_tokens": 100}
    line = json.dumps({"request": {"model": "m", "input": "Hi"}, "response": {"output": "Ho", "usage": usage}})
    path.write_text(f"{line}\n{line}\n")
    common = ["replay", path, "--policy", "lru", "--capacity", "100%", "--json", "-", "--jobs", "1"]
    assert "--prices auto" in error_of(*common, capsys=capsys)
    for wrong in ("5", "1,2,3", "a,b", "nan,1", "-1,2"):
        assert "prices must be" in error_of(*common, f"--prices={wrong}", capsys=capsys)
    assert main([*map(str, common), "--prices", "2.5,10"]) == 0
    (row,) = rows(capsys.readouterr().out)
    assert (row["hits"], row["miss_cost"]) == (1, pytest.approx(0.0035))


def test_a_sample_of_a_synthetic_trace(capsys: Captured) -> None:
    name = "synthetic:queries=3000,rounds=50000,sizes=lognormal:900"
    common = ["replay", name, "--policy", "lru,pfoo", "--capacity", "20%", "--jobs", "1"]
    assert main([*common, "--json", "-"]) == 0
    exact = rows(capsys.readouterr().out)
    assert [(row["rate"], row["cost_ratio_error"], row["hits_error"]) for row in exact] == [(1.0, None, None)] * 2
    for _ in range(2):
        assert main([*common, "--sample", "20000", "--json", "-"]) == 0
        found = rows(capsys.readouterr().out)
        for row, truth in zip(found, exact, strict=True):
            assert row["requests"] == 50_000
            assert row["total_cost"] == pytest.approx(truth["total_cost"])
            assert row["rate"] == pytest.approx(0.4, rel=0.2)
            assert abs(row["cost_ratio"] - truth["cost_ratio"]) < 4 * row["cost_ratio_error"] < 0.2
        assert [row["hits_error"] is None for row in found] == [False, True], "a bound has no hits"
    assert main([*common, "--sample", "20000"]) == 0
    printed = capsys.readouterr().out
    assert "50,000 requests for about 2,989 keys without times" in printed
    assert "requests in 4 slices, one key in 2." in printed
    assert f"{found[0]['cost_ratio']:.4f}" in printed
    assert f"{found[0]['cost_ratio_error']:.4f}" in printed


def test_a_synthetic_trace_has_no_fields(capsys: Captured) -> None:
    common = ["replay", "synthetic:rounds=10", "--policy", "lru", "--capacity", "5"]
    for more in (["--key-fields", "prompt"], ["--format", "csv"]):
        assert "is generated: other files and options" in error_of(*common, *more, capsys=capsys)
    assert "is generated" in error_of(*common[:2], *common[1:], capsys=capsys)
    assert "'speed=1' of" in error_of("replay", "synthetic:speed=1", *common[2:], capsys=capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--policy nonsense --capacity 10%", "unknown policy 'nonsense'"),
        ("--policy lru,lru --capacity 10%", "policy 'lru' is named twice"),
        ("--policy lru, --capacity 10%", "unknown policy ''"),
        ("--policy lru --capacity many", "capacity 'many' cannot be read"),
        ("--policy lru --capacity 10%,", "capacity '' cannot be read"),
        ("--policy lru --capacity 0.0001%", "must be at least 1"),
        ("--policy lru --capacity 0", "must be at least 1"),
        ("--policy lru", "--capacity"),
        ("--capacity 5", "--policy"),
        ("--policy lru --capacity 5 --jobs 0", "jobs must be at least 1, not 0"),
        ("--policy lru --capacity 5 --seed -1", "seed must not be negative"),
        ("--policy lru --capacity 5 --sample few", "sample must be auto, off or a number of requests"),
        ("--policy lru --capacity 5 --format xml", "'xml'"),
        ("--policy lru --capacity 5 --on-error ignore", "'ignore'"),
        ("--policy lru --capacity 5 --key-fields prompt", "has no column 'prompt'"),
        ("--policy lru --capacity 5 --prices 1,2", "--prices does not apply"),
        ("--policy lru --capacity 5 --cost a --cost-each 2", "only one of"),
        ("--policy lru --capacity 5 --time t --no-time", "only one of"),
    ],
)
def test_bad_input(options: str, message: str, trace: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "rows.json"
    out.write_text("precious")
    assert message in error_of("replay", trace, *options.split(), "--json", out, capsys=capsys)
    assert out.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]


def test_an_unusable_json_path_is_reported(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    common = ["replay", trace, "--policy", "lru", "--capacity", "5", "--json"]
    assert "cannot write to" in error_of(*common, tmp_path / "no" / "rows.json", capsys=capsys)
    assert "it is a directory" in error_of(*common, tmp_path, capsys=capsys)
    (tmp_path / "file").write_text("precious")
    assert "cannot write to" in error_of(*common, tmp_path / "file" / "rows.json", capsys=capsys)
    assert (tmp_path / "file").read_text() == "precious"


def test_links_and_pipes_are_written_through(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    link, pipe = tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to("rows.json")
    os.mkfifo(pipe)  # not a device: a fault would replace it
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    common = ["replay", str(trace), "--policy", "lru", "--capacity", "5", "--jobs", "1", "--json"]
    for target in (link, pipe):
        assert main([*common, str(target)]) == 0
    capsys.readouterr()
    assert link.is_symlink()
    assert len(rows((tmp_path / "rows.json").read_text())) == 1
    assert pipe.is_fifo()
    assert len(rows(os.read(reader, 1 << 16).decode())) == 1
    os.close(reader)


def test_unreadable_traces(tmp_path: Path, capsys: Captured) -> None:
    common = ["--policy", "lru", "--capacity", "5"]
    assert "nowhere.csv: No such file" in error_of("replay", tmp_path / "nowhere.csv", *common, capsys=capsys)
    assert "is a directory without files" in error_of("replay", tmp_path, *common, capsys=capsys)
    (tmp_path / "empty").write_text("")
    assert "is empty" in error_of("replay", tmp_path / "empty", *common, capsys=capsys)


def test_help_names_every_format(capsys: Captured) -> None:
    from knapcache.lab.traces import FORMATS

    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    text = capsys.readouterr().out
    for name, one in FORMATS.items():
        assert f"  {name} " in text
        assert one.summary in text
    assert "the sum over all keys of the largest size of each key" in " ".join(text.split())
