"""Sweeps: independent runs in parallel, by processes of this machine here, or workers of a cluster (cluster.py).

Results are in the order of the items, and each item has its own seed. So the place and the number of processes affect
only the run time.

The work of a sweep is one *batch*: a function, the values that all its calls share, and the items. The batch is sent
once to each process; for an item only its number is sent. So a trace of millions of requests is copied once per
machine, however many cells it is replayed in.

An executor takes a batch and yields the results in the order of the items. If it is closed early (an error, Ctrl-C, or
a caller that stops iterating), it stops all work that can be stopped.
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
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from knapcache.errors import InvalidInput

Result = TypeVar("Result")
ALIGNED = 64
"""Alignment of mapped arrays in bytes: one cache line, at least that of NumPy's own arrays."""


@dataclass(frozen=True)
class TaskBatch(Generic[Result]):
    """`function(*shared, item)` for every item."""

    function: Callable[..., Result]
    shared: tuple[Any, ...]
    items: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.items)

    def run(self, k: int) -> Result:
        return self.function(*self.shared, self.items[k])


class Executor(Protocol):
    def run(self, batch: TaskBatch[Result]) -> Generator[Result, None, None]:
        """Yield the results in the order of the items. The first exception of an item is raised unchanged."""


Jobs: TypeAlias = int | Executor | None
"""Where to run: a number of local processes, one per core (None), or an executor."""


def executor(jobs: Jobs) -> Executor:
    return LocalExecutor(jobs) if jobs is None or isinstance(jobs, int) else jobs


class LocalExecutor:
    """Local processes: one per core by default, and never more than items. A single one is the current process."""

    def __init__(self, jobs: int | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise InvalidInput(f"jobs must be at least 1, not {jobs}")
        self.jobs = jobs if jobs is not None else os.cpu_count() or 1

    def run(self, batch: TaskBatch[Result]) -> Generator[Result, None, None]:
        jobs = min(self.jobs, len(batch))
        if jobs <= 1:
            yield from map(batch.run, range(len(batch)))
            return
        # spawn, not fork: the progress bar runs a thread, and a fork may copy a held lock.
        with (
            tempfile.TemporaryDirectory(prefix="knapcache-") as folder,
            ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool,
        ):
            write_shared(batch, Path(folder))
            others = multiprocessing.active_children()  # started by the caller
            try:
                with _ignoring_interrupts():
                    futures = [pool.submit(_run_shared, Path(folder), k) for k in range(len(batch))]
                for future in futures:
                    yield future.result()
            except BaseException:
                # Do not cancel futures, as pool.map would: the pool fails on cancelled work whose process has ended.
                for child in multiprocessing.active_children():
                    if child not in others:
                        child.terminate()
                raise


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Make processes started here ignore Ctrl-C, which a terminal sends to all of them; the parent terminates them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def write_shared(value: object, folder: Path) -> None:
    """Write a value as two files: its pickle, and its arrays for other processes to map."""
    arrays: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    spans = []
    with (folder / "arrays").open("wb") as file:
        for array in arrays:
            file.write(bytes(-file.tell() % ALIGNED))
            with array.raw() as raw:
                spans.append((file.tell(), raw.nbytes))
                file.write(raw)
        file.write(b"\0")  # an empty file cannot be mapped
    (folder / "pickle").write_bytes(pickle.dumps((pickled, spans)))


def map_shared(folder: Path) -> Any:
    """Read a value written by `write_shared`. All processes share the memory of its arrays."""
    pickled, spans = pickle.loads((folder / "pickle").read_bytes())
    with (folder / "arrays").open("rb") as file:
        # Copy on write, not read-only: kernels would be compiled again for read-only arrays.
        arrays = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return pickle.loads(pickled, buffers=[arrays[start : start + length] for start, length in spans])


_map_shared_once = functools.lru_cache(maxsize=1)(map_shared)  # a process of the pool runs a single batch


def _run_shared(folder: Path, k: int) -> Any:
    return _map_shared_once(folder).run(k)


def sweep(
    function: Callable[..., Result],
    items: Sequence[Any],
    *,
    shared: tuple[Any, ...] = (),
    jobs: Jobs = None,
    title: str = "",
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Result]:
    """Return `[function(*shared, item) for item in items]`, computed on all cores, `jobs` processes, or an executor.

    `shared` may be large: it is sent once to each process, not once for each item. `on_progress` is called after each
    item with the number of finished items and of all.
    """
    results = executor(jobs).run(TaskBatch(function, shared, tuple(items)))
    found: list[Result] = []
    console = Console(stderr=True)  # the bar is shown on a terminal only
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with closing(results), bar:
        for result in bar.track(results, total=len(items), description=title):
            found.append(result)
            if on_progress is not None:
                on_progress(len(found), len(items))
    return found
