"""Compiled kernels, and their disk cache. The only module that imports Numba.

A *kernel* is a plain Python function over numbers and arrays. `@kernel` compiles it on its first call, caches the
machine code on disk for later processes, and releases the GIL while it runs (`@inlined` does not), so that a live cache
can solve a knapsack on a background thread. KNAPCACHE_COMPILE in the environment says when kernels are compiled:

    not set   on the first call; a live cache decides with their Python form (uncompiled.py) until another process has
              compiled them (cache/background_compile.py)
    1         on the first call, also in a live cache: it starts later, and every decision takes the same time
    0         never: a kernel is the Python function itself, slow, but a debugger can step through it

This module replaces Numba's own disk cache because of four limitations:

* Numba recompiles a function when *its own* file changes, but not when a function that it calls changes in another
  file; the caller then runs stale code. Here the stamp is a digest of all knapcache packages with kernels, and of the
  files around every foreign function that the kernel closes over.
* Numba cannot cache a kernel that closes over other kernels (`replay_loop(arrive, settle)`), because it identifies a
  compiled function by a random id. Here it is identified by its module, name and line, and by what it closes over.
* Numba numbers its files through an index. Two processes that read it at the same time can give one number to two
  functions. Here a file is named after a digest of its content, and there is no index (kernel_files.py).
* The first compilation takes a while and Numba is silent. Here each compilation is reported on a terminal, and the
  first one in the log.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from knapcache import kernel_files
from knapcache.errors import InvalidInput

_MODE = os.environ.get("KNAPCACHE_COMPILE", "")
if _MODE not in ("", "0", "1"):
    raise InvalidInput(f"KNAPCACHE_COMPILE must be 0, 1 or not set, not {_MODE!r}")
COMPILED = _MODE != "0"
"""Whether kernels are compiled at all."""

log = logging.getLogger("knapcache.kernel")

F = TypeVar("F", bound=Callable[..., Any])

CACHE_LINE = 64

# A record array in a kernel: `rows[i].misses += 1`. NumPy's types cannot express the fields, hence Any.
Records = Any


def records(fields: list[tuple[str, str]], length: int) -> Records:
    """Return a zeroed record array that kernels read and write by field name.

    Passing a structured array to compiled code is three times faster than passing a `recarray`. But only a `recarray`
    supports `rows[i].field` in plain Python, and there NumPy's own attributes (`size`, `clip`) hide fields of that
    name. The array begins at a cache line: rows of 32 or 64 bytes then never extend over two.
    """
    if hidden := [name for name, _ in fields if hasattr(np.record, name)]:
        raise InvalidInput(f"fields {', '.join(hidden)} would be hidden by attributes of NumPy scalars; rename them")
    dtype = layout(fields)
    content = np.zeros(length * dtype.itemsize + CACHE_LINE, np.uint8)
    first = -content.ctypes.data % CACHE_LINE  # NumPy aligns to 16 bytes only
    array = content[first : first + length * dtype.itemsize].view(dtype)
    return array if COMPILED else array.view(np.recarray)


def layout(fields: list[tuple[str, str]]) -> np.dtype[Any]:
    """Return one dtype object per layout: Numba recognises it by address; an equal copy costs 4 µs at every call."""
    return _layout(tuple(fields))


@functools.cache
def _layout(fields: tuple[tuple[str, str], ...]) -> np.dtype[Any]:
    return np.dtype(list(fields), align=True)


def _closed_over(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield the values in a function's closure and the defaults of its arguments."""
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell: a recursive function that is being defined
            yield cell.cell_contents
    yield from getattr(function, "__defaults__", None) or ()


def identity(value: object, above: tuple[object, ...] = ()) -> str:
    """Return a text that identifies a value in a kernel's closure, equal in every process.

    `above` are the enclosing functions; they end the recursion for a function that calls itself.
    """
    function: Any = getattr(value, "py_func", value)
    if isinstance(value, np.ndarray):  # its repr is abbreviated
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, tuple):
        return "(" + ",".join(identity(part, above) for part in value) + ")"
    if not hasattr(function, "__qualname__"):
        return repr(value)
    name = f"{function.__module__}.{function.__qualname__}"
    if function in above or not hasattr(function, "__code__"):
        return name
    parts = ",".join(identity(part, (*above, function)) for part in _closed_over(function))
    return f"{name}:{function.__code__.co_firstlineno}({parts})"


