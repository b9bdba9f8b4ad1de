"""Plugin of pytest for bench/mutate.py: coverage.py notes the test that runs each line, and tests.json their seconds.

A process that a test starts belongs to that test by the environment: coverage.py reads its context from there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

CONTEXT, SECONDS = "KNAPCACHE_TEST_CONTEXT", "KNAPCACHE_TEST_SECONDS"
"""Variables of the environment: the id of the running test; the file for the seconds of all tests that passed."""

_seconds: dict[str, float] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    import coverage

    os.environ[CONTEXT] = item.nodeid
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
