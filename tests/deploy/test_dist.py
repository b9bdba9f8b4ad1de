"""The wheel has what it must have, and the version is the same everywhere."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

import knapcache

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHECK: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "check_dist.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])
    return Path(built)


def test_the_wheel_has_the_packages_their_data_and_nothing_else(wheel: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert CHECK["wheel_problems"](names, CHECK["packaged_files"]()) == []
    for needed in (
        "knapcache/py.typed",
        "knapcache/proxy/dashboard/index.html",
        "knapcache/proxy/dashboard/app.js",
        "knapcache/features/limits/panel.js",
        "knapcache_experiments/measured/live.json",
        f"knapcache-{PROJECT['version']}.dist-info/licenses/LICENSE",
    ):
        assert needed in names
    assert CHECK["wheel_problems"](names - {"knapcache/py.typed"}, names) == ["missing: knapcache/py.typed"]
    assert CHECK["wheel_problems"](names | {"secrets.env"}, CHECK["packaged_files"]()) == ["unexpected: secrets.env"]


def test_the_metadata_are_valid(wheel: Path) -> None:
    raw = zipfile.ZipFile(wheel).read(f"knapcache-{PROJECT['version']}.dist-info/METADATA")
    assert CHECK["metadata_problems"](raw) == []
    assert CHECK["metadata_problems"](raw.replace(b"Requires-Python: >=3.11", b"Requires-Python: new")) != []
    other = raw.replace(f"Version: {PROJECT['version']}".encode(), b"Version: 9.9.9")
    assert "9.9.9" in CHECK["metadata_problems"](other)[0]


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.fullmatch(re.escape(PROJECT["version"]) + r" - \d{4}-\d{2}-\d{2}", headings[0])
    assert knapcache.__version__ == PROJECT["version"]


def test_the_version_is_the_same_everywhere() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "knapcache" / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == PROJECT["version"]
    places = [ROOT / "README.md", ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "compose.yaml"]
    places += [ROOT / "deploy" / "cluster" / "compose.yaml", *sorted((ROOT / "docs").rglob("*.md"))]
    pattern = re.compile(r"knapcache[:-](\d+\.\d+\.\d+)")
    found = {(path.name, version) for path in places for version in pattern.findall(path.read_text(encoding="utf-8"))}
    assert {name for name, _ in found} >= {"Dockerfile", "compose.yaml", "installation.md"}
    assert [place for place in sorted(found) if place[1] != PROJECT["version"]] == []
    labelled = re.findall(r'image\.version="([^"]+)"', (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8"))
    assert labelled == [PROJECT["version"]]


def test_the_lab_imports_no_module_that_only_posix_has() -> None:
    """docs/get-started/installation.md says what works on Windows."""
    code = """
import sys
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
import knapcache.cli.main, knapcache.keys, knapcache.oracle, knapcache.policy, knapcache.cli.replay, knapcache.cli.plan
try:
    from knapcache import Cache
except ModuleNotFoundError as error:
    print(error.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "fcntl\n", done.stderr


@pytest.mark.long
def test_wheel_and_sdist_work_in_empty_environments(tmp_path: Path) -> None:
    """The commands of `make dist`."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True)
    subprocess.run([sys.executable, str(ROOT / "scripts" / "check_dist.py"), str(tmp_path)], check=True)
