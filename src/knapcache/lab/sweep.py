"""Independent runs in parallel, with a progress bar.

Results are in the order of the items, and each item has its own seed. So the place and the number of processes affect
only the run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from knapcache.lab.executors import Jobs, TaskBatch, executor

Result = TypeVar("Result")


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
    with _bar(title, len(items)) as tick, closing(results):
        for result in tick(results):
            found.append(result)
            if on_progress is not None:
                on_progress(len(found), len(items))
    return found


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[Iterable[Result]], Iterator[Result]]]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)

        def tick(results: Iterable[Result]) -> Iterator[Result]:
            for result in results:
                progress.advance(task)
                yield result

        yield tick
