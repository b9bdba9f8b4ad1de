"""`knapcache semantic`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from knapcache.cli.main import main

Captured = pytest.CaptureFixture[str]
FIELDS = ["requests", "served", "wrong", "labels", "certified", "seconds"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two questions about the same thing, an exact repeat and another question."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    texts = [
        ("What is the capital of Peru?", 1),
        ("Which city is the capital of Peru?", 1),
        ("What is the capital of Peru?", 1),
        ("How do I cook rice?", 2),
    ]
    path.write_text("".join(json.dumps({"text": text, "intent": intent}) + "\n" for text, intent in texts))
    return str(path)


def test_tables_a_file_and_a_figure(log: str, tmp_path: Path, capsys: Captured) -> None:
    out, plot = tmp_path / "result.json", tmp_path / "result.png"
    assert main(["semantic", log, "--truth", "intent", "--json", str(out), "--plot", str(plot)]) == 0
    printed, error = capsys.readouterr()
    assert error == ""
    text = " ".join(printed.split())
    assert text.startswith("4 requests in 1 frame: 1 exact repeat, 0 that are never matched, and 1 with a match")
    assert "Served by similarity: none. 1 label did not certify an error of 1 %." in text
    assert text.endswith(f"{plot} {out}")
    assert plot.read_bytes().startswith(b"\x89PNG")
    result = json.loads(out.read_text())
    assert list(result)[:6] == FIELDS
    assert [result[name] for name in FIELDS[:5]] == [4, 0, 0, 1, None]
    assert len(result["levels"]) == 5


def test_a_report_names_valuable_and_dangerous_wordings(tmp_path: Path, capsys: Captured) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "report.md"
    rows = [
        ("What is the capital of Peru?", 1, 2.0),
        ("Which city is the capital of Peru?", 1, 3.0),
        ("How do I cook rice?", 2, 1.0),
        ("How do I sow rice?", 3, 1.0),
    ]
    log.write_text(
        "".join(json.dumps({"text": text, "intent": truth, "cost": cost}) + "\n" for text, truth, cost in rows)
    )
    assert main(["semantic", str(log), "--truth", "intent", "--report", str(out)]) == 0
    assert capsys.readouterr().out.strip().endswith(str(out))
    valuable, dangerous = out.read_text().split("## The most dangerous")
    assert "| What is the capital of Peru? | 1 time | 3 | Which city is the capital of Peru? | no label" in valuable
    assert "| How do I sow rice? | How do I cook rice? | 0." in dangerous
    assert "Peru" not in dangerous


def test_a_log_without_truth_says_that_nothing_is_certified(log: str, capsys: Captured) -> None:
    assert main(["semantic", log, "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["wrong"], result["labels"], result["candidates"]) == (None, 0, 1)
    assert main(["semantic", log]) == 0
    assert "neither a truth (--truth FIELD) nor answers" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--error 0", "the error must be above 0 and below 0.5, not 0.0"),
        ("--error 0.5", "the error must be above 0 and below 0.5, not 0.5"),
        ("--error much", "argument --error: invalid float value: 'much'"),
        ("--audit 2", "audit must be from 0 to 1, not 2.0"),
        ("--truth meaning", "line 1: meaning is missing"),
        ("--cost usd", "line 1: usd is missing"),
        ("--json /nowhere/a.json", "cannot write to /nowhere/a.json: No such file or directory"),
        ("/nowhere.jsonl", "cannot read /nowhere.jsonl: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(options: str, message: str, log: str, capsys: Captured) -> None:
    try:
        code = main(["semantic", *options.split(), *([] if options.startswith("/") else [log])])
    except SystemExit as stop:  # argparse
        code = int(stop.code or 0)
    printed, error = capsys.readouterr()
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert message in error
