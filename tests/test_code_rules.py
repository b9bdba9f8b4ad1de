"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from knapcache import errors

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for folder in ("src", "experiments") for path in (ROOT / folder).rglob("*.py"))


def test_layers_hold() -> None:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_import_each_other_in_no_circle() -> None:
    graph = grimp.build_graph("knapcache", "knapcache_experiments", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which has the modules of a circle


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_every_module_says_what_it_is_for() -> None:
    assert SOURCES
    assert [str(path.relative_to(ROOT)) for path in SOURCES if not ast.get_docstring(tree(path))] == []


def test_long_files_give_a_reason() -> None:
    for path in SOURCES:
        lines = len(path.read_text().splitlines())
        reason = "this file is long because" in (ast.get_docstring(tree(path)) or "").lower()
        assert lines <= 400 or reason, f"{path.relative_to(ROOT)} has {lines} lines and gives no reason"


def test_no_class_name_occurs_twice() -> None:
    names: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in names.items() if len(paths) > 1} == {}


def repository_files() -> list[Path]:
    """Files in git, and those about to be."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


# Where packages come from and where a checkout lies is the business of the machine it lies on.
FOREIGN = re.compile(
    rb"(?<![\w.~-])/(?:work|root|opt|home/\w+|Users/\w+)/"
    rb"|pypi\.org|files\.pythonhosted|registry\.npmjs|registry\.yarnpkg|index\.crates\.io|conda\.anaconda"
)


def test_no_file_names_a_registry_or_a_place_on_one_machine() -> None:
    found = []
    for path in repository_files():
        content = path.read_bytes()
        if b"\0" not in content[:8192]:  # text
            found += [
                f"{path.relative_to(ROOT)}:{number}: {line.decode(errors='replace').strip()}"
                for number, line in enumerate(content.splitlines(), 1)
                if FOREIGN.search(line)
            ]
    assert found == []


# Written without their first slash or dot, or this file would be found itself.
@pytest.mark.parametrize("path", ["work/main", "root/.cache", "home/me/src", "opt/wheels"])
def test_places_are_found_where_they_start_at_the_root(path: str) -> None:
    assert FOREIGN.search(f'"/{path}"'.encode())
    assert not FOREIGN.search(f"src/{path} ~/{path} ./{path}".encode())


@pytest.mark.parametrize("host", ["pypi org", "files pythonhosted org", "registry npmjs org"])
def test_registries_are_found(host: str) -> None:
    assert FOREIGN.search(b"https://" + host.replace(" ", ".").encode() + b"/simple")


@pytest.mark.parametrize("lock", sorted(path.name for path in ROOT.glob("requirements*.lock")))
def test_a_lock_has_a_hash_for_every_pin_and_no_addresses(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert not re.search(r"https?:|file:|--(?:index|extra-index|find)", text)
    pins = [
        line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    assert pins
    for pin in pins:
        assert re.fullmatch(r"[\w.-]+==[\w.+!]+(?: ;[^\\]+?)?(?:\s+--hash=sha256:[0-9a-f]{64})+\s*", pin), pin[:100]


def test_the_lock_knows_every_dependency() -> None:
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    locked = {normal(name) for name in re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.M)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *extras["lab"], *extras["dev"]]:
        name = re.match(r"[\w.-]+", requirement)
        assert name
        assert normal(name[0]) in locked, f"{requirement}: run `make lock`"


def test_the_drawn_tree_of_errors_is_the_real_one() -> None:
    drawn: dict[str, tuple[str | None, str | None]] = {"KnapcacheError": (None, None)}
    above = ["KnapcacheError"]
    tree = textwrap.dedent(inspect.cleandoc(errors.__doc__ or "").partition("\n")[2])
    for indent, name, also in re.findall(r"^([│ ]*)[├└]── (\w+)(?: \(also (\w+)\))?", tree, re.M):
        del above[len(indent) // 4 + 1 :]
        drawn[name] = (above[-1], also or None)
        above.append(name)
    real: dict[str, tuple[str | None, str | None]] = {}
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if kind.__module__ != errors.__name__:  # imported there
            continue
        ours = [base.__name__ for base in kind.__bases__ if issubclass(base, errors.KnapcacheError)]
        others = [base.__name__ for base in kind.__bases__ if not issubclass(base, errors.KnapcacheError)]
        real[name] = (ours[0], others[0] if others else None) if ours else (None, None)
    assert drawn == real


def test_the_commands_of_the_makefile_are_documented() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    rows = set(re.findall(r"^\| `make ([a-z-]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M))
    assert targets == rows


def test_ci_runs_the_tests_of_package_tools_and_pythons_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert [line for line in script.read_text().splitlines() if line.startswith("make")] == [
        "make test",
        "make test-tools",
        "make test-pythons",
    ]
