"""A Python process that has imported the compiler and forks for each program: the import costs a second otherwise.

A program gets its own arguments, directory, environment and output, and imports knapcache anew. Only modules of other
packages are imported before the fork, so a program runs as `python` would run it. It cannot be used for a program that
reads `sys.flags`, that runs with options of the interpreter, or that must not have imported Numba.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SERVER = "from tests.support.warm_python import serve; serve()"
ROOT = Path(__file__).resolve().parents[2]


class WarmPython:
    """Runs programs in children of one warm process, one after the other."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server, self._folder = server, folder

    def run(
        self, *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `python ARGUMENTS`: a script, or -c CODE, or -m MODULE, each with its own arguments."""
        command = [str(argument) for argument in arguments]
        job = {
            "arguments": command,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "output": [str(self._folder / name) for name in ("stdout", "stderr")],
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        status = self._server.stdout.readline()
        assert status, "the warm process has ended"
        stdout, stderr = (Path(path).read_text(encoding="utf-8") for path in job["output"])
        return subprocess.CompletedProcess(command, int(status), stdout, stderr)

    def preload(self, *modules: str) -> None:
        """Import modules of other packages for all programs that run from now on."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(modules) + "\n")
        self._server.stdin.flush()
        assert self._server.stdout.readline(), "the warm process has ended"


@contextlib.contextmanager
def start() -> Iterator[WarmPython]:
    """Start the warm process, and end it at the end of the block."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server,
    ):
        yield WarmPython(server, Path(folder))
        assert server.stdin is not None
        server.stdin.close()


def serve() -> None:
    """Fork a child for each job on standard input, and print its exit code."""
    from numba.core.registry import cpu_target

    cpu_target.target_context.refresh()
    cpu_target.typing_context.refresh()
    own_path = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [entry for entry in sys.path if entry and entry not in own_path]
    for name in [name for name in sys.modules if name.split(".")[0] in ("knapcache", "tests")]:
        del sys.modules[name]
    for line in sys.stdin:
        job = json.loads(line)
        if isinstance(job, list):
            for name in job:
                importlib.import_module(name)
            print(0, flush=True)
            continue
        child = os.fork()
        if child == 0:
            run_job(job)
            break
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run_job(job: dict[str, Any]) -> None:
    """Run the program of a job in this process, with its own directory, environment, path and output."""
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, path in enumerate(job["output"], 1):
        with open(path, "wb") as output:
            os.dup2(output.fileno(), number)
    what, *rest = job["arguments"]
    added = list(filter(None, job["env"].get("PYTHONPATH", "").split(os.pathsep)))
    importlib.invalidate_caches()
    match what:
        case "-c":
            sys.path[:0], sys.argv[:] = ["", *added], ["-c", *rest[1:]]
            main: dict[str, Any] = sys.modules["__main__"].__dict__
            exec(compile(rest[0], "<string>", "exec"), main)
        case "-m":
            sys.path[:0], sys.argv[:] = [job["cwd"], *added], rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        case script:
            sys.path[:0], sys.argv[:] = [str(Path(script).resolve().parent), *added], [script, *rest]
            runpy.run_path(script, run_name="__main__")
