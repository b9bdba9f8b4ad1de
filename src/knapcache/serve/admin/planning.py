"""Capacity plans: runs `knapcache plan` on the request log in a child process.

A replay uses a whole core for a while. So it runs in another process with a lower priority, one at a time, on one core,
for at most LIMIT seconds. The last result is available until the next plan starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

import orjson

from knapcache.serve.admin.models import PlanStatus
from knapcache.serve.http.asgi_request import RequestRejected

log = logging.getLogger("knapcache.serve")

LIMIT = 600.0
NICE = 10


class Planner:
    """Runs at most one plan at a time. folder: the request log."""

    def __init__(self, folder: Path | None, limit: float = LIMIT) -> None:
        self._folder, self._limit = folder, limit
        self._task: asyncio.Task[None] | None = None
        self._state: Literal["idle", "running", "done", "failed"] = "idle"
        self._result: dict[str, Any] | None = None
        self._started: float | None = None
        self._seconds: float | None = None

    def status(self) -> PlanStatus:
        return PlanStatus(state=self._state, started=self._started, seconds=self._seconds, result=self._result)

    def start(self) -> None:
        """Start a plan. Raises RequestRejected (409) if there is no request log, or if a plan is running."""
        if self._folder is None:
            raise RequestRejected(409, "There is no request log (request_log = true enables it).", "no_request_log")
        if self._state == "running":
            raise RequestRejected(409, "A plan is already running.", "already_running")
        self._state, self._result = "running", None
        self._started, self._seconds = time.time(), None
        self._task = asyncio.create_task(self._run(self._folder))

    async def close(self) -> None:
        """Stop a running plan."""
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
            log.warning("capacity plan failed: %s", error)
        except BaseException:
            self._state, self._result = "failed", {"message": "the plan was stopped"}
            raise
        finally:
            self._seconds = time.monotonic() - began

    async def _replay(self, folder: Path) -> dict[str, Any]:
        # -P: do not import modules from the working directory.
        command = ["-P", "-m", "knapcache", "plan", str(folder), "--json", "-", "--jobs", "1"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        # Set from the parent: a preexec function is not safe in a process with threads.
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        try:
            async with asyncio.timeout(self._limit):
                output, errors = await process.communicate()
        except TimeoutError:
            raise ValueError(f"the plan took more than {self._limit:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            lines = errors.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"]
            raise ValueError(lines[-1].removeprefix("knapcache: error: ")[:500])
        found: dict[str, Any] = orjson.loads(output)
        return found
