"""Parallel runs give the same results as sequential ones."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from knapcache.errors import InvalidInput
from knapcache.lab.executors import sweep


def slowest_first(k: int) -> tuple[int, int]:
    """Finish later items first."""
    time.sleep(0.02 * (5 - k))
    return k * k, os.getpid()


def fails_on_3(path: Path) -> str:
    """Raise InvalidInput for one item."""
    if path.name == "3":
        raise InvalidInput(f"cannot use {path}")
    return path.name


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_items(jobs: int) -> None:
    results = sweep(slowest_first, range(6), jobs=jobs)
    assert [square for square, _ in results] == [0, 1, 4, 9, 16, 25]
    processes = {pid for _, pid in results}
    assert (processes == {os.getpid()}) == (jobs == 1)
    assert len(processes) <= jobs


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_exception_in_a_worker_reaches_the_caller(jobs: int) -> None:
    with pytest.raises(InvalidInput, match=r"cannot use 3"):
        sweep(fails_on_3, [Path(str(k)) for k in range(6)], jobs=jobs)


def test_no_items() -> None:
    assert sweep(abs, [], jobs=4) == []


@pytest.mark.parametrize("jobs", [0, -2])
def test_an_invalid_number_of_processes(jobs: int) -> None:
    with pytest.raises(InvalidInput, match=f"jobs must be at least 1, not {jobs}"):
        sweep(abs, [1, 2, 3], jobs=jobs)


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_output_without_a_terminal(jobs: int, capfd: pytest.CaptureFixture[str]) -> None:
    sweep(abs, [-1, -2, -3], jobs=jobs, title="counting")
    assert capfd.readouterr() == ("", "")
