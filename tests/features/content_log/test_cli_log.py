"""`knapcache log`: search, export and purge of a content log, as a user calls them."""

from __future__ import annotations

import contextlib
import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from knapcache.cli.main import main
from knapcache.features.content_log.file import ContentFile
from knapcache.lab.traces.base import ColumnRules
from knapcache.lab.traces.read import read_trace
from tests.support.content_lines import NOW, chat, write
from tests.support.programs import find_module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with contextlib.closing(ContentFile(tmp_path / "content.sqlite")) as file:
        write(
            file,
            chat("Where is the refund policy?", time=NOW - 7200, key="aa" * 32),
            chat("Where is the refund policy?", time=NOW - 3600, key="aa" * 32, outcome="hit"),
            chat("Who are you?", "\x1b[31m Nobody.", model="claude-x", tenant="b", key="bb" * 32),
            chat("Live?", outcome="bypass", key="", size=0, cost=0.0),
            chat("Fails", outcome="failed", status=500, size=0)._replace(payload=b""),
        )
    return tmp_path


def run(folder: Path, *words: str) -> int:
    return main(["log", *words, "--path", str(folder)])


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_search_prints_the_newest_lines_first(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(folder, "search", "refund", "policy") == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[::2]] == ["#2", "#1"]
    assert "hit  200  gpt-4o  acme  $0.010000 saved  12 tokens  0.500 s  aaaaaaaaaaaa" in printed[0]
    assert printed[1] == "    Be brief. Where is the refund policy?"


def test_a_search_fits_a_terminal_of_80_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(folder, "search", "refund", "--limit", "1") == 0
    first, rest, text = capsys.readouterr().out.splitlines()
    assert max(len(first), len(rest)) <= 80
    assert rest.startswith("    ")
    assert f"{first} {rest}".split()[-5:] == ["12", "tokens", "0.500", "s", "aaaaaaaaaaaa"]
    assert text == "    Be brief. Where is the refund policy?"


def test_a_full_search_prints_request_and_response(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "search", "refund", "--limit", "1", "--full") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("#2")
    assert '"content": "Where is the refund policy?"\n' in printed
    assert '"content": "Forty-two."\n' in printed


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), "54321"), (("--limit", "2"), "54"), (("--outcome", "hit"), "2"), (("--model", "claude-*"), "3"),
        (("--tenant", "b"), "3"), (("--since", "90m"), "5432"), (("--until", "90m"), "1"), (("nobod*",), "3"),
    ],
)  # fmt: skip
def test_conditions_select_lines(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], found: str
) -> None:
    assert run(folder, "search", *words, "--json") == 0
    assert "".join(str(json.loads(line)["id"]) for line in capsys.readouterr().out.splitlines()) == found


def test_an_exported_log_can_be_replayed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "log.jsonl"
    assert run(folder, "export", "--output", str(out)) == 0
    assert "3 lines written; 2 left out: not cacheable" in capsys.readouterr().err
    assert [line["key"][:2] for line in read_lines(out)] == ["aa", "aa", "bb"]
    trace = read_trace(out, ColumnRules(key=("key",), size="size", cost="cost"))
    assert trace.keys.tolist() == [0, 0, 1]
    assert trace.sizes.tolist() == [400, 400, 400]
    assert trace.costs.tolist() == [0.01, 0.01, 0.01]
    assert trace.times is not None
    assert trace.times.tolist() == pytest.approx([NOW - 7200, NOW - 3600, NOW])


def test_samples_of_evals_are_different_requests(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "export", "--format", "evals") == 0
    printed = capfd.readouterr()
    samples = [json.loads(line) for line in printed.out.splitlines()]
    assert samples[0] == {
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where is the refund policy?"},
        ],
        "ideal": "Forty-two.",
    }
    assert len(samples) == 3
    assert "1 left out: repeated; 1 left out: without a question or an answer in text" in printed.err


def test_a_parquet_file_can_be_replayed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    polars = find_module("polars", "the package polars")
    out = tmp_path / "log.parquet"
    assert run(folder, "export", "--format", "parquet", "--output", str(out)) == 0
    assert read_trace(out).keys.tolist() == [0, 0, 1]
    assert run(folder, "export", "--format", "parquet", "--output", str(out), "--tenant", "acme", "--all") == 0
    assert out.stat().st_mode & 0o077 == 0
    table = polars.read_parquet(out)
    assert table["outcome"].to_list() == ["miss", "hit", "bypass", "failed"]
    assert json.loads(table["request"][0])["model"] == "gpt-4o"
    assert table["response"][3] is None
    assert run(folder, "export", "--format", "parquet", "--output", str(out), "--tenant", "nobody") == 0
    assert polars.read_parquet(out).height == 0
    assert run(folder, "export", "--format", "parquet") == 2
    assert "--format parquet needs --output FILE" in capsys.readouterr().err


def test_a_purge_deletes_what_meets_every_condition(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "purge", "--tenant", "acme", "--before", "90m", "--dry-run") == 0
    assert run(folder, "purge", "--tenant", "acme", "--before", "90m") == 0
    assert run(folder, "purge", "--text", "refund") == 0
    assert run(folder, "purge", "--all") == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 line would be deleted", "1 line deleted", "1 line deleted", "3 lines deleted",
    ]  # fmt: skip


def test_a_time_is_a_date_or_an_age(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = datetime.datetime.fromtimestamp(NOW - 5000).isoformat()
    assert run(folder, "purge", "--before", before) == 0
    assert capsys.readouterr().out == "1 line deleted\n"
    assert run(folder, "search", "refund", "--tenant", "nobody") == 0
    assert capsys.readouterr().out == "No line meets every condition.\n"
    with pytest.raises(SystemExit):
        run(folder, "purge", "--before", "yesterday")
    assert "a time is a date such as 2026-01-31, with a time such as T12:00, or an age" in capsys.readouterr().err


def test_cut_texts_are_no_samples(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(ContentFile(tmp_path / "content.sqlite")) as file:
        write(file, chat("x" * 100_000))
    assert run(tmp_path, "export", "--format", "evals") == 0
    assert "1 left out: with texts that were cut" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("purge",), "give --all, or at least one of --text, --model, --tenant, --outcome, --before"),
        (("purge", "--all", "--tenant", "a"), "give --all, or at least one of"),
        (("search", "?"), "a search needs a letter or a digit, not '?'"),
        (("search", "--limit", "0"), "--limit must be at least 1, not 0"),
        (("export", "--output", "/proc/nowhere/file"), "cannot write to /proc/nowhere/file"),
    ],
)
def test_wrong_arguments_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], problem: str
) -> None:
    assert run(folder, *words) == 2
    assert capsys.readouterr().err.startswith(f"knapcache: error: {problem}")


def test_a_folder_without_a_log_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "search") == 2
    assert "content.sqlite does not exist: the setting content_log was never on" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
