"""The one place that knows Numba.

A *kernel* is a plain Python function over numbers and arrays. `@kernel` compiles it on its first call, keeps the
machine code on disk for every later process, and releases the GIL while it runs (`@inlined` does not), so that a live
cache can solve a knapsack on a background thread. With KNAPCACHE_COMPILE=0 in the environment a kernel is the Python
function itself: slow, but a debugger steps through it, and the tests run part of the suite that way to show that both
are the same program.

Four things here are ours because Numba's own disk cache cannot do them:

* Numba recompiles a function when *its own* file changes, not when a function it calls changes in another file; the
  caller goes on running stale code. Here the stamp is a digest of all of knapcache that kernels can be made of, and of
  the files around every function from elsewhere that the kernel closes over.
* Numba cannot find a kernel again that closes over other kernels (`replay_loop(arrive, settle)`), because it
  identifies a compiled function by a random id. Here it is identified by its module, name and line, and by what it
  closes over, which with that digest says it all.
* Numba numbers its files through an index that two processes can read at the same moment, and then one number means
  two functions. Here the name of a file is a digest of what it holds, and there is no index.
* The first compilation takes a while; on a terminal it says so, and once in the log, for servers. Where nothing can
  be written, every run compiles.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import platformdirs

from knapcache.errors import InvalidInput

COMPILED = os.environ.get("KNAPCACHE_COMPILE", "1") != "0"

log = logging.getLogger("knapcache.kernel")

F = TypeVar("F", bound=Callable[..., Any])

# Arrays of records, as kernels see them: `rows[i].misses += 1`. NumPy's types cannot name the fields, hence Any.
Records = Any


def records(fields: list[tuple[str, str]], length: int) -> Records:
    """A zeroed array of records that kernels read and write by field name.

    Compiled code takes a plain structured array three times faster than a `recarray`, but only a `recarray` understands
    `rows[i].field` in plain Python, and there a field named as something every NumPy scalar has (`size`, `clip`) would
    be hidden behind it.
    """
    if hidden := [name for name, _ in fields if hasattr(np.record, name)]:
        raise InvalidInput(f"{', '.join(hidden)}: a NumPy scalar has attributes of that name; choose others")
    array = np.zeros(length, _layout(tuple(fields)))
    return array if COMPILED else array.view(np.recarray)


@functools.cache
def _layout(fields: tuple[tuple[str, str], ...]) -> np.dtype[Any]:
    """One object for one layout: Numba knows it again by its address, and looks 4 µs at any other, at every call."""
    return np.dtype(list(fields), align=True)


def _closed_over(function: Callable[..., Any]) -> Iterator[Any]:
    """What a function takes from the function around it, and the defaults of its own arguments."""
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell: the function calls itself and is just being defined
            yield cell.cell_contents
    yield from getattr(function, "__defaults__", None) or ()


def identity(value: object, above: tuple[object, ...] = ()) -> str:
    """What a value that a kernel closes over *is*, in words that are the same in every process.

    `above` are the functions on the way to it, so that one that calls itself comes to an end.
    """
    function: Any = getattr(value, "py_func", value)
    if isinstance(value, np.ndarray):  # its repr leaves out the middle
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
    """A digest of the source files of a package, or of a plain directory of scripts without what lies below it.

    Of a package's own packages those count that know kernels: what a proxy does changes no machine code.
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
    """The outermost packages, or the directories of scripts, that a kernel and all it closes over come from.

    Raises FileNotFoundError where a function was typed in and has no file.
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


@functools.cache
def cache_directory() -> Path:
    """Where compiled kernels are kept, apart for each installation.

    That is KNAPCACHE_KERNEL_CACHE, or the user's cache directory.
    """
    given = os.environ.get("KNAPCACHE_KERNEL_CACHE")
    root = Path(given) if given else Path(platformdirs.user_cache_dir("knapcache")) / "kernels"
    place = hashlib.sha256(str(Path(__file__).parent).encode()).hexdigest()[:12]
    return root / place


def _announce(name: str) -> None:
    """Say why the program pauses: every kernel on a terminal, that there are some in the log."""
    _log_compiling()
    if sys.stderr.isatty():
        print(f"\r\x1b[2Kknapcache: compiling {name} for this machine (once)…", end="", file=sys.stderr, flush=True)


@functools.cache  # once a process
def _log_compiling() -> None:
    log.info("compiling for this machine, once: starting may take a minute (kept in %s)", cache_directory())


def _announce_end() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


@functools.cache  # once is enough
def _announce_unkept(reason: str) -> None:
    if sys.stderr.isatty():
        print(
            f"knapcache: cannot keep compiled code ({reason}), so every run compiles anew;"
            " KNAPCACHE_KERNEL_CACHE can name a directory for it",
            file=sys.stderr,
        )


borrowed: Callable[[Any], Any]
"""The same array without a count of its references, for the inside of a long loop.

