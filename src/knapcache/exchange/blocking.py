"""Runs coroutines for blocking callers, so that the fetcher needs no second, blocking version.

A coroutine in which every awaited call returns at once never suspends: one `send` runs it to its end. The fetcher is
such a coroutine if the cache, `send` and the response block the thread instead of suspending.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine suspended: something in it waits for an event loop")


def as_coroutine(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Return a coroutine function that blocks the thread while the function runs."""

    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    return run
