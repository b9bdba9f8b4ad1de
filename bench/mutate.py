"""Mutation testing: puts small faults into the code, one at a time, and counts those that a test notices.

    python bench/mutate.py [--sample 300] [--seed 1] [--jobs 1] [--minutes 60] [--files PATTERN] [--out DIR]

First the whole suite runs once under coverage.py, which notes the tests that run each line. Then Cosmic Ray makes the
mutants, drawn at random from all possible ones: the same seed and source give the same sample. Each mutant is tested in
a copy of the tree by tests that run its line: first those in files that have the name of the module, or import it, then
the most specific ones of each file, which run lines near it that few others run. Few tests, or none, run a compiled
kernel, a line that runs at import, or one of a process that a test starts: then those of the folder and of the public
surfaces follow.

A mutant counts as noticed if a test fails, or takes so long that it is ended (timeout), and passes without the mutant.
--coverage FILE keeps what the suite ran, and reads it if it is there: the sources must be the same.

Faults run with your rights: one of them replaced /dev/null, as root. Use a machine that may break.

mutmut 3.8 was tried: it needs all tests to pass with a wrapper around each function, whose frames triple the depth of
recursion. tests/keys fails that way.

Prints a table and the survivors; writes mutation.json to DIR. Exit code 1 if less than 95 % are noticed.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _covering_tests import SECONDS
from _results import options_for, write_result

from knapcache.cli.output import print_table
from knapcache.kernel import source_digest

ROOT = Path(__file__).resolve().parents[1]
CONFIG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
STATES = ("noticed", "timeout", "survived", "equivalent", "untested")
MAX_TESTS, MAX_SECONDS = 60, 60.0
"""Tests of one mutant, and the seconds that they took under coverage.py."""
FIRST_TESTS, FEW_TESTS = 2, 10
"""Tests of a file that come before other tests of any file; tests of a line that need no others of the folder."""
NEAR = 10
"""Lines before and after a mutant."""
LIMIT, TEST_LIMIT = 60.0, 20.0
"""Tests of a mutant, and one of them, are ended after three times their seconds and these."""
PLAIN_TESTS, PLAIN_SECONDS, PLAIN_LIMIT = 30, 2.0, 5.0
"""Tests of a mutant in a package with kernels, which then run as Python: their number, the seconds of each with
compiled kernels, and how much longer they may take."""
IGNORED = shutil.ignore_patterns(".git", ".venv*", ".peers", ".*_cache", ".hypothesis", "out", "__pycache__")
COVERAGE = """
[run]
parallel = true
data_file = {folder}/data/all
source_dirs = {folder}/tree/src
patch = fork, _exit
"""
Mutant = dict[str, Any]
"""area, file, line, operator, occurrence (of the operator in the file), old and new (first line that differs), tests
(their number), state"""


class Limits(NamedTuple):
    """Seconds that tests may take."""

    one: float
    """A single test."""
    all: float
    """All tests of a mutant."""


class RemoveStatement:
    """Operator that Cosmic Ray lacks: replace a call, raise or del by `pass`. Log calls are left alone."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        is_log = node.get_code(include_prefix=False).startswith("log.")
        if node.parent is not None and node.parent.type == "simple_stmt" and not is_log:
            called = node.type == "atom_expr" and node.children[-1].get_code().startswith("(")
            if called or node.type in ("raise_stmt", "del_stmt"):
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, _index: int) -> Any:
        from parso.python.tree import Keyword

        return Keyword("pass", node.start_pos, prefix=node.get_first_leaf().prefix)


def file_of(test: str) -> str:
    return test.partition("::")[0]


@functools.cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


