"""Programs and packages that some tests need: from the virtual environment, or from the system.

A test without them is skipped with the reason `needs NAME: PACKAGE`, by these functions only. The end of a run lists
what was missing, and how many tests it cost (run_report.py). With CI set, what `.ci/run` installs must be there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

INSTALLED_IN_CI = ("chromium", "curl", "nginx", "haproxy", "redis-server")
FOLDERS = (str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")


def find_program(name: str, package: str, *others: str) -> str:
    """Return the path of a program, or of another one that does the same. Skips the test if none is installed.

    package: what provides it.
    """
    for candidate in (name, *others):
        if (found := shutil.which(candidate, path=os.pathsep.join(FOLDERS))) is not None:
            return found
    return skip_without(name, package)


def find_module(name: str, package: str) -> Any:
    """Import a module and return it. Skips the test, or the rest of the file, if it is not installed."""
    return pytest.importorskip(name, reason=f"needs {name}: {package}")


def need_semantic_extra() -> None:
    """Skip the test if a package of the local embedding model is not installed."""
    for name in ("onnxruntime", "tokenizers", "usearch"):
        find_module(name, "the extra semantic")


def skip_without(name: str, package: str) -> NoReturn:
    """Skip the test, or the rest of the file, because a program is missing. Fails in CI if `.ci/run` installs it."""
    if os.environ.get("CI") and name in INSTALLED_IN_CI:
        pytest.fail(f"CI must have {name}: {package}", pytrace=False)
    pytest.skip(f"needs {name}: {package}", allow_module_level=True)


def run_program(*command: str | Path, **variables: str) -> str:
    """Run a program; return its output, and fail the test with it if the exit code is not 0."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
