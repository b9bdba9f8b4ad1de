"""Mutation testing: puts small faults into the code, one at a time, and counts those that a test notices.

    python bench/mutate.py [--sample 300] [--seed 1] [--jobs 1] [--out DIR]

The mutants are a random sample of all possible ones (_mutants.py), drawn from every area; the same seed and source give
the same sample. Each one runs in a copy of the tree, with the tests that execute the mutated line
(_mutation_runner.py).

    caught       a test fails that passes without the mutant
    timeout      the tests do not end within the time limit, which counts as caught
    survived     no test fails: the tests do not specify this behaviour
    equivalent   listed in equivalent_mutants.toml with the reason why no test can notice it; not counted

With `--again`, mutants that the last result in DIR lists as caught are not run again: after new tests only the
survivors matter. An interrupted run continues the same way.

Prints a table and the survivors; writes mutation.json to DIR. Exit code 1 if fewer than 90 % of the mutants that are
not equivalent are caught. The first run makes the coverage map, which takes some times as long as the tests.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import platform
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from _mutants import Mutant, draw, lines_using, mutants_of, names_assigned, read_equivalents, sample, shortened
from _mutation_runner import (
    POLL_SECONDS,
    CoverageMap,
    Run,
    Selector,
    copy_tree,
    forget_bytecode,
    warm_up,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

HERE = Path(__file__).resolve().parent
PACKAGE = "src/knapcache"
AREAS = {
    "keys": "keys/*.py",
    "wire": "wire/*.py",
    "cache/single_flight": "cache/single_flight.py",
    "cache/admission": "cache/admission.py",
    "cache/quotas": "cache/quotas.py",
    "cache/ledger": "cache/ledger.py",
    "cache/purging": "cache/purging.py",
    "cache/transfer": "cache/transfer*.py",
    "store/memory": "store/memory.py",
    "store/sqlite": "store/sqlite/*.py",
    "exchange": "exchange/*.py",
    "price/meter": "price/meter.py",
    "serve/http/access": "proxy/http/access.py",
    "serve/http/fast_path": "proxy/http/fast_path.py",
    "serve/admin/auth": "proxy/admin/auth.py",
    "serve/routes": "proxy/routing.py",
    "serve/limits": "features/limits/*.py",
    "serve/redaction": "features/content_log/redaction/*.py",
}
"""By name: the files that are mutated."""
TESTS = ("keys", "wire", "price", "store", "cache", "exchange", "integrations", "attacks", "serve")
NO_TESTS = (
    "tests/proxy/dashboard/*", "tests/proxy/events/*", "tests/proxy/settings/*", "tests/proxy/upstream/*",
    "tests/proxy/workers/*", "*/test_soak.py", "*/test_kill.py", "*/test_stress.py",
)  # fmt: skip
"""Test files that are left out: slow ones, and those about modules that are not mutated."""
TARGET = 0.9
TRACED_FILE_SECONDS = 900.0


class Worker:
    """One copy of the tree, and the mutant that is tested in it."""

    def __init__(self, copy: Path, package: str, selection: Selection, grace: float) -> None:
        self._copy, self._package, self._grace = copy, package, grace
        self._seconds = selection.seconds
        self._passes_without = dict.fromkeys(selection.passed, True)
        self._mutant: Mutant | None = None
        self._batches: list[list[str]] = []
        self._began = 0.0
        self._run: Run | None = None
        self._original = b""
        self._passed = 0

    @property
    def idle(self) -> bool:
        """Whether it has no mutant."""
        return self._mutant is None

    def start(self, mutant: Mutant, batches: list[list[str]]) -> None:
        """Start the tests of a mutant."""
        self._mutant, self._batches, self._began, self._passed = mutant, batches, time.monotonic(), 0
        self._original = self._path(mutant).read_bytes()
        self._write(mutant.apply(self._original))
        self._next()

    def _path(self, mutant: Mutant) -> Path:
        return self._copy / self._package / mutant.file

    def _write(self, content: bytes) -> None:
        assert self._mutant is not None
        self._path(self._mutant).write_bytes(content)
        forget_bytecode(self._path(self._mutant))

    def _next(self) -> None:
        tests = self._batches[0]
        limit = self._grace + 3 * sum(self._seconds.get(test, 1.0) for test in tests)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        self._run = Run(self._copy, files, Selector(tests), limit)

    def poll(self) -> dict[str, Any] | None:
        """Return the result of the mutant, or None while its tests run."""
        assert self._run is not None
        if (found := self._run.poll()) is None:
            return None
        self._passed += found["passed"]
        if found["code"] == 0:
            del self._batches[0]
            if self._batches:
                self._next()
                return None
            return self._end("survived", "")
        if found["code"] in ("timeout", "crash"):
            return self._end("timeout" if found["code"] == "timeout" else "caught", found["code"])
        if found["code"] == 5:  # no test was collected
            return self._end("survived", "")
        test = found["failed"]
        if test and not self._check_without(test):
            self._batches[0] = [other for other in self._batches[0] if other != test]
            self._batches = [batch for batch in self._batches if batch]
            if not self._batches:
                return self._end("survived", "")
            self._next()
            return None
        return self._end("caught", test or "collection")

    def _check_without(self, test: str) -> bool:
        """Return whether a test passes without the mutant."""
        if test not in self._passes_without:
            assert self._mutant is not None
            mutated = self._path(self._mutant).read_bytes()
            self._write(self._original)
            limit = 2 * self._grace + 5 * self._seconds.get(test, 10.0)
            found = Run(self._copy, [test.partition("::")[0]], Selector([test]), limit).wait()
            self._passes_without[test] = found["code"] in (
                0,
                5,
            )  # 5: a file that fails as a whole has no test of its name
            self._write(mutated)
        return self._passes_without[test]

    def _end(self, status: str, by: str) -> dict[str, Any]:
        assert self._mutant is not None
        self._write(self._original)
        mutant, self._mutant = self._mutant, None
        return record_of(mutant, status, by=by, passed=self._passed, seconds=round(time.monotonic() - self._began, 1))


def record_of(mutant: Mutant, status: str, **more: Any) -> dict[str, Any]:
    """Return the line of a mutant in the JSON file."""
    return {
        "file": mutant.file, "line": mutant.line, "function": mutant.function, "operator": mutant.operator,
        "text": mutant.text, "change": mutant.change, "status": status, **more,
    }  # fmt: skip


class Selection:
    """Selects the tests of a mutant."""

    def __init__(self, coverage: CoverageMap, sources: dict[str, bytes], limit: float) -> None:
        self.seconds, self.passed = coverage.seconds(), coverage.passed()
        self._by_line, self._sources, self._limit = coverage.tests_by_line(), sources, limit

    def tests(self, mutant: Mutant) -> set[str]:
        """Return the tests that execute the mutated statement.

        A statement outside functions runs once, at import. Its tests are those that execute a line which reads a name
        that it assigns. If there is no such line, they are those of the file, and all tests of the same folder.
        """
        by_line = self._by_line[mutant.file]
        if not mutant.at_import:
            return self._at(by_line, range(mutant.first_line, mutant.last_line + 1))
        lines = self._sources[mutant.file].decode().split("\n")[mutant.first_line - 1 : mutant.last_line]
        names = names_assigned("\n".join(lines))
        found: set[str] = set()
        for file, source in self._sources.items() if names else ():
            found |= self._at(self._by_line[file], lines_using(names, source))
        folder = f"tests/{mutant.file.rpartition('/')[0]}/"
        return found or {test for test in self.seconds if test.startswith(folder)} | self._at(by_line, by_line)

    @staticmethod
    def _at(by_line: dict[int, set[str]], lines: Any) -> set[str]:
        return set().union(*(by_line.get(line, ()) for line in lines))

    def batches(self, mutant: Mutant) -> list[list[str]]:
        """Return the tests to run, in two parts: those of the same folder, then further ones.

        Of each test file the quickest come first, file by file in turn: a limit on the seconds then leaves out few
        files. Files named after the module are not cut, and do not count.
        """
        *folders, name = mutant.file.removesuffix(".py").split("/")
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(self.tests(mutant), key=self._seconds):
            by_file[test.partition("::")[0]].append(test)
        batches: list[list[str]] = [[], []]
        total = 0.0
        ranked = []
        for file, tests in by_file.items():
            near = shared_folders(file.split("/")[1:], folders) > 0
            own = near and f"{Path(file).stem}_".startswith(f"test_{name}_")
            ranked += [(not near, not own, 0 if own else k, self._seconds(test), test) for k, test in enumerate(tests)]
        for far, other, _, seconds, test in sorted(ranked):
            if not other or total + seconds <= self._limit * (1.0 if far else 0.6) or not any(batches):
                total += seconds * other
                batches[far].append(test)
        return [self._by_file(batch) for batch in batches if batch]

    def _seconds(self, test: str) -> float:
        return self.seconds.get(test, 1.0)

    def _by_file(self, tests: list[str]) -> list[str]:
        """Group by file, so that what the tests of a file share is set up once. Quick files come first."""
        totals: dict[str, float] = defaultdict(float)
        for test in tests:
            totals[test.partition("::")[0]] += self._seconds(test)
        return sorted(tests, key=lambda test: (totals[test.partition("::")[0]], test.partition("::")[0]))


def shared_folders(one: list[str], other: list[str]) -> int:
    """Return the number of leading folders that two paths have in common."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def progress_bar(console: Console) -> Progress:
    """Return a bar with an estimate. It is refreshed by hand: a thread would not survive a fork."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, auto_refresh=False)


def update_map(coverage: CoverageMap, test_files: list[str], console: Console) -> None:
    """Run changed test files with tracing."""
    stale = coverage.stale(test_files)
    with progress_bar(console) as bar:
        task = bar.add_task("coverage map", total=len(stale))
        for name in stale:
            bar.update(task, description=f"coverage map: {name}", refresh=True)
            coverage.update(name, TRACED_FILE_SECONDS)
            coverage.save()
            bar.advance(task)
            if not console.is_terminal:
                console.print(f"traced {name}")


def run_mutants(
    drawn: list[tuple[str, Mutant]], selection: Selection, workers: list[Worker], console: Console, result: Result
) -> None:
    """Test all mutants, and add their records to the result."""
    records: list[dict[str, Any]] = []
    waiting = drawn[::-1]
    areas: dict[int, str] = {}
    began = time.monotonic()
    with progress_bar(console) as bar:
        task = bar.add_task("mutants", total=len(drawn))

        def add(area: str, record: dict[str, Any]) -> None:
            records.append(record)
            result.records.append({"area": area, **record})
            result.write()
            counts = Counter(record["status"] for record in records)
            bar.update(task, advance=1, description=f"mutants: {counts['survived']} survived", refresh=True)
            if not console.is_terminal:
                left = (time.monotonic() - began) / len(records) * (len(drawn) - len(records))
                place = f"{record['file']}:{record['line']} {record['operator']}: {shortened(record['change'], 90)}"
                done = f"{len(records)}/{len(drawn)}, {left / 60:.0f} min left"
                say(console, f"{done}: {record['status']:9} {record['seconds']:5.1f} s  {place}")

        while waiting or not all(worker.idle for worker in workers):
            for k, worker in enumerate(workers):
                if worker.idle and waiting:
                    area, mutant = waiting.pop()
                    batches = selection.batches(mutant)
                    if not batches:
                        add(area, record_of(mutant, "survived", by="no test executes it", passed=0, seconds=0.0))
                        continue
                    areas[k] = area
                    worker.start(mutant, batches)
                elif not worker.idle and (record := worker.poll()) is not None:
                    add(areas[k], record)
            time.sleep(POLL_SECONDS)


def say(console: Console, text: str) -> None:
    """Print plain text without wrapping."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def summary(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return counts by area, and in total."""
    rows = []
    for area in [*dict.fromkeys(record["area"] for record in records), "total"]:
        counts = Counter(record["status"] for record in records if area in (record["area"], "total"))
        caught, valid = counts["caught"] + counts["timeout"], counts.total() - counts["equivalent"]
        row = {status: counts[status] for status in ("caught", "timeout", "survived", "equivalent")}
        rows.append({"area": area, **row, "share": round(caught / valid, 4) if valid else None})
    return rows


