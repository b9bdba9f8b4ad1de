"""Kernels are compiled once and reloaded, never stale and never mixed up, and run as plain Python on request.

The disk cache works between processes, so almost every test writes a small program into its own directory and runs it
there with its own kernel cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

import knapcache.kernel
from knapcache.kernel import CACHE_LINE, identity
from tests.support.warm_python import WarmPython

HITS = """
import json

def show(**kernels):
    print(json.dumps({name: [result, sum(k.stats.cache_hits.values())] for name, (result, k) in kernels.items()}))
"""


class Sandbox:
    """A directory with modules, and processes that run them."""

    def __init__(self, root: Path, warm: WarmPython) -> None:
        self.root = root
        self.warm = warm
        self.cache = root / "kernels"
        self.write("hits", HITS)

    def write(self, module: str, source: str) -> None:
        """Write a module; a dot in its name creates a package."""
        path = self.root / (module.replace(".", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        if path.parent != self.root:
            (path.parent / "__init__.py").touch()
        path.write_text(dedent(source))

    def environment(self, **extra: str) -> dict[str, str]:
        base = {key: value for key, value in os.environ.items() if not key.startswith(("KNAPCACHE_", "NUMBA_"))}
        return base | {"KNAPCACHE_KERNEL_CACHE": str(self.cache), "PYTHONDONTWRITEBYTECODE": "1"} | extra

    def run(self, module: str, *arguments: str, **extra: str) -> str:
        """Run a module and return its standard output. Its standard error must be empty."""
        done = self.warm.run(f"{module}.py", *arguments, cwd=self.root, env=self.environment(**extra))
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def read(self, module: str, *arguments: str, **extra: str) -> Any:
        """Run a module and return its JSON output."""
        return json.loads(self.run(module, *arguments, **extra))

    def read_cold(self, module: str, *arguments: str, **extra: str) -> Any:
        """Do the same in a process that has imported nothing before, and may run beside others."""
        done = subprocess.run(
            [sys.executable, f"{module}.py", *arguments],
            cwd=self.root,
            env=self.environment(**extra),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)


@pytest.fixture
def sandbox(tmp_path: Path, warm: WarmPython) -> Sandbox:
    return Sandbox(tmp_path, warm)


def test_a_kernel_is_compiled_once_and_then_loaded(sandbox: Sandbox) -> None:
    sandbox.write(
        "once",
        """
        import numpy as np
        from hits import show
        from knapcache.kernel import kernel

        @kernel
        def total(values):
            result = 0.0
            for value in values:
                result += value
            return result

        show(total=(total(np.arange(5.0)), total))
        """,
    )
    assert sandbox.read_cold("once") == {"total": [10.0, 0]}
    assert sandbox.read_cold("once") == {"total": [10.0, 1]}


CLOSURES = """
import sys
from hits import show
from knapcache.kernel import kernel

def twice(step):
    @kernel
    def run(x):
        return step(step(x))
    return run

def plus(n):
    @kernel
    def add(x):
        return x + n
    return add

def defaulted(n):
    @kernel
    def add(x, n=n):
        return x + n
    return add

def chosen(first):
    if first:
        @kernel
        def pick(x):
            return x + 1
    else:
        @kernel
        def pick(x):
            return x + 2
    return pick

@kernel
def tenfold(x):
    return 10 * x

