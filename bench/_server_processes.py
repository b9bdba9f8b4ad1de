"""Servers as processes, each on a core of its own as far as there are cores; for bench/proxy.py and bench/soak.py.

What is measured has the first core to itself, the load the second; who is asked behind it has the third, or shares the
second. Servers of others have an environment of their own, bench/.peers, built from bench/peers.txt on first use: they
want other versions than we do. Where it cannot be built they are left out, and that is said.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent
PEERS = HERE / ".peers"
KEY = "sk-a-key-of-the-benchmark-0123456789"
PATIENCE = 120.0
"""Seconds for a start: the first one of ours compiles, and LiteLLM takes long."""


def cores() -> tuple[int, int, int]:
    """For what is measured, for the load, for the upstream."""
    if not hasattr(os, "sched_getaffinity"):
        return -1, -1, -1
    mine = sorted(os.sched_getaffinity(0))
    return mine[0], mine[1 % len(mine)], mine[2] if len(mine) > 2 else mine[1 % len(mine)]


SERVER, LOAD, BEHIND = cores()


def pinned(core: int) -> Any:
    """What a child does first."""
    return None if core < 0 else lambda: os.sched_setaffinity(0, {core})


class Server:
    """A process that listens, until the end of the block. health: a path that answers 200 when it is ready."""

    def __init__(
        self,
        words: list[str],
        port: int,
        folder: Path,
        *,
        core: int = SERVER,
        health: str = "/",
        environment: dict[str, str] | None = None,
    ) -> None:
        self._words, self._core, self._health = words, core, health
        self._folder, self._environment = folder, {**os.environ, **(environment or {})}
        self.port = port

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._said = (self._folder / f"{self.port}.log").open("w+b")
        self._process = subprocess.Popen(
            self._words, cwd=self._folder, env=self._environment, stdout=self._said, stderr=subprocess.STDOUT,
            preexec_fn=pinned(self._core),
        )  # fmt: skip
        self.pid = self._process.pid
        end = time.monotonic() + PATIENCE
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self._said.seek(0)
                said = self._said.read().decode(errors="replace")[-1000:]
                self.__exit__(None, None, None)
                raise RuntimeError(f"{' '.join(self._words[:4])} did not start: {said}")
            time.sleep(0.1)
        return self

    def _ready(self) -> bool:
        try:
            if self._health:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self._health}", timeout=5) as answer:
                    return bool(answer.status == 200)
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()

    @property
    def cpu(self) -> float:
        """Seconds of CPU time so far, of all its threads, to the nanosecond; 0 where the system does not tell."""
        spent = 0
        for task in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            try:
                spent += int(task.read_text().split()[0])
            except OSError:  # the thread has ended
                continue
        return spent / 1e9

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def descriptors(self) -> int:
        """Open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def ask(self, path: str = "/") -> bytes:
        """GET."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            said: bytes = answer.read()
        return said


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def bare(kind: str, folder: Path, *numbers: float, core: int = SERVER) -> Server:
    """A server of _baseline_servers.py."""
    port = free_port()
    words = [sys.executable, str(HERE / "_baseline_servers.py"), kind, str(port), *map(str, numbers)]
    return Server(words, port, folder, core=core, health="" if kind == "canned" else "/")


def knapcache(folder: Path, upstream: int, *words: str) -> Server:
    """The proxy as people run it, with its files in the folder."""
    port = free_port()
    given = [sys.executable, "-m", "knapcache", "serve", "--upstream", f"http://127.0.0.1:{upstream}/v1"]
    given += ["--port", str(port), "--path", str(folder / "data"), *words]
    return Server(given, port, folder, health="/readyz")


def peers() -> str:
    """Python of the others' environment, built if need be; RuntimeError with the reason where it cannot be."""
    python, wanted = PEERS / "bin" / "python", HERE / "peers.txt"
    mark, digest = PEERS / "built", hashlib.sha256(wanted.read_bytes()).hexdigest()
    if not mark.exists() or mark.read_text() != digest:
        print(f"building {PEERS.name}: LiteLLM's proxy and GPTCache, some minutes", file=sys.stderr)
        shutil.rmtree(PEERS, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(wanted)]
        done = subprocess.run(install, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise RuntimeError(f"its packages cannot be had: {done.stderr.strip().splitlines()[-1][:200]}")
        mark.write_text(digest)
    return str(python)


def litellm(folder: Path, upstream: int) -> Server:
    """LiteLLM's proxy with its cache in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    model = {"model": "openai/gpt-4o", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "any"}
    settings = {
        "model_list": [{"model_name": "gpt-4o", "litellm_params": model}],
        "litellm_settings": {"cache": True, "cache_params": {"type": "local"}},
    }
    (folder / "litellm.yaml").write_text(json.dumps(settings))  # JSON is YAML
    port = free_port()
    run = "from litellm import run_server; run_server()"
    words = [peers(), "-c", run, "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
    # Its prices from the package, not from the network; no line to the log for a request, as with the others.
    more = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "PYTHONPATH": ""}
    return Server([*words, "--num_workers", "1"], port, folder, health="/health/liveliness", environment=more)


def gptcache(folder: Path) -> Server:
    """GPTCache's server on its map: exact matches, the least it can do, for its embeddings want a model."""
    port = free_port()
    words = [peers(), str(HERE / "_gptcache_server.py"), str(port)]
    return Server(words, port, folder, environment={"PYTHONPATH": ""})