def print_summary(rows: list[dict[str, Any]], records: list[dict[str, Any]], console: Console) -> None:
    """Print the table, and the survivors."""
    for record in records:
        if record["status"] == "survived":
            place = f"{record['file']}:{record['line']} in {record['function'] or 'module'}"
            say(console, f"{place}: {record['operator']}\n    {record['text']}\n    {record['change']}")
    table = Table("area", *(["caught", "timeout", "survived", "equivalent", "share"]))
    for row in rows:
        share = "" if row["share"] is None else f"{row['share']:.1%}"
        table.add_row(row["area"], *(str(row[name]) for name in ("caught", "timeout", "survived", "equivalent")), share)
    console.print(table)


def parse_arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=300, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tested at the same time")
    parser.add_argument("--seconds", type=float, default=100.0, help="tests of one mutant, in seconds under tracing")
    parser.add_argument("--grace", type=float, default=20.0, help="seconds that a run may take beyond three times that")
    parser.add_argument("--only", default="*", help="pattern of the areas of the sample to run")
    parser.add_argument("--least", type=int, default=8, help="least number of mutants of an area")
    parser.add_argument("--out", type=Path, help="directory for mutation.json")
    parser.add_argument("--again", action="store_true", help="do not run mutants again that were caught before")
    parser.add_argument("--work", type=Path, default=HERE.parent / "out" / "mutation", help="copies of the tree, map")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="the repository")
    parser.add_argument("--package", default=PACKAGE)
    parser.add_argument("--equivalents", type=Path, default=HERE / "equivalent_mutants.toml")
    return parser.parse_args()


