"""Lets uvicorn stop at once: it looks every 0.1 s whether it has to, and then waits 0.1 s for nothing.

The tests stop a thousand servers in their own processes. `knapcache serve` in a process of its own is not changed.
"""

from __future__ import annotations

import asyncio
import types

import uvicorn.server

POLL_SECONDS = 0.01


async def short_sleep(seconds: float) -> None:
    await asyncio.sleep(min(seconds, POLL_SECONDS))


def poll_often() -> None:
    """Limit the sleeps of `uvicorn.server` to POLL_SECONDS."""
    quick = types.ModuleType("asyncio")
    quick.__dict__.update(vars(asyncio), sleep=short_sleep)
    vars(uvicorn.server)["asyncio"] = quick
