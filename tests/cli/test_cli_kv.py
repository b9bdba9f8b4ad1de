"""`knapcache kv`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from knapcache.cli.main import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A system prompt of one block, and three prompts in turns: LRU of three blocks finds only the first block."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    rows = (
        {"timestamp": k, "input_length": 1536, "output_length": 1, "hash_ids": [0, 1 + 2 * (k % 3), 2 + 2 * (k % 3)]}
        for k in range(9)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_table_a_file_and_a_figure(trace: str, tmp_path: Path, capsys: Captured) -> None:
    out, plot = tmp_path / "rows.json", tmp_path / "found.png"
    assert main(["kv", trace, "--capacity", "3,100%", "--json", str(out), "--plot", str(plot)]) == 0
    printed, error = capsys.readouterr()
    assert error == ""
    text = " ".join(printed.split())
    assert text.startswith("9 requests with 27 full blocks of 512 tokens, of which 7 are distinct.")
    assert text.endswith(f"{plot} {out}")
    assert plot.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(out.read_text())
    assert [list(row) for row in rows] == [["policy", "capacity", "tokens_found", "blocks_written"]] * 10
    found = {(row["policy"], row["capacity"]): row for row in rows}
    assert found["lru", 3]["tokens_found"] == pytest.approx(8 / 27)
    assert found["lru", 7] == {"policy": "lru", "capacity": 7, "tokens_found": 20 / 27, "blocks_written": 7}
    assert found["adaptive", 7]["tokens_found"] == found["min", 7]["tokens_found"] == 20 / 27
    assert found["min", 3]["blocks_written"] is None


def test_json_on_stdout_replaces_the_table(trace: str, capsys: Captured) -> None:
    assert main(["kv", trace, "--policy", "s3-fifo, lru", "--capacity", "3", "--json", "-"]) == 0
    assert [row["policy"] for row in json.loads(capsys.readouterr().out)] == ["s3-fifo", "lru", "min"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "lru,fifo"], "unknown policy 'fifo'"),
        (["--capacity", "much"], "capacity 'much' cannot be read"),
        (["--capacity", "1%"], "capacity '1%' of a working set of 7 is 0; it must be at least 1"),
        (["--block", "500"], "has blocks of 512 tokens: --block must be a multiple of it, not 500"),
        (["--plot", "/nowhere/found.png"], "cannot write to /nowhere/found.png"),
    ],
)
def test_errors_are_one_line(trace: str, arguments: list[str], message: str, capsys: Captured) -> None:
    assert main(["kv", trace, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("knapcache: error: ")
    assert message in error
    assert error.count("\n") == 1
