"""Time limits: what raises TooSlow, and that pytest repeats a test for that reason only."""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support.pytest_process import FORKED, run_pytest
from tests.support.timing import (
    Deadline,
    TooSlow,
    async_wait_until,
    at_once,
    check_linear,
    check_seconds,
    wait_until,
    within,
)

REPEATED = """
import threading
import pytest
from tests.support.programs import find_program
from tests.support.timing import TooSlow, check_seconds

runs = {}

class ReadTimeout(Exception):
    pass

@pytest.fixture(scope="module")
def shared():
    runs["shared"] = runs.get("shared", 0) + 1
    yield []
    print("closed", runs["shared"])

def count(name):
    runs[name] = runs.get(name, 0) + 1
    return runs[name]

def test_before(shared):
    shared.append("before")

def test_slow_once(shared):
    shared.append("slow")
    check_seconds(2.0 if count("once") == 1 else 0.0, 1.0, "work")

def test_slow_in_a_thread(shared):
    errors = []
    def work():
        try:
            check_seconds(2.0 if count("thread") == 1 else 0.0, 1.0, "work")
        except TooSlow as error:
            errors.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for error in errors:
        raise error

def test_the_fixture_is_the_same(shared):
    assert shared == ["before", "slow", "slow"]
    assert runs["shared"] == 1

def test_wrong_once():
    assert count("wrong") == 2, "TooSlow: not a time limit"

def test_no_answer_in_time_once():
    if count("timeout") == 1:
        raise ReadTimeout("timed out")

def test_always_slow():
    print("attempt", count("always"))
    raise TooSlow("work")

def test_without_a_program():
    find_program("nonesuch", "the package none")
"""
SLOW_ONCE = """
import pytest
from tests.support.timing import TooSlow

runs = []

@pytest.mark.parametrize("k", range(COUNT))
def test_slow_once(k):
    runs.append(k)
    if runs.count(k) == 1:
        raise TooSlow("work")
"""


def test_a_wait_returns_the_value_or_names_what_it_waited_for() -> None:
    values = iter([None, 0, "", "found"])
    assert wait_until(lambda: next(values)) == "found"
    state = ["old"]
    with pytest.raises(TooSlow, match=r"^not within 0\.01 s: new, not old$"):
        wait_until(lambda: False, lambda: f"new, not {state[0]}", 0.01)
    values = iter([None, "later"])
    assert asyncio.run(async_wait_until(lambda: next(values))) == "later"
    with pytest.raises(TooSlow, match="an event"):
        asyncio.run(async_wait_until(lambda: False, "an event", 0.01))
    deadline = Deadline("a step", -1.0)
    with pytest.raises(TooSlow, match="a step"):
        deadline.check()


def test_measured_times_have_upper_limits() -> None:
    check_seconds(1.0, 1.0, "work")
    with pytest.raises(TooSlow, match=r"^work: 2 s, more than 1 s$"):
        check_seconds(2.0, 1.0, "work")
    with within(30.0, "work"):
        pass
    with pytest.raises(TooSlow, match="work"), within(0.0, "work"):
        time.sleep(0.001)
    with pytest.raises(ZeroDivisionError), within(30.0, "work"):
        print(1 // 0)
    with pytest.raises(TooSlow, match="work: failed after") as caught, within(-1.0, "work"):
        print(1 // 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert at_once(3, lambda k: k, 30.0) == [0, 1, 2]
    with pytest.raises(TooSlow, match="the start of 3 threads"):
        at_once(3, lambda k: k, -1.0)


def test_linear_time_is_told_from_quadratic_time() -> None:
    def walk(size: int, power: int) -> None:
        for _ in range(size**power):
            pass

    check_linear(lambda size: partial(walk, size, 1), 1000, "a walk")
    with pytest.raises(TooSlow, match="a walk: size 200 takes"):
        check_linear(lambda size: partial(walk, size, 2), 200, "a walk", 1600)
    check_linear(lambda _: lambda: None, 10, "nothing")


@pytest.mark.parametrize("parallel", [[], FORKED], ids=["one", "parallel"])
def test_only_a_missed_time_limit_is_measured_again(tmp_path: Path, parallel: list[str]) -> None:
    (tmp_path / "test_repeated.py").write_text(REPEATED)
    _, shown = run_pytest(tmp_path, *parallel)
    summary = shown.strip().splitlines()[-1]
    assert re.sub(r" in .*", "", summary.strip("= ")) == "3 failed, 4 passed, 1 skipped, 5 rerun", shown
    for name in ("test_wrong_once", "test_no_answer_in_time_once", "test_always_slow"):
        assert re.search(rf"^FAILED .*::{name}", shown, re.M), shown
    assert re.search(r"^ +1 × nonesuch +the package none$", shown, re.M), shown
    assert re.search(r"^ +3 × test_repeated.py::test_always_slow$", shown, re.M), shown


def test_a_run_fails_if_many_tests_were_measured_again(tmp_path: Path) -> None:
    for count in (3, 4):
        (tmp_path / "test_repeated.py").write_text(SLOW_ONCE.replace("COUNT", str(count)))
        code, shown = run_pytest(tmp_path)
        assert f"{count} passed, {count} rerun" in shown
        assert code == (count > 3), shown
        assert ("FAILED: 4 tests ran again, more than 3" in shown) == (count > 3), shown
