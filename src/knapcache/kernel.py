"""The one place that knows Numba.

A *kernel* is a plain Python function over numbers and arrays. `@kernel` compiles it on its first call, keeps the machine
code on disk for every later process, and releases the GIL while it runs, so that a live cache can solve a knapsack on a
background thread. With KNAPCACHE_COMPILE=0 in the environment a kernel is the Python function itself: slow, but a debugger
steps through it, and the tests run part of the suite that way to show that both are the same program.

Three things here are ours because Numba's own disk cache cannot do them:

* Numba recompiles a function when *its own* file changes, not when a function it calls changes in another file; the caller
  goes on running stale code. Here the stamp is a digest of every source file of knapcache.
* Numba cannot find a kernel again that closes over other kernels (`replay_loop(arrive, settle)`), because it identifies a
  compiled function by a random id. Here it is identified by its module and name, which with that digest says it all.
* The first compilation takes a while; on a terminal it says so.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import platformdirs

COMPILED = os.environ.get("KNAPCACHE_COMPILE", "1") != "0"

F = TypeVar("F", bound=Callable[..., Any])

# Arrays of records, as kernels see them: `rows[i].misses += 1`. NumPy's types cannot name the fields, hence Any.
Records = Any


def records(fields: list[tuple[str, str]], length: int) -> Records:
    """A zeroed array of records that kernels read and write by field name.

    Compiled code takes a plain structured array three times faster than a `recarray`, but only a `recarray` understands
    `rows[i].field` in plain Python.
    """
    array = np.zeros(length, np.dtype(fields, align=True))
    return array if COMPILED else array.view(np.recarray)


def identity(value: object) -> str:
    """What a value that a kernel closes over *is*, in words that are the same in every process."""
    function = getattr(value, "py_func", value)
    if not callable(function):
        return repr(value)
    cells = ",".join(identity(cell.cell_contents) for cell in function.__closure__ or ())
    return f"{function.__module__}.{function.__qualname__}({cells})"


@functools.cache
def _source_digest(root: Path) -> str:
    """A digest of every source file under `root`: compiled code is as old as the youngest of them."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def cache_directory() -> Path:
    """Where compiled kernels are kept: KNAPCACHE_KERNEL_CACHE, or the user's cache directory, apart for each installation."""
    given = os.environ.get("KNAPCACHE_KERNEL_CACHE")
    root = Path(given) if given else Path(platformdirs.user_cache_dir("knapcache")) / "kernels"
    place = hashlib.sha256(str(Path(__file__).parent).encode()).hexdigest()[:12]
    return root / place


def _announce(name: str) -> None:
    """Say on a terminal, and only there, why the program pauses."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2Kknapcache: compiling {name} for this machine (once)…", end="", file=sys.stderr, flush=True)


def _announce_end() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


if COMPILED:
    import numba
    from numba.core import caching

    class _Locator(caching._CacheLocator):  # type: ignore[misc]  # Numba ships no types
        """Puts compiled code into our directory, stamped with our digest."""

        def __init__(self, function: Callable[..., Any]) -> None:
            self._function = function

        @classmethod
        def from_function(cls, function: Callable[..., Any], _file: str) -> _Locator:
            return cls(function)

        def get_cache_path(self) -> str:
            return str(cache_directory())

        def get_source_stamp(self) -> str:
            here, there = Path(__file__).parent, Path(self._function.__code__.co_filename).parent
            return _source_digest(here) if there.is_relative_to(here) else _source_digest(here) + _source_digest(there)

        def get_disambiguator(self) -> str:
            return f"{self._function.__module__}-{self._function.__code__.co_firstlineno}"

    class _Results(caching.CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes = (_Locator,)

    class _DiskCache(caching.FunctionCache):  # type: ignore[misc]
        """Numba's function cache, with closures found again by name, and a word on the terminal before a compilation."""

        _impl_class = _Results

        def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
            return sig, codegen.magic_tuple(), identity(self._py_func)

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            found = super().load_overload(sig, target_context)
            if found is None:
                _announce(self._py_func.__qualname__.replace("<locals>.", ""))
            return found

        def save_overload(self, sig: Any, data: Any) -> None:
            _announce_end()
            super().save_overload(sig, data)

    def kernel(function: F) -> F:
        """Compile `function` on its first call; see the top of this file."""
        compiled = numba.njit(nogil=True)(function)
        compiled._cache = _DiskCache(function)
        return compiled  # type: ignore[no-any-return]

else:

    def kernel(function: F) -> F:
        """Compilation is switched off: the kernel is the function."""
        return function
