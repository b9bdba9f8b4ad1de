"""`knapcache serve` in processes of its own: for memory, stalls and several workers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.support.forked_commands import ForkedProcess
from tests.support.processes import command_line, suspend
from tests.support.timing import DEADLINE, TooSlow

ADMIN_TOKEN = "0123456789abcdef-admin-token"


class ProxyProcess:
    """A started proxy. settings: one value each; workers=2 starts real worker processes; config: a settings file.

    upstream: empty if the settings file has some.
    """

    compiled = True
    """Whether proxies use compiled kernels. Tests set False: plain ones decide the same and take no time to load."""

    def __init__(
        self,
        folder: Path,
        upstream: str,
        environment: dict[str, str] | None = None,
        config: str = "",
        **settings: Any,
    ) -> None:
        defaults = {"policy": "lru", "shadows": "lru", "capacity": "20MB", "grace": 2}
        port = str(settings.pop("port", 0))
        command = [sys.executable, "-m", "knapcache", "serve", "--path", str(folder), "--port", port]
        if upstream:
            command += ["--upstream", upstream]
        if config:
            file = folder.parent / f"{folder.name}.toml"
            file.write_text(config, encoding="utf-8")
            command += ["--config", str(file)]
        for name, value in (defaults | settings).items():
            text = ("true" if value else "false") if isinstance(value, bool) else str(value)
            command += ["--set", f"{name}={text}"]
        variables = {**os.environ, "KNAPCACHE_ADMIN_TOKEN": ADMIN_TOKEN, **(environment or {})}
        if not self.compiled:
            variables["KNAPCACHE_COMPILE"] = "0"
        self.folder = folder
        self.process: subprocess.Popen[str] | ForkedProcess
        if self.compiled or any(name.startswith("PYTHON") for name in environment or ()):
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            self.process = subprocess.Popen(command, env=variables, **pipes)
        else:
            self.process = ForkedProcess(command[3:], variables)
        self.log: list[str] = []
        """Lines of the proxy's log."""
        self._readers = [threading.Thread(target=self._read_log, daemon=True)]
        self._readers[0].start()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if " is running at " in line:
                self.url = line.partition(" is running at ")[2].split()[0]
                break
        else:
            raise AssertionError("the proxy did not start: " + "".join(self.log[-5:]))
        self._readers.append(threading.Thread(target=self.process.stdout.read, daemon=True))
        self._readers[1].start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)

    def problems(self) -> list[str]:
        """Return the lines of the log at level warning or above, and those that belong to them.

        Without those about a blocked event loop: a busy machine causes them, too.
        """
        harmless = re.compile(r"\S+Z (info|debug) |.*: Event loop blocked for ")
        return [line for line in self.log if not harmless.match(line)]

    def pids(self) -> list[int]:
        """Return the ids of the processes that serve: the workers, or the only process."""
        pid = self.process.pid
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        workers = [int(child) for child in listed if "spawn_main" in command_line(int(child))]
        return workers or [pid]

    def owner(self) -> int:
        """Return the process id of the store's owner, or 0 while it changes."""
        words = (self.folder / "cache.sqlite.lock").read_text().split()
        return int(words[0]) if words else 0

    @contextlib.contextmanager
    def only(self, pid: int) -> Iterator[None]:
        """Suspend all workers but one: it gets every new connection."""
        others = [other for other in self.pids() if other != pid]
        try:
            suspend(*others)
            yield
        finally:
            for other in others:
                os.kill(other, signal.SIGCONT)

    def memory(self) -> int:
        """Return the resident memory of all processes that serve, in bytes."""
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids()]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        """Return how many descriptors the processes that serve have open."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.pids())

    def peak_memory(self) -> int:
        """Return the largest resident memory so far of the processes that serve, in bytes."""
        peaks = []
        for pid in self.pids():
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            peaks += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
        return sum(peaks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop with SIGTERM, unless the process has ended."""
        ended = self.process.poll() is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise TooSlow("the end of the proxy") from None
        for reader in self._readers:
            reader.join(DEADLINE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        # uvicorn ends a single process by the signal itself.
        assert ended or code in (0, -signal.SIGTERM), f"exit code {code}: " + "".join(self.log[-5:])