makers = {
    "of_plus_1": lambda: twice(plus(1)),
    "of_plus_2": lambda: twice(plus(2)),
    "of_tenfold": lambda: twice(tenfold),
    "nested_1": lambda: twice(twice(plus(1))),
    "nested_2": lambda: twice(twice(plus(2))),
    "default_1": lambda: twice(defaulted(1)),
    "default_2": lambda: twice(defaulted(2)),
    "same_name_1": lambda: twice(chosen(True)),
    "same_name_2": lambda: twice(chosen(False)),
}
kernels = {name: makers[name]() for name in sys.argv[1:] or makers}
show(**{name: (k(1), k) for name, k in kernels.items()})
"""
CLOSURE_RESULTS = {
    "of_plus_1": 3,
    "of_plus_2": 5,
    "of_tenfold": 100,
    "nested_1": 5,
    "nested_2": 9,
    "default_1": 3,
    "default_2": 5,
    "same_name_1": 3,
    "same_name_2": 5,
}


def test_kernels_with_closures_are_reloaded_and_not_mixed_up(sandbox: Sandbox) -> None:
    sandbox.write("closures", CLOSURES)
    first = sandbox.read("closures")
    assert {name: result for name, (result, _) in first.items()} == CLOSURE_RESULTS
    again = sandbox.read("closures")
    assert again == {name: [result, 1] for name, result in CLOSURE_RESULTS.items()}


def test_processes_that_compile_at_the_same_time_do_not_disturb_each_other(sandbox: Sandbox) -> None:
    sandbox.write("closures", CLOSURES)
    names = ["of_plus_1", "of_plus_2", "of_tenfold"]
    with ThreadPoolExecutor(3) as pool:
        for name, found in zip(names, pool.map(lambda name: sandbox.read_cold("closures", name), names), strict=True):
            assert found[name][0] == CLOSURE_RESULTS[name]
    assert sandbox.read("closures", *names) == {name: [CLOSURE_RESULTS[name], 1] for name in names}


def test_a_kernel_is_recompiled_when_a_function_it_calls_changes_in_another_file(sandbox: Sandbox) -> None:
    source = Path(knapcache.kernel.__file__)
    sandbox.write("tiny.leaf", "from tiny.kernel import kernel\n@kernel\ndef leaf(x):\n    return x + 1\n")
    shutil.copy(source, sandbox.root / "tiny" / "kernel.py")
    sandbox.write(
        "tiny.caller",
        """
        from tiny.kernel import kernel
        from tiny.leaf import leaf

        @kernel
        def caller(x):
            return leaf(x)
        """,
    )
    sandbox.write("main", "from hits import show\nfrom tiny.caller import caller\nshow(caller=(caller(1), caller))\n")
    assert sandbox.read("main") == {"caller": [2, 0]}
    assert sandbox.read("main") == {"caller": [2, 1]}
    sandbox.write("tiny.leaf", "from tiny.kernel import kernel\n@kernel\ndef leaf(x):\n    return x + 100\n")
    assert sandbox.read("main") == {"caller": [101, 0]}


def test_a_kernel_is_recompiled_when_a_function_of_its_closure_changes_in_another_package(sandbox: Sandbox) -> None:
    # A user's policy: its functions go into knapcache's loops, whose own files do not change.
    mine = "from knapcache.kernel import kernel\n@kernel\ndef step(x):\n    return x + 1\n"
    sandbox.write("ours.loops", CLOSURES.split("def plus")[0])
    sandbox.write("theirs.steps", mine)
    sandbox.write(
        "main",
        """
        from hits import show
        from ours.loops import twice
        from theirs.steps import step

        show(outer=((outer := twice(twice(step)))(1), outer))
        """,
    )
    assert sandbox.read("main") == {"outer": [5, 0]}
    assert sandbox.read("main") == {"outer": [5, 1]}
    sandbox.write("theirs.steps", mine.replace("x + 1", "x + 10"))
    assert sandbox.read("main") == {"outer": [41, 0]}


def test_a_kernel_without_a_source_file_is_not_cached(sandbox: Sandbox) -> None:
    # An edited notebook cell must not run its old code.
    for n in (1, 2):
        code = f"from knapcache.kernel import kernel\n@kernel\ndef add(x):\n    return x + {n}\nprint(add(1))"
        sandbox.write("typed", f"exec(compile({code!r}, '<cell>', 'exec'))")
        assert sandbox.run("typed") == f"{1 + n}\n"
    assert not sandbox.cache.exists()


def test_damaged_cache_files_are_recompiled(sandbox: Sandbox) -> None:
    sandbox.write("closures", CLOSURES)
    sandbox.read("closures", "of_plus_1")
    files = [path for path in sandbox.cache.rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:-10])
    assert sandbox.read("closures", "of_plus_1") == {"of_plus_1": [3, 0]}
    assert sandbox.read("closures", "of_plus_1") == {"of_plus_1": [3, 1]}


def test_uncompiled_kernels_give_the_same_results_without_numba(sandbox: Sandbox) -> None:
    sandbox.write(
        "modes",
        """
        import json
        import sys
        import types
        from knapcache.kernel import COMPILED, kernel, records

        @kernel
        def count(rows, n):
            for i in range(n):
                rows[i % len(rows)].seen += 1
                rows[i % len(rows)].cost += 0.1 * i
            return rows[0].seen

        rows = records([("seen", "i8"), ("cost", "f8")], 3)
        result = int(count(rows, 100))
        print(json.dumps({
            "compiled": COMPILED,
            "plain": isinstance(count, types.FunctionType),
            "numba": "numba" in sys.modules,
            "answer": [result, rows["seen"].tolist(), rows["cost"].tolist()],
        }))
        """,
    )
    compiled, plain = sandbox.read("modes"), sandbox.read_cold("modes", KNAPCACHE_COMPILE="0")
    assert compiled.pop("answer") == plain.pop("answer")
    assert compiled == {"compiled": True, "plain": False, "numba": True}
    assert plain == {"compiled": False, "plain": True, "numba": False}


def test_a_kernel_releases_the_gil(sandbox: Sandbox) -> None:
    # The kernel runs until Python writes to its array. If it held the GIL, Python could not, and it would return False.
    sandbox.write(
        "spin",
        """
        import threading
        import numpy as np
        from knapcache.kernel import kernel

        @kernel
        def spin(started, flags, limit):
            started[0] = 1
            x = 1
            for _ in range(limit):
                x = (x * 1103515245 + 12345) % 2147483648  # unpredictable for the compiler
                if flags[x % len(flags)]:
                    return True
            return False

        started, flags = np.zeros(1), np.zeros(1024)
        spin(started, flags, 1)
        started[0] = 0
        answers = []
        thread = threading.Thread(target=lambda: answers.append(spin(started, flags, 1_000_000_000)))
        thread.start()
        while not started[0] and thread.is_alive():
            pass
        flags[:] = 1
        thread.join()
        print(answers)
        """,
    )
    assert sandbox.run("spin") == "[True]\n"


def on_a_terminal(sandbox: Sandbox, module: str, **extra: str) -> str:
    """Run a module with a terminal as its standard error, and return what it writes there."""
    pty = pytest.importorskip("pty")
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [sys.executable, f"{module}.py"],
        cwd=sandbox.root,
        env=sandbox.environment(**extra),
        stdout=subprocess.DEVNULL,
        stderr=writer,
    ) as process:
        os.close(writer)
        output = b""
        while True:
            try:
                more = os.read(reader, 4096)
            except OSError:  # on Linux: the other end is closed
                break
            if not more:
                break
            output += more
    os.close(reader)
    assert process.returncode == 0, output
    return output.decode()


TWO_KERNELS = """
from knapcache.kernel import kernel

