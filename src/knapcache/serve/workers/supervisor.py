"""Processes that serve together: started, kept alive, and told to stop, by one that does nothing else.

The first is started alone, until it serves: it compiles what there is to compile, and becomes the owner of the store.
One that dies is replaced, at most one a second. Who kills the parent kills all: children see a pipe end.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from knapcache.errors import KnapcacheError
from knapcache.serve.settings import Settings

log = logging.getLogger("knapcache.serve")

SPAWN = multiprocessing.get_context("spawn")
PAUSE = 1.0
"""Seconds between two starts."""
Serve = Callable[[Settings, socket.socket, Callable[[str], None]], None]


class Worker:
    """One process."""

    def __init__(self, settings: Settings, listening: socket.socket, serve: Serve, life: Connection) -> None:
        self.said, tell = SPAWN.Pipe(duplex=False)
        self.process: SpawnProcess = SPAWN.Process(target=_work, args=(settings, listening, serve, tell, life))
        self.process.start()
        tell.close()

    def wait_until_it_serves(self) -> None:
        """Or until it has died, which raises."""
        wait([self.said, self.process.sentinel])
        if not self.said.poll():
            self.process.join()
            raise KnapcacheError(f"a process ended before it served, with exit code {self.process.exitcode}")


def _work(settings: Settings, listening: socket.socket, serve: Serve, tell: Connection, life: Connection) -> None:
    """In the child."""

    def end_with_the_parent() -> None:
        wait([life])  # nobody ever writes: it ends
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    serve(settings, listening, lambda _token: tell.send("serving"))


def supervise(settings: Settings, listening: socket.socket, serve: Serve, greet: Callable[[], None]) -> None:
    """Serve with as many processes as the settings say, until told to stop."""
    life, held = SPAWN.Pipe(duplex=False)  # `held` is open as long as we live, and nobody else has it
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    workers: list[Worker] = []
    try:
        workers.append(Worker(settings, listening, serve, life))
        workers[0].wait_until_it_serves()
        workers += [Worker(settings, listening, serve, life) for _ in range(settings.workers - 1)]
        for worker in workers[1:]:
            worker.wait_until_it_serves()
        greet()
        while not stopping.is_set():
            stopping.wait(PAUSE)
            for k, worker in enumerate(workers):
                if not worker.process.is_alive() and not stopping.is_set():
                    log.error("a process ended with exit code %s, and is replaced", worker.process.exitcode)
                    workers[k] = Worker(settings, listening, serve, life)
                    break
    finally:
        _end(workers, settings.grace)
        held.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(workers: list[Worker], grace: float) -> None:
    for worker in workers:
        worker.process.terminate()
    end = time.monotonic() + grace + 10.0
    for worker in workers:
        worker.process.join(max(0.1, end - time.monotonic()))
        if worker.process.is_alive():
            log.error("a process did not end in time, and was killed")
            worker.process.kill()
            worker.process.join()
