"""The end of a run: what was skipped for a missing program, and which tests missed a time limit and ran again.

A run with more than MAX_RERUN such tests fails: its result would be luck.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

MAX_RERUN = 3
_NEEDS = re.compile(r"Skipped: needs ([^:]+): (.+)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print both lists."""
    counts: Counter[tuple[str, str]] = Counter()
    skipped = {report.nodeid: report for report in terminalreporter.stats.get("skipped", ())}
    for report in skipped.values():
        if isinstance(report.longrepr, tuple) and (match := _NEEDS.fullmatch(report.longrepr[2])):
            counts[match[1], match[2]] += 1
    if counts:
        terminalreporter.section("skipped: not installed")
        width = max(len(name) for name, _ in counts)
        for (name, package), count in sorted(counts.items()):
            terminalreporter.line(f"{count:5} × {name:{width}}  {package}")
    rerun = _rerun(terminalreporter)
    if rerun:
        terminalreporter.section("ran again: a time limit was missed")
        for nodeid, count in sorted(rerun.items()):
            terminalreporter.line(f"{count:5} × {nodeid}")
    if len(rerun) > MAX_RERUN:
        terminalreporter.line(f"FAILED: {len(rerun)} tests ran again, more than {MAX_RERUN}", red=True, bold=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if too many tests ran again."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and session.exitstatus == pytest.ExitCode.OK and len(_rerun(reporter)) > MAX_RERUN:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _rerun(reporter: pytest.TerminalReporter) -> Counter[str]:
    return Counter(report.nodeid for report in reporter.stats.get("rerun", ()))
