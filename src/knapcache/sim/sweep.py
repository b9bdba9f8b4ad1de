"""Many independent runs, side by side, with a progress bar.

Work goes through a `concurrent.futures` executor: processes on this machine. Results come back in the order of
the items, and each item carries its own seed, so the number of processes changes nothing but the time it takes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from knapcache.errors import InvalidInput

Item = TypeVar("Item")
Result = TypeVar("Result")


def sweep(
    function: Callable[[Item], Result], items: Sequence[Item], *, jobs: int | None = None, title: str = ""
) -> list[Result]:
    """`[function(item) for item in items]`, on `jobs` processes (all cores by default)."""
    jobs = min(jobs if jobs is not None else os.cpu_count() or 1, max(len(items), 1))
    if jobs < 1:
        raise InvalidInput(f"jobs must be at least 1, not {jobs}")
    with _bar(title, len(items)) as tick:
        if jobs == 1:
            return list(tick(map(function, items)))
        # Fresh interpreters, not forks: the progress bar runs a thread, and a fork may copy a lock in mid-use.
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            try:
                with _deaf_to_interrupts():
                    futures = [pool.submit(function, item) for item in items]
                return list(tick(future.result() for future in futures))
            except BaseException:
                # Nothing is cancelled (as pool.map would): the pool trips over cancelled work whose process then ends.
                for worker in multiprocessing.active_children():
                    worker.terminate()
                raise


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started here ignore Ctrl-C, which the terminal sends to all of them: their parent ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[Iterable[Result]], Iterator[Result]]]:
    """A bar on a terminal, silence elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)

        def tick(results: Iterable[Result]) -> Iterator[Result]:
            for result in results:
                progress.advance(task)
                yield result

        yield tick
