"""The scripts of `make test-pythons` and `make release-check`."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[2]
PYTHONS: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "test_pythons.py"))
RELEASE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "release_check.py"))


def test_every_supported_python_is_looked_for() -> None:
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert running in PYTHONS["supported_versions"]()
    assert PYTHONS["find_python"]("3.99") is None


def test_the_tests_for_other_pythons_exist() -> None:
    names = [*PYTHONS["TESTS"], *PYTHONS["COMPILED"]]
    assert [name for name in names if not (ROOT / "tests" / name).exists()] == []


def test_the_steps_of_a_release_are_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert RELEASE["STEPS"].keys() - targets == {"tree", "version"}
    assert RELEASE["OPTIONAL"] < RELEASE["STEPS"].keys()


def test_the_version_of_the_changelog_is_checked(tmp_path: Path) -> None:
    version = RELEASE["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+ of \d{4}-\d{2}-\d{2}", version())
    (tmp_path / "CHANGELOG.md").write_text("## 9.9.9 - 2030-01-01\n", encoding="utf-8")
    version.__globals__["ROOT"] = tmp_path
    with pytest.raises(RELEASE["StepError"], match=r"pyproject\.toml has .*, CHANGELOG\.md 9\.9\.9"):
        version()
    version.__globals__["ROOT"] = ROOT
