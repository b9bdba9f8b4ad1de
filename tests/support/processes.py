"""The state of other processes, from /proc."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.timing import wait_until


def has_ended(pid: int) -> bool:
    """Return whether a process has ended. Its parent may not have asked for its exit code yet."""
    return set(_states(pid)) <= {"Z"}


def suspend(*pids: int) -> None:
    """Stop processes with SIGSTOP, and wait until none of their threads runs any more."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(set(_states(pid)) <= {"T", "Z"} for pid in pids), f"the stop of {pids}")


def command_line(pid: int) -> str:
    """Return the command of a process, or nothing if it has ended."""
    return _read(Path(f"/proc/{pid}/cmdline"))


def _states(pid: int) -> list[str]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
    texts = [_read(task / "stat") for task in tasks]
    return [text.rpartition(")")[2].split()[0] for text in texts if text]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
