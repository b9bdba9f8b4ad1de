"""Programs that some tests need: from the virtual environment, or from the system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def find_program(name: str, package: str) -> str:
    """Return the path of a program. Skips the test if it is not installed; `package` says what provides it."""
    found = shutil.which(name, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if found is None:
        pytest.skip(f"needs {name}: {package}")
    return found


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
