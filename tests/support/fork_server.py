"""A warm process that forks children to be killed: imports and compiled kernels are paid for once, not per kill.

A module with two functions is the load. `warm_up()` runs once in the server; it must leave no thread behind.
`run(ready, *arguments)` runs in each child until the child is killed, and calls `ready()` when it may be.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.support.stores import spawn

SERVER = "from tests.support.fork_server import serve; import sys; serve(sys.argv[1])"
KILLED = str(int(signal.SIGKILL))


def serve(module: str) -> None:
    """Fork one child per line of standard input, and print how it ended."""
    load = importlib.import_module(module)
    load.warm_up()
    print("warm", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                load.run(lambda: os.write(1, b"%d\n" % os.getpid()), *json.loads(line))
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else f"ended by itself, status {status}", flush=True)


class ForkServer:
    """Starts children that run a load, and kills them."""

    def __init__(self, module: str) -> None:
        self._server = spawn(SERVER, module)
        assert self._server.stdin
        assert self._server.stdout
        self._stdin, self._stdout = self._server.stdin, self._server.stdout
        assert self._read() == "warm"

    def _read(self) -> str:
        line = self._stdout.readline().strip()
        assert line, self._stderr()
        return line

    def _stderr(self) -> str:
        self._server.kill()
        assert self._server.stderr
        return self._server.stderr.read()

    def run_and_kill(
        self, seconds: float, *arguments: object, before_kill: Callable[[], object] = lambda: None
    ) -> None:
        """Start a child, and kill it `seconds` after it is ready."""
        self._stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        self._stdin.flush()
        child = self._read()
        assert child.isdigit(), f"{child}\n{self._stderr()}"
        time.sleep(seconds)
        before_kill()
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.kill(int(child), signal.SIGKILL)
        how = self._read()
        assert how == KILLED, f"the child {how}\n{self._stderr()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stdin.close()
        self._server.wait(30)
        for pipe in (self._server.stdout, self._server.stderr):
            assert pipe
            pipe.close()


def random_delay(rng: random.Random, most: float = 0.3) -> float:
    """Return seconds until a kill: often few, so that opening and recovery are hit too."""
    return rng.random() ** 2 * most
