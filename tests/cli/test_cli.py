"""The command line as a user runs it: policies, experiment, help, pipes, interrupts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image

from knapcache.cli.experiment import option_name
from knapcache.cli.main import build_parser, main
from knapcache.cli.options import RENAMED, with_new_names
from knapcache_experiments.catalogue import EXPERIMENTS
from tests.support.commands import allow_interrupts
from tests.support.timing import wait_until

COMMAND = Path(sys.executable).with_name("knapcache")
feature_case = partial(pytest.param, marks=pytest.mark.features)
# Names are a contract: scripts and result files use them.
POLICIES = [
    "adaptive",
    "vsocb",
    "vsocb-lazy",
    "vsocb-apx",
    "berkeley",
    "berkeley-multi",
    "offline",
    "lru",
    "lfu",
    "gdsf",
    "gdsf-cost",
    "gdsf-cost-history",
    "gdsf-cost-trial",
    "gds",
    "camp",
    "hyperbolic",
    "lhd",
    "lfu-da",
    "fifo",
    "sieve",
    "s3-fifo",
    "arc",
    "w-tinylfu",
    "horizon",
    "static",
    "belady",
    "pfoo",
]
IN_FIGURE_1 = {*POLICIES[1 : POLICIES.index("gdsf-cost") + 1], "static"}
NAMES = [
    "figure-1",
    "table-2",
    "figure-2",
    "errata",
    "confidence",
    "alpha",
    "long-run",
    "gaps",
    "scaling",
    "drift",
    "one-hits",
    "approximate",
    "live",
    "cluster",
]
FIELDS = ["policy", "regret_mean", "regret_se", "cost_mean", "cost_se", "oracle_calls", "peak_occupancy"]
SMALL = ["experiment", "figure-1", "--quick", "--rounds", "300", "--repeats", "2"]

Captured = pytest.CaptureFixture[str]


def run_installed(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False, **more)


def help_text(*arguments: str, capsys: Captured) -> str:
    """Return a help text without its line breaks."""
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--help"])
    assert stop.value.code == 0
    return " ".join(capsys.readouterr().out.split()).replace("- ", "-")  # argparse breaks lines at hyphens


def test_policies_as_json() -> None:
    done = run_installed("policies", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == POLICIES
    for row in rows:
        assert list(row) == ["name", "online", "summary", "paper"]
        assert row["summary"]
    assert {row["name"] for row in rows if not row["online"]} == {"offline", "static", "belady", "pfoo"}


@pytest.mark.parametrize(("columns", "last"), [("80", []), ("200", ["paper"])])
def test_policies_as_a_table(capsys: Captured, monkeypatch: pytest.MonkeyPatch, columns: str, last: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["policies"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == ["name", "online", "summary", *last]
    assert [line[0] for line in lines if len(line) > 2 and line[1] in ("yes", "no")] == POLICIES


def run_into_closed_pipe(*arguments: str) -> tuple[int, str]:
    """Return exit code and stderr of a command whose stdout is a pipe without a reader."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([COMMAND, *arguments], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    return done.returncode, done.stderr


@pytest.mark.parametrize("option", ["--json", ""])
def test_a_closed_pipe_is_not_an_error(option: str) -> None:
    assert run_into_closed_pipe("policies", *option.split()) == (0, "")


def test_results_are_written_even_if_stdout_is_closed(tmp_path: Path) -> None:
    code, error = run_into_closed_pipe(*SMALL, "--policy", "lru", "--jobs", "1", "-o", str(tmp_path))
    assert (code, error) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure-1.json", "figure-1.png"]


def test_help_of_the_command(capsys: Captured) -> None:
    text = help_text(capsys=capsys)
    assert "policies" in text
    assert "experiment" in text


def subcommands(*command: str) -> list[str]:
    parser: argparse.ArgumentParser | None = build_parser(command)
    for name in (*command, ""):
        assert parser is not None
        found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        choices = found[0].choices if found else {}
        parser = choices.get(name)
    return list(choices)