class CoveringTests:
    """The tests that run each line, from a run of the suite under coverage.py. Tests that failed are left out."""

    def __init__(self, data: Path) -> None:
        from coverage import CoverageData

        seconds: dict[str, float] = json.loads(data.with_suffix(".json").read_text(encoding="utf-8"))
        self._seconds = {test: taken for test, taken in seconds.items() if taken <= MAX_SECONDS}
        measured = CoverageData(str(data))
        measured.read()
        self._lines: dict[str, dict[int, list[str]]] = {}
        self._sizes: Counter[str] = Counter()
        for path in measured.measured_files():
            lines = measured.contexts_by_lineno(path)
            self._lines[path[path.index("src/") :]] = lines
            self._sizes.update(itertools.chain.from_iterable(lines.values()))

    def of(self, file: str, lines: Sequence[int], *, plain: bool = False) -> tuple[list[str], Limits]:
        """Return the tests of these lines, and how long they may take with a mutant. plain: kernels run as Python."""
        most, longest, factor = (PLAIN_TESTS, PLAIN_SECONDS, PLAIN_LIMIT) if plain else (MAX_TESTS, MAX_SECONDS, 1.0)
        by_line, parts = self._lines.get(file, {}), Path(file).with_suffix("").parts
        name, module = parts[-1], ".".join(parts[1:])
        running = {test for line in lines for test in by_line.get(line, ())} & self._seconds.keys()
        found, folder = set(running), ["tests", *parts[2:-1]]
        while len(found) < FEW_TESTS and folder:
            found |= {test for test in self._seconds if test.startswith("/".join((*folder, "")))}
            folder.pop()
        if len(running) < FEW_TESTS:
            found |= {test for test in self._seconds if file_of(test) in CONFIG["surfaces"]}
        # By test: how many tests run the rarest of the lines near the mutant that it runs. Few run the body of a loop.
        rarity: dict[str, int] = {}
        for near in range(min(lines) - NEAR, max(lines) + NEAR + 1):
            for test in by_line.get(near, ()):
                rarity[test] = min(rarity.get(test, len(self._seconds)), len(by_line[near]))
        ordered = sorted(found, key=lambda test: (rarity.get(test, 0), self._sizes[test], test))
        places: Counter[str] = Counter()  # a file with many tests leaves room for those of others
        for test in ordered:
            places[test] = places[file_of(test)] = places[file_of(test)] + 1
        about = {path for path in map(file_of, ordered) if name in path or module in text_of(path)}
        ordered.sort(key=lambda test: (test not in running, file_of(test) not in about, places[test] > FIRST_TESTS))
        chosen: dict[str, float] = {}
        for test in ordered:
            seconds = self._seconds[test]
            if len(chosen) < most and seconds <= longest and sum(chosen.values()) + seconds <= MAX_SECONDS:
                chosen[test] = seconds
        taken = list(chosen.values())
        one, whole = TEST_LIMIT + 3 * max(taken, default=0.0), LIMIT + 3 * sum(taken)
        return list(chosen), Limits(factor * one, factor * whole)


def run_suite(data: Path) -> None:
    """Run the suite in a copy of the tree, and write what it ran: `data`, and the seconds of its tests beside it."""
    with tempfile.TemporaryDirectory() as folder:
        copy, config = Path(folder, "tree"), Path(folder, "coverage.ini")
        shutil.copytree(ROOT, copy, ignore=IGNORED)
        config.write_text(COVERAGE.format(folder=folder), encoding="utf-8")
        Path(folder, "data").mkdir()
        environment = environment_of(copy) | {SECONDS: str(data.with_suffix(".json").absolute())}
        environment["PYTHONPATH"] += f":{copy}/bench"
        coverage = [sys.executable, "-m", "coverage"]
        suite = [*coverage, "run", f"--rcfile={config}", "-m", *CONFIG["suite"].split(), "-p", "_covering_tests"]
        done = subprocess.run(suite, cwd=copy, env=environment)
        if done.returncode not in (0, 1):  # 1: a test failed, it is left out
            raise SystemExit(f"the suite ended with exit code {done.returncode}")
        subprocess.run([*coverage, "combine", f"--rcfile={config}", "--quiet"], cwd=copy, check=True)
        shutil.move(f"{folder}/data/all", data)


def environment_of(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree}/src:{tree}/experiments:{tree}"}


def find_operator(name: str) -> Any:
    """Return an operator of Cosmic Ray, or the one above."""
    from cosmic_ray import plugins

    return RemoveStatement() if name == "RemoveStatement" else plugins.get_operator(f"core/{name}")()


