"""The parent of several workers: starts them, replaces those that end, stops them.

The workers start at the same time; one of them becomes the owner of the store. A worker that ends is replaced, at most
one per second. If the parent is killed, every worker sees its end of a pipe close, and stops.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from knapcache.errors import KnapcacheError
from knapcache.proxy.settings import Settings

log = logging.getLogger("knapcache.serve")

SPAWN = multiprocessing.get_context("spawn")
CHECK_INTERVAL = 1.0
"""Seconds between two checks of the workers."""
STOP_TIMEOUT = 10.0
"""Seconds after the settings' `drain` and `grace` until a worker that does not stop is killed."""
Serve = Callable[[Settings, socket.socket, Callable[[str], None]], None]


class WorkerProcess:
    """One worker."""

    def __init__(self, settings: Settings, listening: socket.socket, serve: Serve, parent_alive: Connection) -> None:
        self._ready, ready = SPAWN.Pipe(duplex=False)
        arguments = settings, listening, serve, ready, parent_alive
        self.process: SpawnProcess = SPAWN.Process(target=_run_worker, args=arguments)
        self.process.start()
        ready.close()

    def wait_until_ready(self) -> None:
        """Wait until it accepts requests. Raises KnapcacheError if it ends before that."""
        wait([self._ready, self.process.sentinel])
        try:
            problem = self._ready.recv()
        except EOFError:
            self.process.join()
            problem = f"a worker ended before it was ready, with exit code {self.process.exitcode}"
        if problem:
            raise KnapcacheError(problem)

    def error(self) -> str:
        """Return the error with which it ended, or ""."""
        with contextlib.suppress(EOFError):
            while self._ready.poll():
                if problem := self._ready.recv():
                    return str(problem)
        return ""


def _run_worker(
    settings: Settings, listening: socket.socket, serve: Serve, ready: Connection, parent_alive: Connection
) -> None:
    def stop_with_parent() -> None:
        wait([parent_alive])  # nothing is ever sent: it returns when the parent has ended
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_with_parent, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches every process of the terminal
        try:
            serve(settings, listening, lambda _token: ready.send(""))
        except KnapcacheError as error:
            ready.send(str(error))
            sys.exit(1)


def supervise(
    settings: Settings, listening: socket.socket, serve: Serve, on_ready: Callable[[], None], *, reload: bool = False
) -> None:
    """Serve with `settings.workers` processes until this one gets SIGTERM or SIGINT. reload: pass SIGHUP on to them."""
    parent_alive, open_while_alive = SPAWN.Pipe(duplex=False)
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for worker in workers:
            if worker.process.pid is not None and worker.process.is_alive():
                os.kill(worker.process.pid, number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    workers: list[WorkerProcess] = []
    try:
        workers += [WorkerProcess(settings, listening, serve, parent_alive) for _ in range(settings.workers)]
        for worker in workers:
            worker.wait_until_ready()
        if reload:
            previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, pass_on)
        on_ready()
        while not stopping.is_set():
            stopping.wait(CHECK_INTERVAL)
            for k, worker in enumerate(workers):
                if not worker.process.is_alive() and not stopping.is_set():
                    code, problem = worker.process.exitcode, worker.error()
                    reason = f" Reason: {problem}" if problem else ""
                    log.error("Worker ended with exit code %s; starting another.%s", code, reason)
                    workers[k] = WorkerProcess(settings, listening, serve, parent_alive)
                    break
    finally:
        _stop(workers, settings.drain + settings.grace)
        open_while_alive.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop(workers: list[WorkerProcess], grace: float) -> None:
    for worker in workers:
        worker.process.terminate()
    deadline = time.monotonic() + grace + STOP_TIMEOUT
    for worker in workers:
        worker.process.join(max(0.1, deadline - time.monotonic()))
        if worker.process.is_alive():
            log.error("Worker killed: it did not stop within %.0f seconds.", grace + STOP_TIMEOUT)
            worker.process.kill()
            worker.process.join()
