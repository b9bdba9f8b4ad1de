"""Where a sweep runs: the processes of this machine here, the workers of a cluster in cluster.py.

All work of a sweep is one *parcel*: a function, the values that all its calls share, and the items. The parcel
travels once to each process, and what is sent for an item is its number. A trace of millions of requests thus costs one
copy a machine, however many cells it is replayed in.

An executor takes a parcel and yields the results, in the order of the items. Closed early, by an error, Ctrl-C or a
caller that has seen enough, it leaves nothing running that it can stop.
"""

from __future__ import annotations

import functools
import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from knapcache.errors import InvalidInput

Result = TypeVar("Result")
ALIGNED = 64
"""Arrays start at multiples of this, a cache line, as NumPy's own do or better."""


@dataclass(frozen=True)
class TaskBatch(Generic[Result]):
    """`function(*shared, item)` for every item."""

    function: Callable[..., Result]
    shared: tuple[Any, ...]
    items: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.items)

    def run(self, k: int) -> Result:
        """The result of item k."""
        return self.function(*self.shared, self.items[k])


class Executor(Protocol):
    """Runs parcels."""

    def run(self, parcel: TaskBatch[Result]) -> Generator[Result, None, None]:
        """The results, in the order of the items; the first error of an item is raised as it is."""


Jobs: TypeAlias = int | Executor | None
"""Where to run: a number of processes of this machine, all its cores (None), or an executor."""


def executor(jobs: Jobs) -> Executor:
    """What `jobs` says."""
    return LocalExecutor(jobs) if jobs is None or isinstance(jobs, int) else jobs


class LocalExecutor:
    """Processes of this machine: all cores by default, and never more than items. One process is this one."""

    def __init__(self, jobs: int | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise InvalidInput(f"jobs must be at least 1, not {jobs}")
        self.jobs = jobs if jobs is not None else os.cpu_count() or 1

    def run(self, parcel: TaskBatch[Result]) -> Generator[Result, None, None]:
        """See Executor."""
        jobs = min(self.jobs, len(parcel))
        if jobs <= 1:
            yield from map(parcel.run, range(len(parcel)))
            return
        # Fresh interpreters, not forks: the progress bar runs a thread, and a fork may copy a lock in mid-use.
        with (
            tempfile.TemporaryDirectory(prefix="knapcache-") as folder,
            ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool,
        ):
            write_shared(parcel, Path(folder))
            others = multiprocessing.active_children()  # the caller's, which are none of our business
            try:
                with _ignoring_interrupts():
                    futures = [pool.submit(_run_shared, Path(folder), k) for k in range(len(parcel))]
                for future in futures:
                    yield future.result()
            except BaseException:
                # Nothing is cancelled (as pool.map would): the pool trips over cancelled work whose process then ends.
                for child in multiprocessing.active_children():
                    if child not in others:
                        child.terminate()
                raise


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes started here ignore Ctrl-C, which the terminal sends to all of them: their parent ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def write_shared(value: object, folder: Path) -> None:
    """A value as two files: its pickle, and its arrays for others to map."""
    arrays: list[pickle.PickleBuffer] = []
    text = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    spans = []
    with (folder / "arrays").open("wb") as file:
        for array in arrays:
            file.write(bytes(-file.tell() % ALIGNED))
            with array.raw() as raw:
                spans.append((file.tell(), raw.nbytes))
                file.write(raw)
        file.write(b"\0")  # an empty file cannot be mapped
    (folder / "pickle").write_bytes(pickle.dumps((text, spans)))


def map_shared(folder: Path) -> Any:
    """The value again. Processes that pick up the same one share the memory of its arrays."""
    text, spans = pickle.loads((folder / "pickle").read_bytes())
    with (folder / "arrays").open("rb") as file:
        # Copy on write, not read-only: kernels are compiled for arrays that may be written, and once is enough.
        arrays = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return pickle.loads(text, buffers=[arrays[start : start + length] for start, length in spans])


_map_shared_once = functools.lru_cache(maxsize=1)(map_shared)  # a process of the pool has one parcel in its life


def _run_shared(folder: Path, k: int) -> Any:
    return _map_shared_once(folder).run(k)