@kernel
def inner(x):
    return x + 1

@kernel
def outer(x):
    return 2 * inner(x)

print(outer(1), inner(1.0))
"""


def test_compilation_is_reported_on_a_terminal_only(sandbox: Sandbox) -> None:
    sandbox.write("two", TWO_KERNELS)
    first = on_a_terminal(sandbox, "two")
    assert "compiling outer" in first
    assert first.endswith("\x1b[2K")  # the line is cleared
    assert on_a_terminal(sandbox, "two") == ""
    shutil.rmtree(sandbox.cache)
    assert sandbox.run("two") == "4 2.0\n"  # also checks that standard error is empty


def test_without_a_writable_directory_kernels_are_cached_in_a_temporary_one(sandbox: Sandbox) -> None:
    sandbox.write("two", TWO_KERNELS)
    sandbox.cache.write_text("a file where a directory should be")
    temporary = sandbox.root / "temporary"
    temporary.mkdir()
    assert "compiling outer" in on_a_terminal(sandbox, "two", TMPDIR=str(temporary))
    assert on_a_terminal(sandbox, "two", TMPDIR=str(temporary)) == ""


def test_kernels_work_where_nothing_can_be_written(sandbox: Sandbox) -> None:
    sandbox.write("two", TWO_KERNELS)
    sandbox.cache.write_text("a file where a directory should be")
    (sandbox.root / f"knapcache-kernels-{os.getuid()}").write_text("a file where a directory should be")
    shown = on_a_terminal(sandbox, "two", TMPDIR=str(sandbox.root))
    assert shown.count("cannot cache compiled code") == 1


def test_importing_knapcache_is_cheap(sandbox: Sandbox) -> None:
    sandbox.write("cheap", "import json, sys, knapcache\nprint(json.dumps(sorted(sys.modules)))")
    loaded = set(sandbox.read_cold("cheap"))
    assert "knapcache" in loaded
    assert not loaded & {"numba", "matplotlib", "scipy", "ortools"}


def test_identity_distinguishes_values() -> None:
    large = np.arange(5000)
    other = large.copy()
    other[2500] = 0  # in the middle, which a repr omits
    values = [1, 1.0, True, 0.1, np.nextafter(0.1, 1), "1", (1, 2), (1, 3), large, other, large.astype("f8"), np.int64]
    assert len({identity(value) for value in values}) == len(values)
    assert identity(large) == identity(large.copy())


def test_identity_of_recursive_functions_terminates() -> None:
    def factory(n: int) -> Any:
        def recursive(x: int) -> int:
            return x if x > n else int(recursive(x + 1))

        return recursive

    assert identity(factory(1)) == identity(factory(1)) != identity(factory(2))
    assert identity(np.sqrt) != identity(np.exp)
    assert identity(max) != identity(min)
    assert identity((factory(1), max)) == identity((factory(1), max))


def test_record_arrays_of_one_layout_share_their_dtype() -> None:
    """Numba recognises a dtype by its address; an equal one at another address makes calls slower."""
    fields = [("misses", "i8"), ("cost", "f8")]
    first, second = (knapcache.kernel.records(list(fields), n) for n in (3, 5))
    assert np.asarray(first).dtype is np.asarray(second).dtype or not knapcache.kernel.COMPILED
    assert first.dtype == second.dtype == np.dtype(fields, align=True)


def test_record_arrays_begin_at_a_cache_line() -> None:
    for length in range(1, 9):
        assert knapcache.kernel.records([("row_number", "i8")], length).ctypes.data % CACHE_LINE == 0


def test_compilation_is_logged_once(sandbox: Sandbox) -> None:
    """A server has no terminal; the log explains why the first start is slow."""
    sandbox.write(
        "two",
        """
        import logging, sys
        from knapcache.kernel import kernel

        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(name)s %(message)s")

        @kernel
        def one(x):
            return x + 1

        @kernel
        def two(x):
            return x + 2

        assert one(1) + two(1) == 5
        """,
    )
    (line,) = sandbox.run("two").splitlines()
    assert line.startswith("INFO knapcache.kernel compiling kernels once for this machine")
    assert str(sandbox.cache) in line
    assert sandbox.run("two") == ""  # loaded from disk: nothing is logged
