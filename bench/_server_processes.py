"""Servers as child processes, each pinned to its own CPU core as far as there are cores.

The server under test has the first core, the load generator the second, and the upstream the third, or it shares the
second. Peer servers need other package versions. They run in their own environment, bench/.peers, which is built from
bench/peers.txt on first use. If it cannot be built, the peers are left out and reported; nginx, too, if it is not
installed.
"""

from __future__ import annotations

import hashlib
import http.client
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
START_TIMEOUT = 120.0
"""Seconds. The first start compiles kernels, and LiteLLM starts slowly."""


def cores() -> tuple[int, int, int]:
    """Return the cores for the server under test, the load generator and the upstream; -1 means unpinned."""
    if not hasattr(os, "sched_getaffinity"):
        return -1, -1, -1
    available = sorted(os.sched_getaffinity(0))
    second = available[1 % len(available)]
    return available[0], second, available[2] if len(available) > 2 else second


SERVER_CORE, LOAD_CORE, UPSTREAM_CORE = cores()


def pin_to(core: int) -> Any:
    """Return a preexec_fn that pins a child process to a core."""
    return None if core < 0 else lambda: os.sched_setaffinity(0, {core})


class ServerProcess:
    """A server that runs until the end of the block. health: a path that returns 200 when it is ready."""

    def __init__(
        self,
        command: list[str],
        port: int,
        folder: Path,
        *,
        core: int = SERVER_CORE,
        health: str = "/",
        environment: dict[str, str] | None = None,
    ) -> None:
        self._command, self._core, self._health = command, core, health
        self._folder, self._environment = folder, {**os.environ, **(environment or {})}
        self.port = port

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log = (self._folder / f"{self.port}.log").open("w+b")
        self._process = subprocess.Popen(
            self._command, cwd=self._folder, env=self._environment, stdout=self._log, stderr=subprocess.STDOUT,
            preexec_fn=pin_to(self._core),
        )  # fmt: skip
        self.pid = self._process.pid
        end = time.monotonic() + START_TIMEOUT
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self._log.seek(0)
                output = self._log.read().decode(errors="replace")[-1000:]
                self.__exit__(None, None, None)
                raise RuntimeError(f"{' '.join(self._command[:4])} did not start: {output}")
            time.sleep(0.1)
        return self

    def _ready(self) -> bool:
        try:
            if self._health:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self._health}", timeout=5) as response:
                    return bool(response.status == 200)
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
        self._log.close()

    @property
    def cpu(self) -> float:
        """CPU seconds of all threads so far; 0 if the system has no /proc."""
        nanoseconds = 0
        for task in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            try:
                nanoseconds += int(task.read_text().split()[0])
            except OSError:  # the thread has ended
                continue
        return nanoseconds / 1e9

    @property
    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def descriptors(self) -> int:
        """Number of open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def get(self, path: str = "/") -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as response:
            body: bytes = response.read()
        return body

    def post(self, path: str, body: Any, headers: dict[str, str], status: int = 200) -> None:
        """Send a request that must get this status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"content-type": "application/json", "authorization": f"Bearer {KEY}", **headers}
        connection.request("POST", path, json.dumps(body), sent)
        found = connection.getresponse()
        content = found.read()
        connection.close()
        if found.status != status:
            raise RuntimeError(f"{path}: status {found.status}, not {status}: {content[:200]!r}")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def baseline_server(kind: str, folder: Path, *arguments: float, core: int = SERVER_CORE) -> ServerProcess:
    """Return a server of _baseline_servers.py."""
    port = free_port()
    command = [sys.executable, str(HERE / "_baseline_servers.py"), kind, str(port), *map(str, arguments)]
    return ServerProcess(command, port, folder, core=core, health="" if kind == "canned" else "/")


def knapcache(folder: Path, upstream: int, *options: str) -> ServerProcess:
    """Return `knapcache serve` with its data in the folder."""
    port = free_port()
    command = [sys.executable, "-m", "knapcache", "serve", "--upstream", f"http://127.0.0.1:{upstream}/v1"]
    command += ["--port", str(port), "--path", str(folder / "data"), *options]
    return ServerProcess(command, port, folder, health="/readyz")


def peer_python() -> str:
    """Return the Python of the peers' environment, which is built if missing. Raises RuntimeError if that fails."""
    python, requirements = PEERS / "bin" / "python", HERE / "peers.txt"
    stamp, digest = PEERS / "built", hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"building {PEERS.name}: LiteLLM's proxy and GPTCache; takes minutes", file=sys.stderr)
        shutil.rmtree(PEERS, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "install", "-r", str(requirements)], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise RuntimeError(f"cannot install its packages: {done.stderr.strip().splitlines()[-1][:200]}")
        stamp.write_text(digest)
    return str(python)


def litellm(folder: Path, upstream: int, redis_port: int | None = None) -> ServerProcess:
    """Return LiteLLM's proxy with its in-memory cache, or with its cache in Redis."""
    folder.mkdir(parents=True, exist_ok=True)
    model = {"model": "openai/gpt-4o", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "any"}
    cache: dict[str, Any] = {"type": "local"}
    if redis_port is not None:
        cache = {"type": "redis", "host": "127.0.0.1", "port": redis_port}
    settings = {
        "model_list": [{"model_name": "gpt-4o", "litellm_params": model}],
        "litellm_settings": {"cache": True, "cache_params": cache},
    }
    (folder / "litellm.yaml").write_text(json.dumps(settings))  # JSON is YAML
    port = free_port()
    run = "from litellm import run_server; run_server()"
    command = [peer_python(), "-c", run, "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
    # Prices from the package instead of the network, and no log line per request, like the other servers.
    environment = {
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "PYTHONPATH": "",
    }
    return ServerProcess(
        [*command, "--num_workers", "1"], port, folder, health="/health/liveliness", environment=environment
    )


def gptcache(folder: Path) -> ServerProcess:
    """Return GPTCache's server with its exact-match map; its embeddings would need a model."""
    port = free_port()
    command = [peer_python(), str(HERE / "_gptcache_server.py"), str(port)]
    return ServerProcess(command, port, folder, environment={"PYTHONPATH": ""})


NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 1000000000; client_body_buffer_size 64k;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    proxy_cache_path {folder}/cache keys_zone=answers:16m;
    server {{
        listen 127.0.0.1:{port};
        location = / {{ return 200; }}
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_cache answers; proxy_cache_methods POST; proxy_cache_valid 200 1h;
            proxy_cache_key "$request_uri $http_authorization $request_body";
            add_header X-Cache $upstream_cache_status;
        }}
    }}
}}
"""
"""Caches an answer by path, API key and exact body: no canonical form, no cost, no streams to other clients."""


def nginx(folder: Path, upstream: int) -> ServerProcess:
    """Return nginx with its `proxy_cache`, as one process."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise RuntimeError("nginx is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, upstream=upstream))
    return ServerProcess([program, "-e", "stderr", "-c", str(folder / "nginx.conf")], port, folder)