@functools.cache
def source_digest(root: Path) -> bytes:
    """Return a digest of the sources of a package, or of the scripts directly in a plain directory.

    Subpackages without kernels are left out: a change in the proxy does not affect machine code.
    """
    digest = hashlib.sha256()
    files = {path: path.read_bytes() for path in root.glob("*.py")}
    if (root / "__init__.py").exists():
        for part in sorted(root.glob("*/__init__.py")):
            below = {path: path.read_bytes() for path in part.parent.rglob("*.py")}
            files |= below if any(b"kernel import" in content for content in below.values()) else {}
    for path, content in sorted(files.items()):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + content + b"\0")
    return digest.digest()


def _roots(function: Callable[..., Any], seen: set[object]) -> set[Path]:
    """Return the top-level packages, or directories of scripts, of a kernel and of all functions in its closure.

    Raises FileNotFoundError for a function without a source file, such as one typed into a console.
    """
    seen.add(function)
    root = Path(function.__code__.co_filename).resolve(strict=True).parent
    while (root / "__init__.py").exists() and (root.parent / "__init__.py").exists():
        root = root.parent
    roots = {root}
    for value in _closed_over(function):
        for part in value if isinstance(value, tuple) else (value,):
            below: Any = getattr(part, "py_func", part)
            if hasattr(below, "__code__") and below not in seen:
                roots |= _roots(below, seen)
    return roots


def _report_compiling(name: str) -> None:
    """Explain the pause: every kernel on a terminal, the first one in the log."""
    _log_compiling()
    if sys.stderr.isatty():
        print(f"\r\x1b[2Kknapcache: compiling {name} for this machine (once)…", end="", file=sys.stderr, flush=True)


@functools.cache  # once a process
def _log_compiling() -> None:
    folder = kernel_files.cache_directory()
    log.info("compiling kernels once for this machine: takes up to a minute (cached in %s)", folder)


def _clear_report() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def compiles_before_use() -> bool:
    """Return whether a live cache waits for its compiled kernels."""
    return os.environ.get("KNAPCACHE_COMPILE") == "1"


class _OnlyLoading(threading.local):
    active = False


_only_loading = _OnlyLoading()


class _NotCompiledError(Exception):
    """Raised instead of compiling while `load_compiled` runs. It never leaves this module."""


def load_compiled(call: Callable[[], object]) -> bool:
    """Call `call`, with compiled kernels from the disk cache only. False: one is not there, and `call` was ended."""
    _only_loading.active = True
    try:
        call()
    except _NotCompiledError:
        return False
    finally:
        _only_loading.active = False
    return True


borrowed: Callable[[Any], Any]
"""Return the same array without reference counting, for use inside a long loop.

A compiled function that is not inlined increments and decrements the reference count of each array argument with atomic
instructions. In replays of ARC and S3-FIFO these took a quarter and a third of the time. The caller of the loop holds a
reference for its whole duration.
"""

prefetch: Callable[[Any, int], None]
"""Start to load a row of a record array into the caches of the core. Nothing else changes."""


