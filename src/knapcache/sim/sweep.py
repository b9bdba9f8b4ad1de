"""Many independent runs, side by side, with a progress bar.

Results come back in the order of the items, and each item carries its own seed, so where they ran, and on how many
processes, changes nothing but the time it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from knapcache.sim.executors import Jobs, TaskBatch, executor

Result = TypeVar("Result")


def sweep(
    function: Callable[..., Result],
    items: Sequence[Any],
    *,
    shared: tuple[Any, ...] = (),
    jobs: Jobs = None,
    title: str = "",
) -> list[Result]:
    """`[function(*shared, item) for item in items]`, on all cores, on `jobs` processes, or where an executor runs it.

    What is shared may be large: it travels once to each process, not once for each item.
    """
    results = executor(jobs).run(TaskBatch(function, shared, tuple(items)))
    with _bar(title, len(items)) as tick, closing(results):
        return list(tick(results))


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
