"""Policies of other packages, found by entry points. Each test runs knapcache in a process with installed packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.warm_python import WarmPython

MRU = '''
"""MRU: evict the most recently used answer."""

from knapcache.kernel import kernel
from knapcache.policy.base import ROW, evict, insert, make_settle
from knapcache.policy.classic.fifo import FIFO, release
from knapcache.policy.classic.lru import arrive
from knapcache.policy.structures.linked_list import push, unlink


@kernel
def admit(head, rows, i, size, cost):
    while head[0].used + size > head[0].capacity:
        victim = rows[len(rows) - 1].older  # the newest end
        unlink(rows, victim)
        evict(head, rows, victim)
    insert(head, rows, i, size)
    push(rows, i)


class MRU(FIFO):
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, release)
'''
SPEC = """
from knapcache.policy.registry import Spec

MRU = Spec("mru", "mru_policy.mru:MRU", "Evict the most recently used answer.", "classic")
"""
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "mru-policy"
version = "1.0"

[project.entry-points."knapcache.policies"]
mru = "mru_policy:MRU"
"""


def install(place: Path, package: str, entry_point: str, source: str) -> None:
    """Write an installed package with one module and one entry point."""
    (place / f"{package}.py").write_text(source)
    info = place / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[knapcache.policies]\n{entry_point}\n")


Run = Callable[..., subprocess.CompletedProcess[str]]


def environment(place: Path) -> dict[str, str]:
    """Return the environment of a Python with the packages in `place` installed."""
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path}


def run_cold(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages in `place` installed, in a process that has imported nothing before."""
    return subprocess.run(
        [sys.executable, *command], env=environment(place), capture_output=True, text=True, check=False
    )


@pytest.fixture
def run(warm: WarmPython) -> Run:
    """Run Python with the packages in a directory installed."""
    return lambda place, *command: warm.run(*command, env=environment(place))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package mru-policy, built by hatchling and installed by pip."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    package = source / "src" / "mru_policy"
    package.mkdir(parents=True)
    (source / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text(SPEC)
    (package / "mru.py").write_text(MRU)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", site, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


def test_a_plugin_is_listed_after_the_built_in_policies(site: Path) -> None:
    done = run_cold(site, "-m", "knapcache", "policies", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    names = [row["name"] for row in json.loads(done.stdout)]
    assert names[0] == "adaptive"
    assert json.loads(done.stdout)[-1] == {
        "name": "mru",
        "online": True,
        "summary": "Evict the most recently used answer.",
        "paper": "classic",
    }


def test_listing_imports_neither_the_class_nor_the_compiler(site: Path) -> None:
    code = (
        "import sys; from knapcache.policy import registry; registry.available(); "
        "sys.exit(any(name in sys.modules for name in ('mru_policy.mru', 'numba')))"
    )
    assert run_cold(site, "-c", code).returncode == 0


def test_a_plugin_is_replayed(site: Path, tmp_path: Path) -> None:
    """Capacity 2: MRU evicts b for c, so the second a hits. LRU evicts a for c and gets no hit."""
    trace = tmp_path / "trace.csv"
    trace.write_text("key,size,cost\n" + "".join(f"{key},1,1\n" for key in "abcab"))
    options = ("--policy", "mru,lru", "--capacity", "2", "--no-time", "--json", "-")
    done = run_cold(site, "-m", "knapcache", "replay", str(trace), *options)
    assert done.returncode == 0, done.stderr
    assert {row["policy"]: row["hits"] for row in json.loads(done.stdout)} == {"mru": 1, "lru": 0}


def test_a_plugin_passes_the_contract(site: Path, run: Run) -> None:
    code = "from knapcache.policy import registry; from knapcache.testing import check_policy; " + (
        "check_policy(registry.find('mru').build, events=100)"
    )
    done = run(site, "-c", code)
    assert done.returncode == 0, done.stderr


def test_a_misspelt_plugin_is_suggested(site: Path, run: Run) -> None:
    done = run(site, "-c", "from knapcache.policy import registry; registry.find('mruu')")
    assert "did you mean mru?" in done.stderr


LIST = "from knapcache.cli.main import main; assert main(['policies', '--json']) == 0"
USE = "from knapcache.policy import registry; registry.find({!r}).build(10, 10)"
GOOD = "from knapcache.policy.registry import Spec\nP = Spec('{0}', '{1}', 'Evict nothing.', '-')\n"


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("bad", "import nowhere\n", "'bad' of broken: cannot import broken:P: ModuleNotFoundError: No module"),
        ("bad", "1 / 0\n", "'bad' of broken: cannot import broken:P: ZeroDivisionError: division by zero"),
        ("bad", "", "'bad' of broken: cannot import broken:P: AttributeError"),
        ("bad", "P = 1\n", "'bad' of broken: broken:P must be a Spec, not int"),
        ("bad", GOOD.format("good", "broken:C"), "'bad' of broken: its Spec has another name, 'good'"),
        ("lru", GOOD.format("lru", "broken:C"), "'lru' of broken: the name belongs to a built-in policy"),
        ("pfoo", GOOD.format("pfoo", "broken:C"), "'pfoo' of broken: the name belongs to a built-in policy"),
    ],
)  # fmt: skip
def test_a_broken_plugin_fails_when_used_and_not_when_listed(
    tmp_path: Path, run: Run, name: str, source: str, message: str
) -> None:
    install(tmp_path, "broken", f"{name} = broken:P", source)
    done = run(tmp_path, "-c", f"{LIST}; {USE.format('fifo')}; {USE.format(name)}")
    listed, _, used = done.stderr.partition("Traceback")
    assert listed.startswith(f"knapcache: policy plugin {message}")
    assert listed.count("\n") == 1
    assert [row["name"] for row in json.loads(done.stdout)].count(name) == (name != "bad")
    assert f"InvalidInput: policy plugin {message}" in used


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("nowhere:C", "cannot import nowhere:C: ModuleNotFoundError"),
        ("broken:C", "cannot import broken:C: AttributeError"),
        ("broken:Spec", "broken:Spec is not a subclass of Policy"),
    ],
)
def test_a_broken_class_fails_when_the_policy_is_built(tmp_path: Path, run: Run, where: str, message: str) -> None:
    install(tmp_path, "broken", "bad = broken:P", GOOD.format("bad", where))
    done = run(tmp_path, "-c", f"{LIST}; {USE.format('bad')}")
    assert done.stderr.startswith("Traceback"), "nothing is reported when it is listed"
    assert f"InvalidInput: policy plugin 'bad': {message}" in done.stderr


def test_two_plugins_cannot_share_a_name(tmp_path: Path, run: Run) -> None:
    for package in ("one", "two"):
        install(tmp_path, package, f"same = {package}:P", GOOD.format("same", f"{package}:C"))
    assert "policy plugin 'same': one and two provide the same name" in run(tmp_path, "-c", USE.format("same")).stderr