if COMPILED:
    import numba
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import extending, types
    from numba.core import caching, cgutils, compiler, serialize

    class _DiskCache(caching._Cache):
        """The cached machine code of one kernel: one file per signature, with a stamp, a checksum and the code."""

        def __init__(self, function: Callable[..., Any]) -> None:
            self._function = function
            # Computed at import: until the first call, the files of a running program may change.
            try:
                roots = {Path(__file__).resolve().parent, *_roots(function, set())}
            except FileNotFoundError:
                self._stamp = None
            else:
                versions = f"{numba.__version__} {sys.implementation.cache_tag}"
                digests = b"".join(source_digest(root) for root in sorted(roots))
                self._stamp = hashlib.sha256(versions.encode() + digests).digest()

        @property
        def cache_path(self) -> str | None:
            return str(kernel_files.cache_directory()) if self._stamp else None

        def _file(self, sig: Any, codegen: Any) -> Path:
            what = repr((sig, codegen.magic_tuple(), identity(self._function), sys.implementation.cache_tag))
            name = f"{self._function.__name__}-{hashlib.sha256(what.encode()).hexdigest()[:32]}"
            return kernel_files.cache_directory() / name

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            code = self._stamp and kernel_files.read(self._file(sig, target_context.codegen()), self._stamp)
            if code:
                target_context.refresh()
                return compiler.CompileResult._rebuild(target_context, *pickle.loads(code))  # type: ignore[no-untyped-call]
            if _only_loading.active:
                raise _NotCompiledError
            _report_compiling(self._function.__qualname__.replace("<locals>.", ""))
            return None

        def save_overload(self, sig: Any, data: Any) -> None:
            _clear_report()
            # Code that contains addresses of this process (a global array above 1 MB) cannot be reused.
            if self._stamp and not data.lifted and not data.library.has_dynamic_globals:
                code = serialize.dumps(data._reduce())  # type: ignore[no-untyped-call]
                kernel_files.write(self._file(sig, data.codegen), self._stamp, code)

        def enable(self) -> None: ...

        def disable(self) -> None: ...

        def flush(self) -> None: ...

    @extending.intrinsic
    def _borrowed(_typing: Any, array: Any) -> Any:

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            view = context.make_array(signature.args[0])(context, builder, values[0])
            view.meminfo = view.meminfo.type(None)
            view.parent = view.parent.type(None)
            return view._getvalue()

        return array(array), generate

    borrowed = cast(Any, _borrowed)

    @extending.intrinsic
    def _prefetch(_typing: Any, rows: Any, i: Any) -> Any:

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, values[0])
            position = context.cast(builder, values[1], signature.args[1], types.intp)
            kind = signature.args[0]
            row = cgutils.get_item_pointer(context, builder, kind, array, [position])  # type: ignore[no-untyped-call]
            byte, number = ir.IntType(8), ir.IntType(32)
            call = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
            name = "llvm.prefetch.p0i8"
            load = cgutils.get_or_insert_function(builder.module, call, name)  # type: ignore[no-untyped-call]
            start = builder.bitcast(row, byte.as_pointer())
            for offset in range(0, kind.dtype.size, CACHE_LINE):
                line = builder.gep(start, [ir.Constant(ir.IntType(64), offset)])
                builder.call(load, [line, *(ir.Constant(number, n) for n in (1, 3, 1))])  # to write, keep, data
            return context.get_dummy_value()

        return types.void(rows, i), generate

    prefetch = cast(Any, _prefetch)

    def kernel(function: F) -> F:
        """Compile `function` on its first call (see the module docstring)."""
        return _compiled(function, inline=False)

    def inlined(function: F) -> F:
        """Compile `function` as a kernel that is inlined into its callers: for short code that runs once per request.

        Called from Python it keeps the GIL: after releasing it for a microsecond, a thread may wait milliseconds for
        it. Do not inline everything: with the Oracle's kernels inlined, `vsocb-lazy` took a third longer to compile.
        """
        return _compiled(function, inline=True)

    def _compiled(function: F, *, inline: bool) -> F:
        # C wrappers are for function pointers. Without them, kernels compile 8 % faster.
        options: Any = {"nogil": not inline, "forceinline": inline, "no_cfunc_wrapper": True}
        compiled: Any = numba.njit(**options)(function)
        compiled._cache = _DiskCache(function)
        return cast(F, compiled)

else:

    def _same(array: Any) -> Any:
        return array

    borrowed = _same

    def prefetch(rows: Any, i: int) -> None: ...

    def kernel(function: F) -> F:
        """Return `function` unchanged: compilation is switched off."""
        return function

    inlined = kernel
