"""Plugin of pytest for bench/mutate.py: coverage.py notes the test that runs each line, and a file gets their seconds.

What a test runs in a process of its own is not noted: it would take twice as long, and tests with time limits fail.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

SECONDS = "COVERING_TESTS_SECONDS"
"""Variable of the environment: the file for the seconds of all tests. With KNAPCACHE_ it would be a setting."""

_seconds: dict[str, float] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    import coverage

    measured = coverage.Coverage.current()
    assert measured is not None
    measured.switch_context(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.passed:
        _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    elif report.failed:
        _seconds[report.nodeid] = float("inf")


def pytest_sessionfinish() -> None:
    Path(os.environ[SECONDS]).write_text(json.dumps(_seconds), encoding="utf-8")
