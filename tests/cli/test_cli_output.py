"""The output of every command fits a terminal of 80 columns, and tables are never truncated."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache import Cache, Reply
from knapcache.cli.main import main
from knapcache.cli.output import print_table, print_text
from knapcache.lab.synthetic import Workload
from tests.support.commands import COMMAND, write_log

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days of requests with large sizes and small costs, so that columns are wide."""
    path, workload = tmp_path_factory.mktemp("log") / "log.csv", Workload(queries=400, rounds=6000)
    return write_log(path, workload, np.arange(6000) * 28.8, header="timestamp,key,size,usd", size=123_457, cost=1e-4)


def lines_of(*words: str, capsys: Captured) -> list[str]:
    """Run a command and return the lines of its output, all of which must fit."""
    assert main(list(words)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    for line in lines:
        assert len(line) <= 80 or "/" in line.split()[-1], line  # paths are not broken
    return lines


def test_plan(log: Path, capsys: Captured) -> None:
    words = ["plan", str(log), "--cost", "usd", "--jobs", "1"]
    text = "\n".join(lines_of(*words, capsys=capsys))
    assert "$" in text
    sampled = "\n".join(lines_of(*words, "--sample", "3000", "--capacity", "10%..100%:3", capsys=capsys))
    assert "±" in sampled
    assert sampled.count("capacity") == 2, "one table, and a sentence"


def test_replay(log: Path, capsys: Captured) -> None:
    words = ["replay", str(log), "--jobs", "1", "--cost", "usd"]
    policies = "lru,gdsf-cost-history,vsocb-lazy,static,pfoo"
    lines = lines_of(*words, "--policy", policies, "--capacity", "1%,50%", capsys=capsys)
    assert sum("$" in line for line in lines) == 11  # ten rows and a sentence


def test_policies_and_settings(capsys: Captured) -> None:
    lines_of("policies", capsys=capsys)
    lines_of("serve", "--show-settings", capsys=capsys)


def test_inspect_and_purge(tmp_path: Path, capsys: Captured) -> None:
    path = str(tmp_path / "answers.db")
    with Cache("4MiB", path=path, cost="seconds", shadows=(), ttl=86_400) as cache:
        for k in range(4):
            call = lambda: Reply(b"x" * 3000, "gpt-4o-mini-2024-07-18", cost=0.0123456)  # noqa: E731
            request = {"model": "m", "messages": [k]}
            cache.fetch("chat/completions", request, call, namespace=f"{k % 2:032x}")
    for words in (["inspect", path], ["purge", path, "--all", "--dry-run"]):
        assert "gpt-4o-mini-2024-07-18" in "\n".join(lines_of(*words, capsys=capsys))
    (key, *_) = [line.split()[0] for line in lines_of("inspect", path, capsys=capsys) if "gpt-4o" in line]
    lines_of("inspect", path, "--key", key, capsys=capsys)


def test_a_table_that_is_too_wide_is_printed_in_parts(capsys: Captured) -> None:
    rows = [{"name": f"row {k}", **{f"column {j}": 10**12 + j for j in range(9)}} for k in range(2)]
    print_table(rows, title="numbers")
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("row 1") == 3, "three columns in each part"
    assert out.count("numbers") == 1
    for j in range(9):
        assert out.count(f"{10**12 + j:,}") == 2, "no number is truncated"


def test_a_pipe_without_columns_is_not_wrapped(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    print_text("word " * 40)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_log_of_seconds_is_not_projected(tmp_path: Path, capsys: Captured) -> None:
    """Six seconds of calls state what they saved in six seconds, in dollars, and nothing per day."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 100}
    calls: list[dict[str, Any]] = [
        {
            "request": {"model": "gpt-4o", "messages": [{"role": "user", "content": str(k % 3)}]},
            "response": {"object": "chat.completion", "model": "gpt-4o", "usage": usage},
            "created": 1_700_000_000 + k,
        }
        for k in range(7)
    ]
    calls.append({**calls[0], "request": {"model": "our-own"}, "response": {"model": "our-own", "usage": usage}})
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(call) + "\n" for call in calls))
    assert main(["plan", str(path), "--prices", "auto", "--policy", "lru", "--jobs", "1"]) == 0
    out, error = capsys.readouterr()
    text = " ".join(out.split())
    assert text.startswith("7 requests for 3 keys in 6 seconds, ")
    assert "Without a cache they cost $0.0245." in text
    assert "On this log of 6 seconds it saves $" in text
    assert "No projection: the log spans 6 seconds, which is less than a day." in text
    assert "a day," not in text
    assert error == "knapcache: 1 line left out: call of model 'our-own', which has no known price\n"


def test_a_long_plan_shows_its_progress_on_a_terminal(log: Path) -> None:
    """Through a pseudo-terminal of 80 columns, as a user sees it."""
    parent, child = pty.openpty()
    words = ["plan", str(log), "--cost", "usd", "--policy", "lru", "--capacity", "10%..50%:4", "--jobs", "1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.Popen([*COMMAND, *words], stdin=child, stdout=subprocess.PIPE, stderr=child, env=environment)
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(parent, 1 << 16)
        except OSError:  # the terminal is closed
            break
        if not part:
            break
        shown += part
    os.close(parent)
    out = done.communicate(timeout=60)[0].decode()
    assert done.returncode == 0
    assert "it saves $" in out
    assert b"replay" in shown
    assert b"0:00:0" in shown, "the time that is left"
