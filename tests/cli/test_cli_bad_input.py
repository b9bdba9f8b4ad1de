"""Bad input: one line on stderr, exit code 2, no files left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import error_of

SMALL = ["--quick", "--rounds", "60", "--repeats", "1", "--queries", "10", "--jobs", "1"]
EXAMPLES = "uniform:10, lognormal:5.5, proportional"

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("figure-1", "--policy nonsense", "unknown policy 'nonsense': `knapcache policies` lists them"),
        ("figure-1", "--policy lru,vsobc", "unknown policy 'vsobc': did you mean vsocb?"),
        ("figure-1", "--policy lru,,lfu", "unknown policy ''"),
        ("figure-1", "--capacity 0", "capacity must be at least 1, not 0"),
        ("figure-1", "--capacity -5", "capacity must be at least 1, not -5"),
        ("figure-1", "--capacity many", "'many'"),
        ("figure-1", "--alpha 0", "alpha must be above 0 and finite, not 0.0"),
        ("figure-1", "--alpha nan", "alpha must be above 0 and finite, not nan"),
        ("figure-1", "--gamma 2", "gamma must be between 0 and 1, not 2.0"),
        ("figure-1", "--gamma nan", "gamma must be between 0 and 1, not nan"),
        ("figure-1", "--noise -1", "noise must be finite and not negative, not -1.0"),
        ("figure-1", "--noise nan", "noise must be finite and not negative, not nan"),
        ("figure-1", "--sizes uniform:0", "sizes 'uniform:0'"),
        ("figure-1", "--sizes nonsense", f"sizes 'nonsense' cannot be read; examples: {EXAMPLES}"),
        ("figure-1", "--arrivals nonsense", "arrivals 'nonsense' cannot be read"),
        ("figure-1", "--arrivals zipf:", "arrivals 'zipf:' cannot be read"),
        ("figure-1", "--costs uniform:-1:2", "costs 'uniform:-1:2'"),
        ("figure-1", "--costs uniform:2:1", "costs 'uniform:2:1'"),
        ("figure-1", "--repeats 0", "repeats must be at least 1, not 0"),
        ("figure-1", "--rounds 0", "rounds must be at least 1, not 0"),
        ("figure-1", "--queries 0", "queries must be at least 1, not 0"),
        ("figure-1", "--seed -1", "seed must not be negative, not -1"),
        ("figure-1", "--seed 1.5", "'1.5'"),
        ("figure-1", "--jobs 0", "jobs must be at least 1, not 0"),
        ("figure-1", "--colour red", "unrecognized arguments: --colour red"),
        ("alpha", "--alphas 0.5,0", "alpha must be above 0"),
        ("alpha", "--alphas 0.5,", "--alphas"),
        ("confidence", "--gammas 0,2", "gamma must be between 0 and 1, not 2.0"),
        ("approximate", "--betas -1", "beta must not be negative"),
        ("drift", "--changes -1", "changes must be at least 0, not -1"),
        ("drift", "--changes 60", "changes must be fewer than the 60 rounds, not 60"),
        ("one-hits", "--shares 1", "must be at least 0 and below 1, not 1.0"),
        ("table-2", "--units 8,0", "unit must be at least 1, not 0"),
        ("table-2", "--calls nowhere.csv", "calls must be one of smollm2-135m-cpu, t5-3b-h200 or a CSV"),
        ("table-2", "--queries 101", "queries must be at most the 100 prompts of t5-3b-h200, not 101"),
        ("figure-2", "--unit 0", "unit must be at least 1, not 0"),
        ("figure-2", "--arrivals nonsense", "arrivals 'nonsense' cannot be read"),
        ("table-2", "--rounds 0", "rounds must be at least 1, not 0"),
        ("table-2", "--arrivals nonsense", "arrivals 'nonsense' cannot be read"),
        ("figure-1", "--sizes uniform:1e30", "sizes 'uniform:1e30'"),
        ("figure-1", "--sizes lognormal:1e300", "sizes 'lognormal:1e300'"),
        ("figure-1", "--arrivals zipf:-1e6", "arrivals 'zipf:-1e6'"),
        ("figure-1", "--policy lru,lru", "lru"),  # would count as more repeats
        ("long-run", "--fit-from 100", "fit_from"),  # more than half of the 60 rounds
        ("drift", "--capacity 1000000", "not everything fits"),
        ("alpha", "--policy lru", "lru has no alpha"),
        ("figure-1", "--alpha 0 --policy lru", "alpha"),
    ],
)
def test_bad_settings_of_experiments(name: str, options: str, message: str, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    assert message in error_of("experiment", name, *SMALL, "-o", out, *options.split(), capsys=capsys)
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.parametrize("command", [["why", "FILE", "cache.db"], ["route", "test", "FILE"]])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"time,key\n", "it is not JSON: Expecting value at line 1, column 1"),
        (b'{"a": \xff}', "it is not text in UTF-8 (byte 7)"),
    ],
)
def test_a_request_that_cannot_be_read(
    command: list[str], content: bytes, reason: str, tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "request.json"
    file.write_bytes(content)
    words = [str(file) if word == "FILE" else word for word in command]
    assert error_of(*words, capsys=capsys) == f"knapcache: error: cannot read the request from {file}: {reason}\n"


@pytest.mark.parametrize("below", ["", "sub", "sub/deeper"])
def test_an_output_directory_that_is_a_file(below: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").write_text("precious")
    out = tmp_path / "file" / below
    assert f"cannot write to {out}" in error_of("experiment", "figure-1", *SMALL, "-o", out, capsys=capsys)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_directory_without_permission(tmp_path: Path, capsys: Captured) -> None:
    tmp_path.chmod(0o500)
    assert "Permission denied" in error_of("experiment", "figure-1", *SMALL, "-o", tmp_path, capsys=capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["polices"], "'polices'"),
        (["policies", "--nonsense"], "--nonsense"),
        (["experiment", "figure-7", "-o", "out"], "'figure-7'"),
        (["experiment", "figure-1", "--quick"], "-o"),
    ],
)
def test_unknown_commands_and_missing_arguments(arguments: list[str], message: str, capsys: Captured) -> None:
    assert message in error_of(*arguments, capsys=capsys)


HEAD = "prompt,sample,prompt_tokens,answer_tokens,seconds\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "cannot read"),
        (b"", "must have the columns prompt, sample"),
        (b"prompt,seconds\n1,2\n", "must have the columns prompt, sample"),
        (HEAD.encode(), "has no calls"),
        (f"# model: x\n{HEAD}1,0,5,many,1\n".encode(), "call 1: tokens and seconds must be numbers"),
        (f"{HEAD}1,0,5,6,1\n1,1,5\n".encode(), "call 2: tokens and seconds must be numbers"),
        (f"{HEAD}1,0,5,6,0\n".encode(), "call 1: tokens and seconds must be above 0"),
        (f"{HEAD}1,0,5,6,nan\n".encode(), "call 1: tokens and seconds must be above 0"),
    ],
)
def test_bad_tables_of_timed_calls(content: bytes, message: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "calls.csv").write_bytes(content)
    out = tmp_path / "out"
    arguments = ["experiment", "figure-2", "--quick", "--calls", str(tmp_path / "calls.csv"), "-o", str(out)]
    assert message in error_of(*arguments, capsys=capsys)
    assert not out.exists() or list(out.iterdir()) == []


def test_an_error_in_a_worker_process_is_reported_in_one_line(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("knapcache")
    arguments = [*SMALL, "--jobs", "2", "--repeats", "2", "--alpha", "0", "-o", str(tmp_path)]
    done = subprocess.run([command, "experiment", "figure-1", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "knapcache: error: alpha must be above 0 and finite, not 0.0\n"
    assert list(tmp_path.iterdir()) == []
