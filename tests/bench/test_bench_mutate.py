"""bench/mutate.py on a package of a few lines: what is noticed, what survives, what hangs, what is equivalent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.programs import find_module

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
SOURCE = """
import logging

LIMIT = 50
log = logging.getLogger()

def grade(points):
    return "good" if points >= LIMIT else "bad"

def drain(items):
    while items:
        items.pop()

def unchecked(x):
    return x + 1

def doubled(x):
    log.debug("doubled")
    return x * 2
"""
TESTS = """
from tiny.core import doubled, drain, grade, unchecked

def test_all():
    assert (grade(49), grade(50), doubled(2)) == ("bad", "good", 4)
    unchecked(1)
    items = [1, 2]
    drain(items)
    assert items == []
"""
CONFIG = """
operators = ["NumberReplacer", "RemoveStatement", "ReplaceBinaryOperator_Add_Sub"]
tests = "pytest -x -v"
skip = ["__init__.py"]
ignored = "[A-Z]+ = .*[0-9]"
suite = "pytest -q"
surfaces = []
compile_kernels = "timeit pass"
[[equivalent]]
old = "return x * 2"
new = "return x * 3"
reason = "an example"
[[equivalent]]
file = "src/tiny/core.py"
old = "return x + 1"
new = "return x + 2"
reason = "an example in one file"
[[equivalent]]
file = "src/tiny/other.py"
old = "return x + 1"
new = "return x - 1"
reason = "not of this file"
"""


@pytest.mark.long
def test_mutants_are_noticed_survive_or_time_out(tmp_path: Path) -> None:
    find_module("cosmic_ray", "the package cosmic-ray")
    find_module("coverage", "the package coverage")
    files = {"src/tiny/__init__.py": "", "src/tiny/core.py": SOURCE, "tests/test_core.py": TESTS}
    for name, text in {**files, "bench/mutate.toml": CONFIG}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("mutate.py", "_covering_tests.py", "_results.py"):
        shutil.copy(ROOT / "bench" / name, tmp_path / "bench")
    command = [sys.executable, "bench/mutate.py", "--sample", "100", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    row = json.loads((tmp_path / "out" / "mutation.json").read_text())["areas"][0]
    counts = {"noticed": 1, "timeout": 1, "survived": 2, "equivalent": 2, "untested": 0}
    assert row == {"area": "knapcache", **counts, "share": 0.5}
    assert (tmp_path / "src/tiny/core.py").read_text() == SOURCE, "mutants are written to copies only"


def test_equivalent_mutants_have_reasons_and_files_that_exist() -> None:
    config = tomllib.loads((ROOT / "bench" / "mutate.toml").read_text(encoding="utf-8"))
    assert all(known["reason"] for known in config["equivalent"])
    assert all((ROOT / known["file"]).exists() for known in config["equivalent"] if "file" in known)