def main() -> int:
    """Run it. Return the exit code."""
    options, console = parse_arguments(), Console()
    work: Path = options.work.resolve()
    copies = [work / f"tree-{k}" for k in range(options.jobs)]
    for copy in copies:
        copy.mkdir(parents=True, exist_ok=True)
        copy_tree(options.root, copy)
    ours = options.package == PACKAGE
    if ours:
        warm_up()
    package = options.root / options.package
    patterns = AREAS if ours else {"all": "*.py"}
    files = {
        area: sorted(
            str(path.relative_to(package)) for path in package.rglob("*.py") if matches(path, package, pattern)
        )
        for area, pattern in patterns.items()
    }
    sources = {file: (package / file).read_bytes() for area in files for file in files[area]}
    folders = [options.root / "tests" / name for name in TESTS] if ours else [options.root / "tests"]
    paths = [path.relative_to(options.root) for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    test_files = [str(path) for path in paths if not any(fnmatch.fnmatch(str(path), pattern) for pattern in NO_TESTS)]
    coverage = CoverageMap(work / "map.json", copies[0], options.package, list(sources))
    update_map(coverage, test_files, console)
    selection = Selection(coverage, sources, options.seconds)
    areas = {
        area: [mutant for file in files[area] for mutant in mutants_of(file, sources[file], options.seed)]
        for area in files
    }
    drawn = sample(areas, sources, options.sample, options.seed, options.least)
    drawn = {area: found for area, found in drawn.items() if fnmatch.fnmatch(area, options.only)}
    result = Result(options, {area: len(found) for area, found in areas.items()})
    to_run = result.settle(drawn, read_equivalents(options.equivalents))
    workers = [Worker(copy, options.package, selection, options.grace) for copy in copies]
    run_mutants(to_run, selection, workers, console, result)
    rows = summary(result.ordered())
    print_summary(rows, result.ordered(), console)
    result.write()
    share = rows[-1]["share"]
    return 0 if share is None or share >= TARGET else 1


class Result:
    """The records of a run, and their file."""

    def __init__(self, options: argparse.Namespace, candidates: dict[str, int]) -> None:
        self.records: list[dict[str, Any]] = []
        self._options, self._candidates, self._began = options, candidates, time.monotonic()
        self._path: Path | None = options.out and options.out / "mutation.json"
        self._reused = self._drawn = 0

    def settle(
        self, drawn: dict[str, list[Mutant]], reasons: dict[tuple[str, str, str, str, str], str]
    ) -> list[tuple[str, Mutant]]:
        """Record the mutants whose result is known (equivalent, or with --again caught before). Return the others."""
        caught = {}
        if self._options.again and self._path is not None and self._path.exists():
            for record in json.loads(self._path.read_text(encoding="utf-8"))["mutants"]:
                if record["status"] in ("caught", "timeout"):
                    caught[identity_of(record)] = record
        to_run = []
        self._drawn = sum(map(len, drawn.values()))
        for area, found in drawn.items():
            for mutant in found:
                if mutant.identity in reasons:
                    record = record_of(mutant, "equivalent", reason=reasons[mutant.identity])
                    self.records.append({"area": area, **record})
                elif mutant.identity in caught:
                    self.records.append({**caught[mutant.identity], "area": area, "line": mutant.line})
                    self._reused += 1
                else:
                    to_run.append((area, mutant))
        # In random order, so that the share of survivors is known early.
        return sorted(to_run, key=lambda item: draw(self._options.seed, item[1].identity))

    def ordered(self) -> list[dict[str, Any]]:
        """Return the records by area, file and line."""
        areas = list(self._candidates)
        return sorted(self.records, key=lambda record: (areas.index(record["area"]), record["file"], record["line"]))

    def write(self) -> None:
        """Write the file."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        options = self._options
        result = {
            "command": f"make mutate SAMPLE={options.sample} SEED={options.seed}",
            "commit": commit_of(options.root),
            "python": platform.python_version(),
            "candidates": self._candidates,
            "caught_before": self._reused,
            "not_run": self._drawn - len(self.records),
            "minutes": round((time.monotonic() - self._began) / 60, 1),
            "target": TARGET,
            "summary": summary(self.ordered()),
            "mutants": self.ordered(),
        }
        text = json.dumps(result, indent=1, ensure_ascii=False)
        self._path.write_text(text + "\n", encoding="utf-8")


def identity_of(record: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """Return the identity of the mutant of a record."""
    return record["file"], record["function"], record["operator"], record["text"], record["change"]


def matches(path: Path, package: Path, pattern: str) -> bool:
    """Return whether a file belongs to a pattern; `*` matches no `/`."""
    relative = path.relative_to(package)
    return len(relative.parts) == len(pattern.split("/")) and relative.match(pattern)


def commit_of(root: Path) -> str:
    """Return the commit of a checkout, or an empty string."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