@pytest.mark.parametrize("command", ["", *subcommands()])
def test_help_fits_a_terminal_of_80_columns(command: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [[command, name] for name in (subcommands(command) if command else [])]
    assert bool(names) == (command in ("experiment", "log", "route", "webhook"))
    for arguments in ([command] if command else [], *names):
        with pytest.raises(SystemExit):
            main([*arguments, "--help"])
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("command", ["serve", feature_case("log search words"), "route test request.json"])
def test_an_unknown_argument_names_the_help_of_its_command(command: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--unknown"])
    assert stopped.value.code == 2
    name = " ".join(word for word in command.split() if word in ("serve", "log", "search", "route", "test"))
    error = f"knapcache {name}: error: unrecognized arguments: --unknown (see knapcache {name} --help)\n"
    assert capsys.readouterr().err == error


def test_version() -> None:
    assert re.fullmatch(r"knapcache \d+\.\d+\.\d+\n", run_installed("--version").stdout)


def test_help_lists_every_experiment(capsys: Captured) -> None:
    text = help_text("experiment", capsys=capsys)
    assert list(EXPERIMENTS) == NAMES
    for name in [*NAMES, "all"]:
        assert f" {name} " in text


@pytest.mark.parametrize("name", NAMES)
def test_help_lists_every_setting_with_its_default(name: str, capsys: Captured) -> None:
    text = help_text("experiment", name, capsys=capsys)
    for option in ("-o DIR", "--quick", "--jobs N"):
        assert option in text
    for field in dataclasses.fields(EXPERIMENTS[name].settings):
        default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
        described = text[text.index(f"{option_name(field)} ", text.index("settings:")) :]
        shown = re.search(r"\(default: ([^)]*)\)", described)
        assert shown
        assert shown[1].replace(" ", "") == default


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A quick run of figure-1 with the installed command, into a directory that does not exist yet."""
    out = tmp_path_factory.mktemp("small") / "new" / "with a space"
    return run_installed(*SMALL, "--jobs", "1", "-o", str(out)), out


def test_an_experiment_writes_numbers_and_a_figure(small: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, out = small
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in out.iterdir()) == ["figure-1.json", "figure-1.png"]
    record = json.loads((out / "figure-1.json").read_text())
    assert list(record) == ["name", "settings", "rows"]
    assert record["name"] == "figure-1"
    assert record["settings"] | {"rounds": 300, "repeats": 2, "capacity": 60, "queries": 100} == record["settings"]
    assert {row["policy"] for row in record["rows"]} == IN_FIGURE_1
    for row in record["rows"]:
        assert list(row) == FIELDS
        assert row["cost_mean"] > 0.0
        assert 0 < row["peak_occupancy"] <= 60
    calls = {row["policy"]: row["oracle_calls"] for row in record["rows"]}
    assert calls["offline"] == 300
    assert calls["lru"] == calls["berkeley"] == 0
    height, width = image.imread(out / "figure-1.png").shape[:2]
    assert min(height, width) > 300


def test_an_experiment_prints_its_table_and_its_file_names(
    small: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, out = small
    lines = done.stdout.splitlines()
    assert lines[-2:] == [str(out / "figure-1.json"), str(out / "figure-1.png")]
    assert "figure-1" in lines[0]
    cells = {line.split()[0]: line.split() for line in lines[:-2] if line.strip()}
    for row in json.loads((out / "figure-1.json").read_text())["rows"]:
        shown = cells[row["policy"]]
        assert len(shown) == len(FIELDS)
        assert float(shown[1].replace(",", "")) == pytest.approx(row["regret_mean"], rel=1e-3)
        assert float(shown[3].replace(",", "")) == pytest.approx(row["cost_mean"], rel=1e-3)


def test_results_depend_on_the_seed_and_not_on_the_number_of_processes(tmp_path: Path) -> None:
    few = [*SMALL, "--policy", "vsocb,offline,lru"]

    def record(name: str, *more: str) -> bytes:
        assert main([*few, *more, "-o", str(tmp_path / name)]) == 0
        return (tmp_path / name / "figure-1.json").read_bytes()

    first = record("first", "--jobs", "1")
    assert record("side by side", "--jobs", "2") == first
    rows, others = (json.loads(x)["rows"] for x in (first, record("other", "--jobs", "1", "--seed", "1")))
    assert [row["cost_mean"] for row in rows] != [row["cost_mean"] for row in others]


def test_a_policy_gets_the_same_requests_whichever_other_policies_run(tmp_path: Path) -> None:
    rows = []
    for policies in ("lru", "lfu,vsocb,lru"):
        assert main([*SMALL, "--policy", policies, "--jobs", "1", "-o", str(tmp_path)]) == 0
        rows.append(json.loads((tmp_path / "figure-1.json").read_text())["rows"][-1])
    assert rows[0] == rows[1]


def run_interrupted(out: Path) -> tuple[int, str, str]:
    """Interrupt all processes of a command, as a terminal does; return exit code, stdout and stderr."""
    run = subprocess.Popen(
        [COMMAND, "experiment", "long-run", "--rounds", "10000000", "--jobs", "2", "-o", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=allow_interrupts,
    )
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    wait_until(children.read_text, "the start of the workers")
    time.sleep(0.5)
    os.killpg(run.pid, signal.SIGINT)
    printed, error = run.communicate(timeout=60)
    return run.returncode, printed, error


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to see whether the workers have started")
def test_an_interrupt_ends_with_code_130_and_leaves_no_files(tmp_path: Path) -> None:
    code, printed, error = run_interrupted(tmp_path / "out")
    assert (code, printed) == (130, "")
    assert error == "knapcache: interrupted\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    ["", "route", "experiment", feature_case("log"), feature_case("webhook")],
)
def test_a_command_without_a_subcommand_prints_its_help(command: str, capsys: Captured) -> None:
    assert main(command.split()) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: knapcache {command}".rstrip())
    assert err == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("serv", "knapcache: error: unknown command 'serv': did you mean serve? (see knapcache --help)"),
        feature_case(
            "log serch",
            "knapcache log: error: unknown action 'serch': did you mean search? (see knapcache log --help)",
        ),
        feature_case(
            "log xyz",
            "knapcache log: error: unknown action 'xyz': it must be one of search, export, purge "
            "(see knapcache log --help)",
        ),
        (
            "serve --capcity 1GB",
            "knapcache serve: error: unrecognized arguments: --capcity 1GB: did you mean --capacity? "
            "(see knapcache serve --help)",
        ),
        ("serve --capcity=1GB", "unrecognized arguments: --capcity=1GB: did you mean --capacity?"),
        feature_case(
            "log export --format parkuet",
            "argument --format: invalid choice 'parkuet': did you mean parquet?",
        ),
    ],
)
def test_unknown_names_get_a_suggestion(line: str, message: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def parsers_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all commands that do something: those without subcommands."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield parser
    for action in inner:
        for sub in action.choices.values():
            yield from parsers_of(sub)


def test_options_of_one_name_mean_the_same_in_all_commands() -> None:
    """-o, --json, --config, --url and --ca have one form each, from cli/options.py."""
    top = build_parser([])
    (commands,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    seen: set[str] = set()
    for name in commands.choices:
        for parser in parsers_of(build_parser([name])._subparsers._group_actions[0].choices[name]):  # type: ignore
            found = {option: action for action in parser._actions for option in action.option_strings}
            seen |= found.keys()
            assert ("--output" in found) == ("-o" in found), parser.prog
            if "--output" in found:
                assert (found["-o"], found["-o"].metavar) == (found["--output"], found["--output"].metavar)
                assert found["-o"].metavar in ("FILE", "DIR"), parser.prog
            if "--json" in found:
                assert (found["--json"].nargs == 0) == (found["--json"].metavar is None), parser.prog
            if "--config" in found:
                assert (found["--config"].metavar, found["--config"].type) == ("FILE", Path), parser.prog
            if "--key" in found:
                assert found["--key"].metavar == "KEY", parser.prog
                assert not found.keys() & set(RENAMED["--key"]), parser.prog
            assert not found.keys() & (RENAMED.keys() - {"--key"}), parser.prog
            assert ("--url" in found) == ("--ca" in found), parser.prog
            if "--url" in found:
                assert found["--url"].default == "http://127.0.0.1:8080/v1", parser.prog
            if isinstance(getattr(found.get("--json"), "metavar", None), str) and "--plot" not in found:
                assert "--output" in found, f"{parser.prog} writes files"
    assert {*chain(*RENAMED.values()), "-o", "--json", "--plot", "--config", "--url", "--ca"} <= seen


@pytest.mark.parametrize("given", [["--out", "{}"], ["--out={}"]])
def test_old_names_of_options_work_with_a_note(given: list[str], tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    few = [*SMALL, "--policy", "lru", "--jobs", "1"]
    assert main([*few, *(word.format(out) for word in given)]) == 0
    assert (out / "figure-1.json").exists()
    note = "knapcache experiment figure-1: warning: --out is deprecated: use --output\n"
    assert capsys.readouterr().err == note


@pytest.mark.parametrize(
    ("known", "old", "new"),
    [
        ({"--api-key"}, "--key", "--api-key"),
        ({"--key-fields"}, "--key=a", "--key-fields=a"),
        ({"--api-key-env"}, "--key-env", "--api-key-env"),
        ({"--policy"}, "--policies", "--policy"),
        ({"--capacity"}, "--capacities", "--capacity"),
    ],
)
def test_an_old_name_stands_for_the_new_one_that_the_command_has(
    known: set[str], old: str, new: str, capsys: Captured
) -> None:
    assert with_new_names([old, "k"], known, "knapcache x") == [new, "k"]
    assert "is deprecated: use" in capsys.readouterr().err
    assert with_new_names([old], {"--key", "--key-env"}, "knapcache x") == [old]
    assert capsys.readouterr().err == ""


def test_what_follows_two_dashes_is_no_option(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main([*SMALL, "--", "--out"])
    assert "deprecated" not in capsys.readouterr().err
