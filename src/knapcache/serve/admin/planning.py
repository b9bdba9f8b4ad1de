"""A plan from the request log: `knapcache plan` in a process of its own, beside the proxy and behind it.

Replaying takes all of a core for a while, so it happens elsewhere: with a lower priority, one at a time, on one core,
and not longer than LIMIT. What came of the last one is kept until the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from knapcache.serve.http.asgi_request import RequestRejected

log = logging.getLogger("knapcache.serve")

LIMIT = 600.0
NICE = 10


class Planner:
    """At most one plan at a time."""

    def __init__(self, folder: Path | None, limit: float = LIMIT) -> None:
        self._folder, self._limit = folder, limit
        self._task: asyncio.Task[None] | None = None
        self._state = "idle"
        self._result: Any = None
        self._started: float | None = None
        self._seconds: float | None = None

    def report(self) -> dict[str, Any]:
        """How far it is."""
        return {
            "state": self._state,
            "started": self._started,
            "seconds": self._seconds,
            "result": self._result,
        }

    def start(self) -> None:
        """Begin; RequestRejected where there is nothing to begin with, or one is on its way."""
        if self._folder is None:
            raise RequestRejected(409, "there is no request log (request_log = true keeps one)", "no_request_log")
        if self._state == "running":
            raise RequestRejected(409, "a plan is on its way", "already_running")
        self._state, self._result = "running", None
        self._started, self._seconds = time.time(), None
        self._task = asyncio.create_task(self._run(self._folder))

    async def close(self) -> None:
        """Stop one that is on its way."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, folder: Path) -> None:
        began = time.monotonic()
        try:
            self._result = await self._replay(folder)
            self._state = "done"
        except (OSError, ValueError) as error:
            self._state, self._result = "failed", {"message": str(error)}
            log.warning("no plan: %s", error)
        except BaseException:
            self._state, self._result = "failed", {"message": "it was stopped"}
            raise
        finally:
            self._seconds = time.monotonic() - began

    async def _replay(self, folder: Path) -> Any:
        # -P: the folder that the proxy was started in is not where modules are looked for.
        command = ["-P", "-m", "knapcache", "plan", str(folder), "--json", "-", "--jobs", "1"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        # From here, as a function that runs in the child before it begins is not safe beside threads.
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        try:
            async with asyncio.timeout(self._limit):
                said, errors = await process.communicate()
        except TimeoutError:
            raise ValueError(f"it took more than {self._limit:.0f} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            lines = errors.decode("utf-8", "replace").strip().splitlines() or [f"it ended with {process.returncode}"]
            raise ValueError(lines[-1].removeprefix("knapcache: error: ")[:500])
        return orjson.loads(said)
