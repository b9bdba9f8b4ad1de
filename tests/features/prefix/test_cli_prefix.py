"""`knapcache prefix`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from knapcache.cli.main import main
from knapcache.lab.traces.sessions import COLUMNS

Captured = pytest.CaptureFixture[str]
FIELDS = ["rule", "requests", "input_tokens", "bill", "ratio"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three turns a minute apart, and one request of another session."""
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    rows = [
        "0,s,0,-1,0,2001,9,1100,text,m",
        "60,s,1,0,2001,4003,9,1100,tool,m",
        "120,s,2,1,4003,8005,9,1100,tool,m",
        "130,t,0,-1,0,3000,9,0,text,m",
    ]
    path.write_text("\n".join((",".join(COLUMNS), *rows)) + "\n")
    return str(path)


def test_a_table_a_file_and_a_figure(trace: str, tmp_path: Path, capsys: Captured) -> None:
    out, plot = tmp_path / "rows.json", tmp_path / "ratio.png"
    assert main(["prefix", trace, "--json", str(out), "--plot", str(plot)]) == 0
    printed, error = capsys.readouterr()
    assert error == ""
    text = " ".join(printed.split())  # lines end with the terminal's width
    assert text.startswith("4 requests in 0.0 hours with 17,009 input tokens. Tariff anthropic, which honours")
    assert text.endswith(f"{plot} {out}")
    assert plot.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(out.read_text())
    assert [row["rule"] for row in rows] == ["none", "last-5m", "last-1h", "system2-5m", "system2-1h", "learned"]
    assert all(list(row) == FIELDS for row in rows)
    assert {(row["requests"], row["input_tokens"]) for row in rows} == {(4, 17_009)}
    bills = {row["rule"]: row["bill"] for row in rows}
    assert bills["none"] == 17_009
    assert bills["last-5m"] == pytest.approx(1.25 * 8005 + 0.1 * (2001 + 4003) + 1.25 * 3000)
    assert bills["last-1h"] == pytest.approx(2.0 * 8005 + 0.1 * (2001 + 4003) + 2.0 * 3000)
    assert bills["system2-1h"] == pytest.approx(bills["last-1h"])
    assert all(row["ratio"] == pytest.approx(row["bill"] / 17_009) for row in rows)
    shown = {line.split()[0]: line.split()[-1] for line in printed.splitlines() if line.strip()}
    assert shown["last-5m"] == f"{bills['last-5m'] / 17_009:.4g}"


def test_json_on_stdout_replaces_the_table(trace: str, capsys: Captured) -> None:
    assert main(["prefix", trace, "--rules", "learned, last-30m", "--tariff", "openai-5.6", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["rule"] for row in rows] == ["learned", "last-30m"]


def test_a_provider_that_does_not_honour_upgrades(trace: str, capsys: Captured) -> None:
    assert main(["prefix", trace, "--rules", "learned", "--no-upgrade"]) == 0
    assert "which does not honour upgrades" in " ".join(capsys.readouterr().out.split())
    assert main(["prefix", trace, "--rules", "learned", "--tariff", "openai-5.6"]) == 0
    assert "upgrades" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--rules last-5m,first-5m", "unknown rule 'first-5m': allowed with anthropic are none, last-5m, last-1h, "),
        ("--rules last-5m --tariff openai-5.6", "unknown rule 'last-5m': allowed with openai-5.6 are none, last-30m, "),
        ("--rules none,none", "rule 'none' is named twice"),
        ("--tariff azure", "unknown tariff 'azure': allowed are anthropic, openai-5.6"),
        ("--json /nowhere/rows.json", "cannot write to /nowhere/rows.json: No such file or directory"),
        ("--plot /nowhere/a.png", "cannot write to /nowhere/a.png: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(options: str, message: str, trace: str, capsys: Captured) -> None:
    assert main(["prefix", trace, *options.split()]) == 2
    printed, error = capsys.readouterr()
    assert (printed, error.count("\n")) == ("", 1)
    assert message in error


def test_a_broken_trace_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "t.csv"
    file.write_text(",".join(COLUMNS) + "\n0,s,0,-1,0,many,9,0,text,m\n")
    assert main(["prefix", str(file)]) == 2
    error = capsys.readouterr().err
    assert error == f"knapcache: error: {file}, line 2: input_tokens must be a whole number, not 'many'\n"
