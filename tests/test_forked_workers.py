"""Tests in forked workers: every result arrives, a file stays in one process, and a lost worker fails the run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pytest_process import FORKED, run_pytest

CONFTEST = """
import os
import pytest

@pytest.fixture(scope="session")
def program():
    with open(f"{os.getpid()}.lives", "a") as file:
        file.write("started ")
        file.flush()
        yield
        file.write("ended ")
"""
FILE = """
import os
import pytest

@pytest.fixture(scope="module")
def shared(program):
    yield os.getpid()

@pytest.mark.parametrize("k", range(20))
def test_in_one_process(shared, tmp_path, k):
    assert shared == os.getpid()
    print(f"process {os.getpid()}")
    (tmp_path / "file").write_text(str(k))

def test_wrong():
    print(f"printed by {__name__}")
    assert 1 == 2

@pytest.mark.skip(reason="not here")
def test_skipped():
    pass
"""
WAITS = """
import pathlib, time

def test_waits(program):
    pathlib.Path("waiting").touch()
    time.sleep(60)
"""
IGNORES_THE_INTERRUPT = """
import pathlib, time
import pytest

def test_ignores_the_interrupt(program):
    pathlib.Path("waiting").touch()
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pytest.skip("a report that is larger than a pipe" * 10_000)
"""
WRONG = """
import pathlib, time

def test_wrong(program):
    while not pathlib.Path("waiting").exists():
        time.sleep(0.01)
    assert False

def test_after():
    pass
"""
CRASH = """
import os, signal

def test_before():
    pass

def test_that_ends_its_process():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_result_arrives_and_a_file_stays_in_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text(CONFTEST)
    for k in range(6):
        (folder / f"test_{k}.py").write_text(FILE)
    code, shown = run_pytest(tmp_path, *FORKED, "--capture=fd")
    assert code == 1
    assert "6 failed, 120 passed, 6 skipped" in shown
    for k in range(6):
        assert len(set(re.findall(rf"FAILED tests/test_{k}.py::(\w+)", shown))) == 1
    printed = re.findall(r"test_wrong _+\n(?:.*\n)*?printed by (\w+)\n(?!printed)", shown)
    assert sorted(printed) == [f"test_{k}" for k in range(6)]  # captured with its own test and no other
    lives = [path.read_text() for path in tmp_path.glob("*.lives")]
    assert lives == ["started ended "] * 2  # a fixture of the session, in each worker


def test_a_worker_that_ends_early_fails_the_run_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_crash.py").write_text(CRASH)
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")
    code, shown = run_pytest(tmp_path, *FORKED)
    assert code != 0
    assert "a worker ended with -9 in test_crash.py::test_that_ends_its_process" in shown


@pytest.mark.parametrize("other", [WAITS, IGNORES_THE_INTERRUPT])
def test_the_run_ends_at_the_first_failure_if_asked_and_closes_fixtures(other: str, tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_waits.py").write_text(other)
    (folder / "test_wrong.py").write_text(WRONG)
    code, shown = run_pytest(tmp_path, *FORKED, "-x")
    assert code == 1
    assert "1 failed in " in shown
    assert [path.read_text() for path in tmp_path.glob("*.lives")] == ["started ended "] * 2
