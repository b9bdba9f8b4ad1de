"""Kernels: compiled once and found again, never stale, never mixed up; plain Python when asked for.

What matters here happens between processes, so almost every test writes a few lines of Python into a directory of its
own and runs them there, with a kernel cache of its own.
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
from knapcache.kernel import identity

HITS = """
import json

def show(**kernels):
    print(json.dumps({name: [result, sum(k.stats.cache_hits.values())] for name, (result, k) in kernels.items()}))
"""


class Lab:
    """A directory with modules in it, and processes that run them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cache = root / "kernels"
        self.write("hits", HITS)

    def write(self, module: str, source: str) -> None:
        """Put source into a module; a dot in its name makes a package."""
        path = self.root / (module.replace(".", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        if path.parent != self.root:
            (path.parent / "__init__.py").touch()
        path.write_text(dedent(source))

    def environment(self, **extra: str) -> dict[str, str]:
        base = {key: value for key, value in os.environ.items() if not key.startswith(("KNAPCACHE_", "NUMBA_"))}
        return base | {"KNAPCACHE_KERNEL_CACHE": str(self.cache), "PYTHONDONTWRITEBYTECODE": "1"} | extra

    def run(self, module: str, *arguments: str, **extra: str) -> str:
        """What the module prints; it must not print anything on its error channel."""
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
        return done.stdout

    def read(self, module: str, *arguments: str, **extra: str) -> Any:
        """What the module prints, as JSON."""
        return json.loads(self.run(module, *arguments, **extra))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_kernel_is_compiled_once_and_then_loaded(lab: Lab) -> None:
    lab.write(
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
    assert lab.read("once") == {"total": [10.0, 0]}
    assert lab.read("once") == {"total": [10.0, 1]}


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


def test_kernels_that_close_over_kernels_and_numbers_are_found_again_and_not_mixed_up(lab: Lab) -> None:
    lab.write("closures", CLOSURES)
    first = lab.read("closures")
    assert {name: result for name, (result, _) in first.items()} == CLOSURE_RESULTS
    again = lab.read("closures")
    assert again == {name: [result, 1] for name, result in CLOSURE_RESULTS.items()}


def test_processes_that_compile_at_the_same_time_do_not_disturb_each_other(lab: Lab) -> None:
    lab.write("closures", CLOSURES)
    names = ["of_plus_1", "of_plus_2", "of_tenfold"]
    with ThreadPoolExecutor(3) as pool:
        for name, found in zip(names, pool.map(lambda name: lab.read("closures", name), names), strict=True):
            assert found[name][0] == CLOSURE_RESULTS[name]
    assert lab.read("closures", *names) == {name: [CLOSURE_RESULTS[name], 1] for name in names}


def test_a_kernel_is_recompiled_when_a_function_it_calls_changes_in_another_file(lab: Lab) -> None:
    source = Path(knapcache.kernel.__file__)
    lab.write("tiny.leaf", "from tiny.kernel import kernel\n@kernel\ndef leaf(x):\n    return x + 1\n")
    shutil.copy(source, lab.root / "tiny" / "kernel.py")
    lab.write(
        "tiny.caller",
        """
        from tiny.kernel import kernel
        from tiny.leaf import leaf

        @kernel
        def caller(x):
            return leaf(x)
        """,
    )
    lab.write("main", "from hits import show\nfrom tiny.caller import caller\nshow(caller=(caller(1), caller))\n")
    assert lab.read("main") == {"caller": [2, 0]}
    assert lab.read("main") == {"caller": [2, 1]}
    lab.write("tiny.leaf", "from tiny.kernel import kernel\n@kernel\ndef leaf(x):\n    return x + 100\n")
    assert lab.read("main") == {"caller": [101, 0]}


def test_a_kernel_is_recompiled_when_what_it_closes_over_changes_outside_its_package(lab: Lab) -> None:
    # A policy that a user writes: his functions go into loops of ours, whose own files never change.
    mine = "from knapcache.kernel import kernel\n@kernel\ndef step(x):\n    return x + 1\n"
    lab.write("ours.loops", CLOSURES.split("def plus")[0])
    lab.write("theirs.steps", mine)
    lab.write(
        "main",
        """
        from hits import show
        from ours.loops import twice
        from theirs.steps import step

        show(outer=((outer := twice(twice(step)))(1), outer))
        """,
    )
    assert lab.read("main") == {"outer": [5, 0]}
    assert lab.read("main") == {"outer": [5, 1]}
    lab.write("theirs.steps", mine.replace("x + 1", "x + 10"))
    assert lab.read("main") == {"outer": [41, 0]}


def test_a_kernel_that_was_typed_in_is_never_taken_for_an_earlier_one(lab: Lab) -> None:
    # No file, no digest: a notebook cell that was edited must not run its old code.
    for n in (1, 2):
        code = f"from knapcache.kernel import kernel\n@kernel\ndef add(x):\n    return x + {n}\nprint(add(1))"
        lab.write("typed", f"exec(compile({code!r}, '<cell>', 'exec'))")
        assert lab.run("typed") == f"{1 + n}\n"
    assert not lab.cache.exists()


def test_damaged_files_are_compiled_anew(lab: Lab) -> None:
    lab.write("closures", CLOSURES)
    lab.read("closures", "of_plus_1")
    files = [path for path in lab.cache.rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:-10])
    assert lab.read("closures", "of_plus_1") == {"of_plus_1": [3, 0]}
    assert lab.read("closures", "of_plus_1") == {"of_plus_1": [3, 1]}


def test_plain_mode_is_the_function_itself_without_numba_and_with_the_same_results(lab: Lab) -> None:
    lab.write(
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
    compiled, plain = lab.read("modes"), lab.read("modes", KNAPCACHE_COMPILE="0")
    assert compiled.pop("answer") == plain.pop("answer")
    assert compiled == {"compiled": True, "plain": False, "numba": True}
    assert plain == {"compiled": False, "plain": True, "numba": False}


def test_a_kernel_releases_the_gil(lab: Lab) -> None:
    # The kernel runs until Python writes into its array. If it held the GIL, Python could not, and it would give up.
    lab.write(
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
                x = (x * 1103515245 + 12345) % 2147483648  # no compiler can tell which flag comes next
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
    assert lab.run("spin") == "[True]\n"


def on_a_terminal(lab: Lab, module: str, **extra: str) -> str:
    """What a module writes to its error channel when that is a terminal."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, f"{module}.py"],
        cwd=lab.root,
        env=lab.environment(**extra),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                more = os.read(ours, 4096)
            except OSError:  # Linux says so when the other end is closed
                break
            if not more:
                break
            said += more
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode()


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


def test_the_first_compilation_says_so_on_a_terminal_and_nowhere_else(lab: Lab) -> None:
    lab.write("two", TWO_KERNELS)
    first = on_a_terminal(lab, "two")
    assert "compiling outer" in first
    assert first.endswith("\x1b[2K")  # and wipes what it said
    assert on_a_terminal(lab, "two") == ""
    shutil.rmtree(lab.cache)
    assert lab.run("two") == "4 2.0\n"  # checks that the error channel is empty


def test_kernels_work_where_nothing_can_be_written(lab: Lab) -> None:
    lab.write("two", TWO_KERNELS)
    lab.cache.write_text("a file where a directory should be")
    assert lab.run("two") == "4 2.0\n"
    assert on_a_terminal(lab, "two").count("cannot keep compiled code") == 1


def test_importing_knapcache_is_cheap(lab: Lab) -> None:
    lab.write("cheap", "import json, sys, knapcache\nprint(json.dumps(sorted(sys.modules)))")
    loaded = set(lab.read("cheap"))
    assert "knapcache" in loaded
    assert not loaded & {"numba", "matplotlib", "scipy", "ortools"}


def test_identity_tells_values_apart() -> None:
    large = np.arange(5000)
    other = large.copy()
    other[2500] = 0  # in the middle, which a repr leaves out
    values = [1, 1.0, True, 0.1, np.nextafter(0.1, 1), "1", (1, 2), (1, 3), large, other, large.astype("f8"), np.int64]
    assert len({identity(value) for value in values}) == len(values)
    assert identity(large) == identity(large.copy())


def test_identity_of_functions_comes_to_an_end() -> None:
    def factory(n: int) -> Any:
        def recursive(x: int) -> int:
            return x if x > n else int(recursive(x + 1))

        return recursive

    assert identity(factory(1)) == identity(factory(1)) != identity(factory(2))
    assert identity(np.sqrt) != identity(np.exp)
    assert identity(max) != identity(min)
    assert identity((factory(1), max)) == identity((factory(1), max))


def test_arrays_of_one_layout_share_its_description() -> None:
    """By its address a call from Python finds the compiled code again; an equal one at another address takes longer."""
    fields = [("misses", "i8"), ("cost", "f8")]
    first, second = (knapcache.kernel.records(list(fields), n) for n in (3, 5))
    assert np.asarray(first).dtype is np.asarray(second).dtype or not knapcache.kernel.COMPILED
    assert first.dtype == second.dtype == np.dtype(fields, align=True)


def test_the_log_says_once_that_something_is_compiled(lab: Lab) -> None:
    """A server has no terminal, and somebody asks why it takes so long to start."""
    lab.write(
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
    (line,) = lab.run("two").splitlines()
    assert line.startswith("INFO knapcache.kernel compiling for this machine, once")
    assert str(lab.cache) in line
    assert lab.run("two") == "", "it is loaded, and there is nothing to say"
