"""Runs tests against mutants in copies of the tree, in forks of one warm process.

The parent process imports pytest, the libraries and the layers below the mutated ones (`knapcache.policy` with its
compiled kernels), but no mutated module. Each run is a fork of it, which takes milliseconds, with the copy first in
sys.path. The copy holds the mutated file, so processes that tests start run the mutant, too.

    coverage map   each test file runs once under sys.settrace, which gives the lines that each test executes, and its
                   seconds. The map is stored; later only changed test files run again. Lines that moved are found by
                   a comparison with the stored source.
    selection      the tests that execute a mutated line: first those of the same folder, then the fastest ones of the
                   others, as far as their seconds fit into the limit
    result         a failed test that passes without the mutant: caught. No result within the time limit: timeout

Rejected: mutmut and cosmic-ray. mutmut 3 selects tests by function, draws no sample, and has no operators for locks,
swapped arguments and removed statements. cosmic-ray starts pytest anew for every mutant and runs all tests of one
command: 5 s and more each, in place of 1 to 2 s here. Rejected: coverage.py for the map: one more dependency, and its
contexts leave out the set-up of a test.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.metadata
import json
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

PRELOADED = (
    "anyio", "anthropic", "apsw", "genai_prices.data_snapshot", "gzip", "httptools", "httpx", "hypothesis.strategies",
    "numba", "numpy", "openai", "orjson", "prometheus_client", "pydantic_settings", "pytest_asyncio.plugin", "ssl",
    "starlette.applications", "starlette.testclient", "uvicorn.protocols.http.httptools_impl", "uvloop", "xdist.plugin",
)  # fmt: skip
"""Modules that most tests import. Those that are not installed are left out."""
WARM_POLICIES = ("lru", "adaptive", "gdsf-cost", "vsocb")
WARM_SHADOWS = ("lru",)
MEMORY_LIMIT = 12 << 30
"""Bytes of address space of one run."""
MAX_TRACED_CALLS = 300
MAX_TRACED_LINES = 200_000
"""Calls of a function, and lines, that are traced in one test. Tracing makes code ten times slower."""
POLL_SECONDS = 0.01

TestLines = dict[str, dict[str, list[int]]]
"""By test: by file, the lines that it executes."""


def warm_up() -> None:
    """Import what all runs need, and load compiled kernels. A thread would not survive a fork: none may start here."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "CI": "1"}
    names = [point.module for point in importlib.metadata.entry_points(group="pytest11")]
    for name in (*PRELOADED, *names):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for package in ("knapcache.estimate", "knapcache.oracle", "knapcache.policy"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    from knapcache.policy import registry

    for name in WARM_POLICIES:
        policy = registry.find(name).build(1, 2)
        policy.arrive(0)
        policy.settle(0, 1, 1.0)
        policy.settle(1, 1, 1.0)
        policy.forget(0)
    shadows = import_alone("knapcache.cache.shadow").Shadows(WARM_SHADOWS, 2, 2)
    shadows.observe(0, 1, 1.0)
    shadows.spent()


def import_alone(name: str) -> Any:
    """Import a module without its package, whose other modules may be mutated. A mutated copy of this module, which has
    kernels, would be compiled anew for every mutant.
    """
    package = name.rpartition(".")[0]
    stub = types.ModuleType(package)
    parent = importlib.import_module(package.rpartition(".")[0])
    stub.__path__ = [str(Path(path) / package.rpartition(".")[2]) for path in parent.__path__]
    sys.modules[package] = stub
    module = importlib.import_module(name)
    del sys.modules[package]
    return module


def copy_tree(root: Path, copy: Path) -> None:
    """Make `copy` a copy of the tree. Files that are the same are left alone."""
    names = {name for name in listed_files(root) if (root / name).is_file() and "__pycache__" not in name}
    for old in [path for path in copy.rglob("*") if path.is_file() and "__pycache__" not in path.parts]:
        if str(old.relative_to(copy)) not in names:
            old.unlink()
    for name in names:
        source, target = root / name, copy / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
            forget_bytecode(target)


def listed_files(root: Path) -> list[str]:
    """Return the files that git knows or would add; without git, all."""
    if not (root / ".git").exists():
        return [str(path.relative_to(root)) for path in root.rglob("*")]
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip("\0").split("\0")


def forget_bytecode(path: Path) -> None:
    """Remove the compiled form of a source file: its time stamp may be too coarse to notice a change."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


class Selector:
    """A pytest plugin: runs these tests in this order, stops at the first failure, and reports it."""

    def __init__(self, tests: list[str]) -> None:
        self._rank = {test: k for k, test in enumerate(tests)}
        self.passed, self.failed = 0, ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Select and order."""
        load_hypothesis_profile()
        items[:] = sorted((item for item in items if item.nodeid in self._rank), key=lambda i: self._rank[i.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the first failure."""
        if report.failed and not self.failed:
            self.failed = report.nodeid
        self.passed += report.passed and report.when == "call"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a test file that cannot be imported."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def result(self) -> dict[str, Any]:
        """Return what the parent needs to know."""
        return {"failed": self.failed, "passed": self.passed}


class LineTracer:
    """A pytest plugin: records the lines of some files that each test executes, set-up included."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = {str(file) for file in files}
        self._seen: set[tuple[str, int]] = set()
        self._calls: Counter[types.CodeType] = Counter()
        self._lines = 0
        self._failed: set[str] = set()
        self.tests: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Trace this thread and all that start later."""
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def _trace(self, frame: Any, _event: str, _argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if code.co_filename not in self._files:
            return None
        self._calls[code] += 1
        return self._trace_line if self._calls[code] <= MAX_TRACED_CALLS and self._lines < MAX_TRACED_LINES else None

    def _trace_line(self, frame: Any, event: str, _argument: Any) -> Callable[..., Any] | None:
        if event == "line":
            self._seen.add((frame.f_code.co_filename, frame.f_lineno))
            self._lines += 1
            if self._lines >= MAX_TRACED_LINES:
                frame.f_trace_lines = False
                return None
        return self._trace_line

    def pytest_collection_modifyitems(self) -> None:
        """Hypothesis draws the same examples as in later runs."""
        load_hypothesis_profile()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Collect the lines of one test."""
        self._seen, self._calls, self._lines = set(), Counter(), 0
        sys.settrace(self._trace)
        began = time.perf_counter()
        result = yield
        lines = defaultdict(list)
        for file, line in sorted(self._seen.copy()):
            lines[file].append(line)
        self.tests[item.nodeid] = {
            "seconds": round(time.perf_counter() - began, 4),
            "passed": item.nodeid not in self._failed,
            "lines": dict(lines),
        }
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note failures: tracing slows tests down, and some are impatient."""
        if report.failed:
            self._failed.add(report.nodeid)

    def result(self) -> dict[str, Any]:
        """Return lines and seconds by test."""
        sys.settrace(None)
        return {"tests": self.tests}


def load_hypothesis_profile() -> None:
    """The same examples in every run, and no time spent on shrinking a failure."""
    with contextlib.suppress(ImportError):
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", deadline=None, derandomize=True, database=None, phases=phases)
        settings.load_profile("mutation")


class Run:
    """One fork that runs pytest in a copy of the tree."""

    def __init__(self, copy: Path, arguments: list[str], plugin: Selector | LineTracer, seconds: float) -> None:
        self.began, self._limit = time.monotonic(), seconds
        self._result = copy.parent / f"{copy.name}.result"
        self._result.unlink(missing_ok=True)
        self.log = copy.parent / f"{copy.name}.log"
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            code = 70
            try:
                code = self._run(copy, arguments, plugin)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def _run(self, copy: Path, arguments: list[str], plugin: Selector | LineTracer) -> int:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
        log = os.open(self.log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(copy)
        paths = [str(copy), str(copy / "src"), str(copy / "experiments")]
        sys.path[:0] = paths
        import_from(copy / "src")
        os.environ["PYTHONPATH"] = os.pathsep.join(paths[1:])
        tracing = isinstance(plugin, LineTracer)
        sys.dont_write_bytecode = not tracing
        if isinstance(plugin, LineTracer):
            plugin.start()
        base = copy.parent / f"{copy.name}.tmp"
        options = ["-q", "-p", "rerunfailures", "--reruns", "0"]  # also where the project itself does not load it
        options += ["-p", "no:cacheprovider", f"--basetemp={base}", f"--rootdir={copy}"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"] + ([] if tracing else ["-x"])
        code = int(pytest.main([*options, *arguments], plugins=[plugin]))
        self._result.write_text(json.dumps({"code": code, **plugin.result()}))
        return 0

    def poll(self) -> dict[str, Any] | None:
        """Return the result, or None while it runs. Without an exit code of pytest, `code` is "timeout" or "crash"."""
        pid, _ = os.waitpid(self._pid, os.WNOHANG)
        late = time.monotonic() - self.began > self._limit
        if not pid and not late:
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)  # its group: also processes that a test left behind
        if not pid:
            os.waitpid(self._pid, 0)
        try:
            found: dict[str, Any] = json.loads(self._result.read_text())
        except (OSError, ValueError):
            return {"code": "timeout" if late else "crash", "failed": "", "passed": 0}
        return found

    def wait(self) -> dict[str, Any]:
        """Return the result."""
        while (found := self.poll()) is None:
            time.sleep(POLL_SECONDS)
        return found


def import_from(source: Path) -> None:
    """Let packages that the parent has imported find their other modules in this directory."""
    for name, module in list(sys.modules.items()):
        place = source.joinpath(*name.split("."))
        if hasattr(module, "__path__") and place.is_dir():
            module.__path__ = [str(place)]


def digest(path: Path) -> str:
    """Return a digest of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class CoverageMap:
    """Which tests execute which lines, and how long they take. Stored in `path`."""

    def __init__(self, path: Path, copy: Path, package: str, files: list[str]) -> None:
        self._path, self._copy, self._package, self._files = path, copy, package, files
        self._stored: dict[str, Any] = {"sources": {}, "test_files": {}}
        with contextlib.suppress(OSError, ValueError):
            self._stored = json.loads(path.read_text())

    def stale(self, test_files: list[str]) -> list[str]:
        """Return the test files that changed since the map was made, and drop those that are gone."""
        known = self._stored["test_files"]
        self._stored["test_files"] = {name: known[name] for name in test_files if name in known}
        return [name for name in test_files if known.get(name, {}).get("digest") != digest(self._copy / name)]

    def update(self, name: str, seconds: float) -> None:
        """Run one test file, and store its map."""
        sources = {file: self._copy / self._package / file for file in self._files}
        relative = {str(path): file for file, path in sources.items()}
        run = Run(self._copy, [name], LineTracer(sources.values()), seconds)
        found = run.wait()
        if found["code"] == pytest.ExitCode.USAGE_ERROR:
            raise RuntimeError(f"pytest cannot run {name}: {run.log.read_text(errors='replace')[-2000:]}")
        tests = {}
        for test, record in found.get("tests", {}).items():
            lines = {relative[path]: numbers for path, numbers in record["lines"].items()}
            tests[test] = {**record, "lines": lines}
        versions = {}
        for file, path in sources.items():
            versions[file] = digest(path)
            self._stored["sources"][versions[file]] = path.read_text()
        self._stored["test_files"][name] = {"digest": digest(self._copy / name), "sources": versions, "tests": tests}

    def save(self) -> None:
        """Write the map to its file, without sources that no test file refers to."""
        used = {version for record in self._stored["test_files"].values() for version in record["sources"].values()}
        self._stored["sources"] = {key: text for key, text in self._stored["sources"].items() if key in used}
        self._path.write_text(json.dumps(self._stored))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each test, traced."""
        return {
            test: record["seconds"]
            for file in self._stored["test_files"].values()
            for test, record in file["tests"].items()
        }

    def passed(self) -> set[str]:
        """Return the tests that passed, traced."""
        return {
            test
            for file in self._stored["test_files"].values()
            for test, record in file["tests"].items()
            if record["passed"]
        }

    def tests_by_line(self) -> dict[str, dict[int, set[str]]]:
        """Return by file, by current line: the tests that execute it."""
        found: dict[str, dict[int, set[str]]] = {file: defaultdict(set) for file in self._files}
        moved: dict[tuple[str, str], dict[int, list[int]]] = {}
        for record in self._stored["test_files"].values():
            for test, traced in record["tests"].items():
                for file, lines in traced["lines"].items():
                    if file not in found:
                        continue
                    key = file, record["sources"][file]
                    if key not in moved:
                        current = (self._copy / self._package / file).read_text()
                        moved[key] = moved_lines(self._stored["sources"][key[1]], current)
                    for line in lines:
                        for now in moved[key].get(line, ()):
                            found[file][now].add(test)
        return found


def moved_lines(old: str, new: str) -> dict[int, list[int]]:
    """Map each old line to the lines of the new text that get its tests.

    An added line gets the tests of the last old line before it: a test that executes one most likely executes both.
    """
    before, after = old.splitlines(), new.splitlines()
    moved: dict[int, list[int]] = defaultdict(list)
    if before == after:
        return {k: [k] for k in range(1, len(before) + 1)}
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            for k in range(i2 - i1):
                moved[i1 + k + 1].append(j1 + k + 1)
        else:
            for anchor in range(max(1, i1), max(i2, i1, 1) + 1):
                moved[anchor].extend(range(j1 + 1, j2 + 1))
    return moved