def draw_mutants(patterns: Sequence[str], number: int, seed: int, tests: CoveringTests) -> list[Mutant]:
    """Draw mutants in random order, by a hash: a change of the source leaves most in place."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code

    found: list[tuple[str, str, int, int]] = []
    for file in sorted({file for pattern in patterns for file in ROOT.glob(pattern)}):
        nodes = list(ast_nodes(get_ast(file.read_text(encoding="utf-8"))))
        for name in CONFIG["operators"] if file.name not in CONFIG["skip"] else ():
            operator = find_operator(name)
            starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
            found += [(str(file.relative_to(ROOT)), name, k, line) for k, (line, _) in enumerate(starts)]
    equivalent = [{name: known[name] for name in known if name != "reason"} for known in CONFIG["equivalent"]]
    mutants: list[Mutant] = []
    for path, name, k, line in sorted(found, key=lambda m: hashlib.sha256(repr((seed, m[:3])).encode()).digest()):
        source = (ROOT / path).read_text(encoding="utf-8")
        mutated = mutate_code(source, find_operator(name), k)
        pairs = zip(itertools.count(1), source.split("\n"), mutated.split("\n"), strict=False)
        at, old, new = next((at, a.strip(), b.strip()) for at, a, b in pairs if a != b)
        if re.match(CONFIG["ignored"], old):
            continue
        mutant = {"area": area_of(path), "file": path, "line": at, "operator": name, "occurrence": k}
        mutant |= {"old": old, "new": new, "compiled": tests.of(path, (at, line))}
        mutant |= {"plain": tests.of(path, (at, line), plain=True)}
        known = any(same.items() <= mutant.items() for same in equivalent)
        mutants.append(mutant | {"state": "equivalent" if known else "untested"})
        if len(mutants) == number:
            break
    return mutants


def area_of(path: str) -> str:
    """Return the folder below src/knapcache; for features and the proxy the folder below these."""
    parts = Path(path).parts[2:-1]
    return "/".join(parts[: 2 if parts[:1] in (("proxy",), ("features",)) else 1]) or "knapcache"


class Copy:
    """A copy of the tree, with compiled kernels, in which one process tests mutants."""

    def __init__(self, folder: str, end: float) -> None:
        self.tree, self._end = Path(folder, str(os.getpid())), end
        shutil.copytree(ROOT, self.tree, ignore=IGNORED)
        compile_kernels = [sys.executable, "-m", *CONFIG["compile_kernels"].split()]
        subprocess.run(compile_kernels, cwd=self.tree, env=environment_of(self.tree), check=True)
        self._digest = kernels_digest(self.tree)

    def test(self, mutant: Mutant) -> Mutant | None:
        """Return a mutant with its state; None: it was not tested before the end."""
        from cosmic_ray.mutating import use_mutation

        if time.monotonic() > self._end:
            return None
        with_kernels, without, failed = mutant.pop("compiled"), mutant.pop("plain"), ""
        place = self.tree / mutant["file"], find_operator(mutant["operator"]), mutant["occurrence"]
        with use_mutation(*place):
            compiled = kernels_digest(self.tree) == self._digest  # otherwise all kernels would have to be compiled
        tests, limits = with_kernels if compiled else without
        mutant["tests"] = len(tests)
        while tests and mutant["state"] == "untested":
            with use_mutation(*place):
                state, failed = run_tests(self.tree, tests, limits, compiled)
                if state == "timeout" and run_tests(self.tree, [failed], limits, compiled)[0] == "survived":
                    tests = tests[tests.index(failed) + 1 :] or [failed]  # it was slow because of those before it
                    continue
            rest = [failed] if failed else tests
            if state == "survived" or run_tests(self.tree, rest, limits, compiled)[0] == "survived":
                mutant["state"] = state
            tests = [test for test in tests if failed and test != failed]  # it fails without the mutant, too
        print("{state}: {file}:{line} {old} → {new}".format(**mutant), failed, flush=True)
        return mutant


_copy: Copy
"""The copy of this process."""


def make_copy(folder: str, end: float) -> None:
    global _copy
    _copy = Copy(folder, end)


def test_mutant(mutant: Mutant) -> Mutant | None:
    return _copy.test(mutant)


def kernels_digest(tree: Path) -> bytes:
    """Return a digest of the sources that compiled kernels depend on."""
    return source_digest.__wrapped__(tree / "src" / "knapcache")


def run_tests(tree: Path, tests: Sequence[str], limits: Limits, compiled: bool) -> tuple[str, str]:
    """Run tests until one fails. Return the state of the mutant in this tree, and the test that failed or was ended.

    compiled   with compiled kernels
    """
    environment = environment_of(tree) | {"KNAPCACHE_COMPILE": str(int(compiled))}
    options = ["-o", f"faulthandler_timeout={limits.one}", "-o", "faulthandler_exit_on_timeout=true"]
    command = [sys.executable, "-m", *CONFIG["tests"].split(), *options, *tests]
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limits.all)
            ended = re.search(r"Timeout \(\d+:\d\d:\d\d", output) is not None  # by faulthandler
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            ended = True
    if ended:
        begun = [test for test in tests if f"\n{test} " in output]
        return "timeout", begun[-1] if begun else tests[0]
    names = re.findall(r"^(?:FAILED|ERROR) (tests/.*?\.py::.*?)(?: - .*)?$", output, re.M)
    return ("noticed" if process.returncode else "survived"), "".join(names[:1])


def main() -> int:
    parser = options_for(__doc__, "mutation.json")
    parser.add_argument("--sample", type=int, default=300, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tested at the same time")
    parser.add_argument("--minutes", type=float, help="end after these: the sample is what was tested by then")
    parser.add_argument(
        "--files", nargs="+", default=["src/**/*.py"], metavar="PATTERN", help="files to put faults into"
    )
    parser.add_argument("--coverage", type=Path, metavar="FILE", help="file for what the suite runs; read if it exists")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = options.coverage or Path(folder, "suite")
        if not data.exists():
            run_suite(data)
        mutants = draw_mutants(options.files, options.sample, options.seed, CoveringTests(data))
    end = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    with (
        tempfile.TemporaryDirectory() as folder,
        multiprocessing.Pool(options.jobs, make_copy, (folder, end)) as pool,
    ):
        mutants = [mutant for mutant in pool.imap(test_mutant, mutants) if mutant is not None]
    rows = []
    for area in [*sorted({mutant["area"] for mutant in mutants}), "total"]:
        counts = Counter(mutant["state"] for mutant in mutants if area in (mutant["area"], "total"))
        share = 1 - (counts["survived"] + counts["untested"]) / max(1, counts.total() - counts["equivalent"])
        rows.append({"area": area} | {state: counts[state] for state in STATES} | {"share": round(share, 4)})
    print_table(rows, title="Mutants")
    survivors = [mutant for mutant in mutants if mutant["state"] in ("survived", "untested")]
    write_result(options.out, "mutation", {"seed": options.seed, "areas": rows, "survivors": survivors})
    return int(rows[-1]["share"] < 0.95)


if __name__ == "__main__":
    sys.exit(main())
