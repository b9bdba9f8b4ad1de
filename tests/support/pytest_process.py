"""Run pytest on a folder of generated tests, with the options of this project."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support import ROOT

FORKED = ["-p", "tests.support.forked_workers", "--workers", "2"]


def run_pytest(folder: Path, *more: str) -> tuple[int, str]:
    """Run the tests of a folder with this project's options on reruns; return the exit code and the output."""
    options = shlex.split(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    )
    reruns = options[options.index("--reruns") : options.index("--only-rerun") + 2]
    (folder / "conftest.py").write_text("from tests.support.run_report import *\n")
    command = [sys.executable, "-m", "pytest", "-vs", "-p", "no:cacheprovider", "--disable-plugin-autoload"]
    command += [*more, "-p", "rerunfailures", *reruns, "--rootdir", str(folder), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=120)
    return done.returncode, done.stdout
