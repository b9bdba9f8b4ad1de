"""bench/mutate.py on a package of a few lines: what is caught, what survives, what hangs; and each operator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

from _mutants import Mutant, changes_code, mutants_of, read_equivalents, sample  # noqa: E402 - after sys.path
from _mutation_runner import moved_lines  # noqa: E402

SOURCE = '''"""A module."""

LIMIT = 50


def grade(points):
    """Return the grade."""
    return "good" if points >= LIMIT else "bad"


def drain(items):
    while items:
        items.pop()


def unchecked(x):
    return x + 1


def unused(x):
    return -x
'''
TESTS = """
from tiny.core import drain, grade, unchecked

def test_grade():
    assert (grade(49), grade(50)) == ("bad", "good")

def test_drain():
    items = [1, 2]
    drain(items)
    assert items == []

def test_unchecked():
    unchecked(1)

def test_that_always_fails():
    assert unchecked(1) == 0
"""


def run_mutate(root: Path, *options: str) -> tuple[int, dict[tuple[str, str], str]]:
    """Return the exit code, and status by function and change."""
    command = [sys.executable, str(BENCH / "mutate.py"), "--root", str(root), "--package", "src/tiny"]
    command += [
        "--work",
        str(root.parent / "work"),
        "--out",
        str(root.parent / "out"),
        "--sample",
        "100",
        "--grace",
        "4",
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, *options], capture_output=True, text=True, env=environment)
    assert "share" in done.stdout, done.stdout + done.stderr
    result: dict[str, Any] = json.loads((root.parent / "out" / "mutation.json").read_text(encoding="utf-8"))
    total = result["summary"][-1]
    found = {(record["function"], record["change"]): record["status"] for record in result["mutants"]}
    assert sum(total[status] for status in ("caught", "timeout", "survived", "equivalent")) == len(result["mutants"])
    return done.returncode, found


@pytest.mark.long
def test_mutants_are_caught_survive_or_time_out(tmp_path: Path) -> None:
    root = tmp_path / "project"
    for name, text in (("src/tiny/__init__.py", ""), ("src/tiny/core.py", SOURCE), ("tests/test_core.py", TESTS)):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    listed = tmp_path / "equivalent.toml"
    entry = ("core.py", "unused", "return", "return -x", "return -x → return None")
    fields = zip(("file", "function", "operator", "text", "change"), entry, strict=True)
    listed.write_text("[[mutant]]\n" + "".join(f'{k} = "{v}"\n' for k, v in fields) + 'reason = "nobody calls it"\n')
    code, found = run_mutate(root, "--equivalents", str(listed))
    assert found["grade", "points >= LIMIT → (points > LIMIT)"] == "caught"
    assert found["grade", "points >= LIMIT → (points < LIMIT)"] == "caught"
    assert found["grade", "\"good\" → 'good~'"] == "caught"
    assert {status for (_, change), status in found.items() if change.startswith("50 →")} == {"caught"}
    assert found["drain", "items.pop() → pass"] == "timeout"
    assert found["unchecked", "x + 1 → (x - 1)"] == "survived", "a test that fails anyway catches nothing"
    assert found["unused", "return -x → return None"] == "equivalent"
    assert code == 1
    assert (root / "src/tiny/core.py").read_text() == SOURCE, "mutants are written to copies only"


def mutants(source: str) -> list[Mutant]:
    return mutants_of("m.py", source.encode(), 1)


@pytest.mark.parametrize(
    ("statement", "operator", "expected"),
    [
        ("a = b == c", "comparison", {"a = (b != c)"}),
        ("a = b < c", "boundary", {"a = (b <= c)"}),
        ("a = b < c <= d", "boundary", {"a = (b <= c <= d)", "a = (b < c < d)"}),
        ("a = b and c", "boolean", {"a = (b or c)", "a = b", "a = c"}),
        ("a = b + c", "arithmetic", {"a = (b - c)"}),
        ("a += b", "arithmetic", {"a -= b"}),
        ("a += b", "removal", {"pass"}),
        ("a = True", "constant", {"a = False"}),
        ("a = 'é'; b = 'c'", "string", {"a = 'é~'; b = 'c'", "a = 'é'; b = 'c~'"}),
        ("f(a)", "removal", {"pass"}),
        ("self.a = b", "removal", {"pass"}),
        ("a = b", "removal", set()),
        ("raise ValueError('text')", "removal", {"pass"}),
        ("raise ValueError('text')", "string", set()),
        ("f(a, b)", "arguments", {"f(b, a)"}),
        ("f(a, x=b, y=c)", "arguments", {"f(a, y=c)", "f(a, x=b)"}),
        ("isinstance(a, b)", "arguments", set()),
        ("return a", "return", {"return None"}),
        ("return None", "return", set()),
        ("if f(a): b()", "condition", {"if (not f(a)): b()"}),
        ("if a == b: c()", "condition", set()),
        ("a = [b for b in c if f(b)]", "condition", {"a = [b for b in c if (not f(b))]"}),
        ("a = not b", "not", {"a = b"}),
        ("a = await b()", "await", {"a = b()"}),
        ("with self.lock: f()", "lock", {"if True: f()"}),
        ("with a, b: f()", "lock", {"with b: f()", "with a: f()"}),
        ("with open(a) as b: f()", "lock", set()),
        ("log.warning('a', 1)", "arguments", set()),
        ("a = 'the answer is text'", "string", set()),
        ("a: Literal['b'] = c", "string", set()),
        ("a = f'{b + 1}'", "arithmetic", set()),
    ],
)  # fmt: skip
def test_operators(statement: str, operator: str, expected: set[str]) -> None:
    source = f"async def f():\n    {statement}\n"
    found = {
        mutant.apply(source.encode()).decode().splitlines()[1].strip()
        for mutant in mutants(source)
        if mutant.operator == operator
    }
    assert found == expected
    assert all(mutant.function == "f" and not mutant.at_import for mutant in mutants(source))


def test_the_same_change_at_two_places_of_a_line_has_two_identities() -> None:
    found = [mutant.change for mutant in mutants("def f():\n    g('a', 'a')\n") if mutant.operator == "string"]
    assert found == ["'a' → 'a~'", "'a' → 'a~' (2)"]


def test_the_sample_covers_all_areas_and_is_the_same_for_the_same_seed() -> None:
    source = "def f(a, b):\n" + "".join(f"    a.x{k} = b + {k}\n" for k in range(200))
    areas = {"large": mutants(source), "small": mutants("a = 1 + 2\nb = f(a, 1)\n")}
    sources = {"m.py": source.encode()}
    areas["small"] = areas["large"][:10]
    drawn = sample(areas, sources, 50, seed=1, least=5)
    assert [len(found) for found in drawn.values()] == [45, 5]
    assert drawn == sample(areas, sources, 50, seed=1, least=5)
    assert drawn != sample(areas, sources, 50, seed=2, least=5)


def test_mutants_that_compile_to_the_same_code_are_left_out() -> None:
    assert not changes_code(b"a = 1\n", b"a = (1)\n")
    assert not changes_code(b"a = 1\n", b"a = \n")
    assert changes_code(b"a = 1\n", b"a = 2\n")


def test_lines_that_moved_keep_their_tests() -> None:
    assert moved_lines("a\nb\nc", "a\nb\nc") == {1: [1], 2: [2], 3: [3]}
    moved = moved_lines("a\nb\nc", "new\na\nB\nc\nend")
    assert (moved[1], moved[2], moved[3]) == ([1, 2, 3], [3], [4, 5])


def test_listed_mutants_have_a_reason() -> None:
    assert all(reason.strip() for reason in read_equivalents(BENCH / "equivalent_mutants.toml").values())
