"""`knapcache` commands as forks of a process that has imported the proxy: the import takes a second of CPU time.

A command has its own arguments, environment, directory and output, and plain kernels (KNAPCACHE_COMPILE=0). One that
needs other modules, or another interpreter, is started as a process of its own (`proxy_process.py`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

SERVER = "from tests.support.forked_commands import serve; serve({})"
ROOT = Path(__file__).resolve().parents[2]
MAX_MESSAGE = 1 << 17
PRELOADED = ("genai_prices", "httpx2", "uvicorn.protocols.http.httptools_impl", "uvloop", "knapcache.proxy.run")
"""Modules that every proxy imports; those of features are not among them."""


class ForkedProcess:
    """A running command, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: list[str], env: dict[str, str]) -> None:
        self.returncode: int | None = None
        self._server = _server()
        outputs = [os.pipe(), os.pipe()]
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in outputs)
        job = {"arguments": arguments, "env": env, "cwd": os.getcwd()}
        self.pid = self._server.ask(job, [write for _, write in outputs])
        self._handle = os.pidfd_open(self.pid)
        for _, write in outputs:
            os.close(write)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._handle], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = self._server.ask({"ended": self.pid})
            os.close(self._handle)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The process that forks. It ends with this one."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
        command = [sys.executable, "-c", SERVER.format(other.fileno())]
        environment = os.environ | {"PYTHONPATH": path, "KNAPCACHE_COMPILE": "0"}
        self.process = subprocess.Popen(command, env=environment, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
        other.close()

    def ask(self, job: dict[str, Any], descriptors: list[int] | None = None) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(job).encode()], descriptors or [])
            answer = self._socket.recv(64)
        assert answer, "the process that forks has ended"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self.process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


def stop_server() -> None:
    """End the process that forks, if there is one."""
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


def serve(descriptor: int) -> None:
    """Fork a child for each job that arrives on a socket, and reply with its id; then with its exit code."""
    for name in PRELOADED:
        importlib.import_module(name)
    from knapcache.cli.main import run

    with socket.socket(fileno=descriptor) as jobs:
        while True:
            message, descriptors, _, _ = socket.recv_fds(jobs, MAX_MESSAGE, 2)
            if not message:
                return
            job = json.loads(message)
            if "ended" in job:
                jobs.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(job["ended"], 0)[1]))
                continue
            child = os.fork()
            if child == 0:
                break
            for each in descriptors:
                os.close(each)
            jobs.send(b"%d" % child)
    for number, each in enumerate(descriptors, 1):
        os.dup2(each, number)
        os.close(each)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.argv[:] = ["knapcache", *job["arguments"]]
    run()