A compiled function that is not inlined counts a reference to each array it is given, up on entry and down on return,
with atomic instructions: in replays of ARC and S3-FIFO these took a quarter and a third of the time. Whoever called the
loop holds the array anyway.
"""

if COMPILED:
    import numba
    from numba import extending
    from numba.core import caching, compiler, serialize

    class _DiskCache(caching._Cache):
        """The machine code of one kernel: a file for each signature, made of a stamp, a checksum and the code."""

        def __init__(self, function: Callable[..., Any]) -> None:
            self._function = function
            # Taken now, at import: by the first call the files may have changed under a running program.
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
            return str(cache_directory()) if self._stamp else None

        def _file(self, sig: Any, codegen: Any) -> Path:
            what = repr((sig, codegen.magic_tuple(), identity(self._function), sys.implementation.cache_tag))
            return cache_directory() / f"{self._function.__name__}-{hashlib.sha256(what.encode()).hexdigest()[:32]}"

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            target_context.refresh()
            code = self._stamp and _read(self._file(sig, target_context.codegen()), self._stamp)
            if code:
                return compiler.CompileResult._rebuild(target_context, *pickle.loads(code))  # type: ignore[no-untyped-call]
            _announce(self._function.__qualname__.replace("<locals>.", ""))
            return None

        def save_overload(self, sig: Any, data: Any) -> None:
            _announce_end()
            # Code with addresses of this very process in it (a global array above 1 MB) is of no use to another.
            if self._stamp and not data.lifted and not data.library.has_dynamic_globals:
                code = serialize.dumps(data._reduce())  # type: ignore[no-untyped-call]
                _write(self._file(sig, data.codegen), self._stamp, code)

        def enable(self) -> None: ...

        def disable(self) -> None: ...

        def flush(self) -> None: ...

    def _read(file: Path, stamp: bytes) -> bytes | None:
        """The code in `file`; None where there is none, or it is older than the sources, or damaged."""
        try:
            content = file.read_bytes()
        except OSError:
            return None
        code = content[64:]
        return code if content[:64] == stamp + hashlib.sha256(code).digest() else None

    def _write(file: Path, stamp: bytes, code: bytes) -> None:
        """Put `code` into `file` in one step, so that no process ever reads a half of it."""
        draft = file.with_name(f"{file.name}.{os.urandom(8).hex()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(stamp + hashlib.sha256(code).digest() + code)
            draft.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            _announce_unkept(str(error))

    @extending.intrinsic
    def _borrowed(_typing: Any, array: Any) -> Any:

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            view = context.make_array(signature.args[0])(context, builder, values[0])
            view.meminfo = view.meminfo.type(None)
            view.parent = view.parent.type(None)
            return view._getvalue()

        return array(array), generate

    borrowed = cast(Any, _borrowed)

    def kernel(function: F) -> F:
        """Compile `function` on its first call; see the top of this file."""
        return _compiled(function, inline=False)

    def inlined(function: F) -> F:
        """A kernel that becomes part of each kernel that calls it: for what runs once a request and does little.

        Called from Python it keeps the GIL: who lets go of it for a microsecond may wait milliseconds to get it back.
        Not for all: with the Oracle's kernels inlined too, `vsocb-lazy` took a third longer to compile.
        """
        return _compiled(function, inline=True)

    def _compiled(function: F, *, inline: bool) -> F:
        compiled: Any = numba.njit(nogil=not inline, forceinline=inline)(function)
        compiled._cache = _DiskCache(function)
        return cast(F, compiled)

else:

    def _same(array: Any) -> Any:
        return array

    borrowed = _same

    def kernel(function: F) -> F:
        """Compilation is switched off: the kernel is the function."""
        return function

    inlined = kernel
