"""Capacity plans: runs `knapcache plan` on the request log in a child process.

A replay uses a whole core for a while. So it runs in another process with a lower priority, one at a time, on one core,
for at most LIMIT seconds. The last result is available until the next plan starts.

The child reports rounds of replays, one for each policy (lab/grid.py). The first round also loads the kernels, so the
time to the end is estimated from the others:

    remaining = (time since the first round) / (replays since the first round) · replays left
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

from knapcache.errors import InvalidInput, public_text
from knapcache.proxy.admin.summary_models import Amounts, PlanStatus
from knapcache.proxy.http.asgi_request import RequestRejected

log = logging.getLogger("knapcache.serve")

LIMIT = 600.0
ERROR = "knapcache: error: "
"""Start of a line in which the command says why it failed."""
NICE = 10
MAX_LINE = 10_000
"""Bytes of an incomplete line of the child that are kept."""


class Planner:
    """Runs at most one plan at a time. folder: the request log."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._task: asyncio.Task[None] | None = None
        self._state: Literal["idle", "running", "done", "failed"] = "idle"
        self._result: dict[str, Any] | None = None
        self._started: float | None = None
        self._seconds: float | None = None
        self._began = 0.0
        self._progress = PlanProgress()
        self._amounts: Amounts | None = None

    def status(self) -> PlanStatus:
        now, running = time.monotonic(), self._state == "running"
        return PlanStatus(
            state=self._state,
            started=self._started,
            seconds=now - self._began if running else self._seconds,
            progress=self._progress.share if running else float(self._state == "done"),
            remaining=self._progress.remaining(now) if running else None,
            amounts=self._amounts,
            result=self._result,
        )

    def start(self, amounts: Amounts) -> None:
        """Start a plan. Raises RequestRejected (409) if there is no request log, or if a plan is running.

        amounts   the unit of costs in the request log
        """
        if self._folder is None:
            raise RequestRejected(409, "There is no request log (request_log = true enables it).", "no_request_log")
        if self._state == "running":
            raise RequestRejected(409, "A plan is already running.", "already_running")
        self._state, self._result = "running", None
        self._started, self._seconds, self._began = time.time(), None, time.monotonic()
        in_seconds = amounts.unit == "seconds"  # costs are estimates then, and seconds are measured
        self._amounts = Amounts(unit="seconds", factor=1.0) if in_seconds else amounts
        self._progress = PlanProgress()
        self._task = asyncio.create_task(self._run(self._folder))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, folder: Path) -> None:
        try:
            self._result = await self._replay(folder)
            self._state = "done"
        except (OSError, ValueError) as error:
            self._state, self._result = "failed", {"message": public_text(error)}
            log.warning("capacity plan failed: %s", error)
        except BaseException:
            self._state, self._result = "failed", {"message": "the plan was stopped"}
            raise
        finally:
            self._seconds = time.monotonic() - self._began

    async def _replay(self, folder: Path) -> dict[str, Any]:
        # -P: do not import modules from the working directory.
        cost = "seconds" if self._amounts is not None and self._amounts.unit == "seconds" else "cost"
        command = ["-P", "-m", "knapcache", "plan", str(folder), "--json", "-", "--jobs", "1", "--progress"]
        command += ["--cost", cost]
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
            async with asyncio.timeout(LIMIT):
                assert process.stdout is not None
                assert process.stderr is not None
                output, last_line = await asyncio.gather(process.stdout.read(), self._follow(process.stderr))
                await process.wait()
        except TimeoutError:
            raise InvalidInput(f"the plan took more than {LIMIT:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            ours = last_line.startswith(ERROR)  # otherwise it may be the end of a traceback
            raise InvalidInput(last_line.removeprefix(ERROR)[:500] if ours else f"exit code {process.returncode}")
        found: dict[str, Any] = orjson.loads(output)
        return found

    async def _follow(self, stderr: asyncio.StreamReader) -> str:
        """Read the child's stderr to its end: progress, and other lines. Return the last of these."""
        last, rest = "", b""
        while chunk := await stderr.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-MAX_LINE:]
            for line in lines:
                if not self._progress.update(line, time.monotonic()):
                    last = line.decode("utf-8", "replace").strip() or last
        return rest.decode("utf-8", "replace").strip() or last


class PlanProgress:
    """Replays that are done, and the time that the others will take."""

    def __init__(self) -> None:
        self._done = self._total = self._first_done = 0
        self._first_at = self._at = 0.0

    @property
    def share(self) -> float:
        return self._done / self._total if self._total else 0.0

    def update(self, line: bytes, now: float) -> bool:
        """Read a line of the child. False: it is no progress."""
        try:
            found = orjson.loads(line)
            done, total = int(found["done"]), int(found["total"])
        except (ValueError, TypeError, KeyError):
            return False
        self._done, self._total, self._at = done, total, now
        if done and not self._first_done:
            self._first_done, self._first_at = done, now
        return True

    def remaining(self, now: float) -> float | None:
        """Return the estimated seconds to the end; None before the second round."""
        timed = self._done - self._first_done
        if timed <= 0:
            return None
        per_replay = (self._at - self._first_at) / timed
        return max(0.0, per_replay * (self._total - self._done) - (now - self._at))
