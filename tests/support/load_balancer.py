"""HAProxy in front of several proxies, with the configuration of deploy/cluster."""

from __future__ import annotations

import csv
import re
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.support.front_proxies import find, free_port, is_serving, terminate
from tests.support.timing import wait_until


class Balancer:
    """A running HAProxy. `site`: its configuration; the servers and the address in it are replaced by ours."""

    def __init__(self, folder: Path, site: str, ports: Sequence[int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._control = folder / "control"
        config = folder / "haproxy.cfg"
        config.write_text(configuration(site, port, ports, self._control), encoding="utf-8")
        self._log = (folder / "output.log").open("wb")
        self.process = subprocess.Popen([find("haproxy"), "-db", "-f", str(config)], stdout=self._log, stderr=self._log)
        with ExitStack() as stack:
            stack.push(self)
            wait_until(
                lambda: (
                    is_serving(self.process, port, folder / "output.log") and all(map(self.is_up, range(len(ports))))
                ),
                "HAProxy and its checks",
            )
            stack.pop_all()

    def is_up(self, k: int) -> bool:
        """Return whether the checks of a proxy succeed."""
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self._control))
            control.sendall(b"show stat\n")
            text = b"".join(iter(lambda: control.recv(65536), b"")).decode()
        rows = csv.DictReader(text.removeprefix("# ").splitlines())
        return any(row["svname"] == f"proxy{k}" and row["status"] == "UP" for row in rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        terminate(self.process)
        self._log.close()


def configuration(site: str, port: int, ports: Sequence[int], control: Path) -> str:
    """Return a configuration with our address and servers, and a socket for questions."""
    site = re.sub(r"^resolvers .*?\n\n", "", site, flags=re.M | re.S)
    site = re.sub(r" resolvers \S+ init-addr \S+", "", site)
    site, binds = re.subn(r"bind \S+", f"bind 127.0.0.1:{port}", site)
    servers = "".join(f"    server proxy{k} 127.0.0.1:{each}\n" for k, each in enumerate(ports))
    lines = [line for line in site.splitlines() if not re.match(r"\s+server ", line)]
    site, globals_ = re.subn(r"^global\n", f"global\n    stats socket {control}\n", "\n".join(lines) + "\n", flags=re.M)
    assert (binds, globals_) == (1, 1), "the configuration has one address and one section global"
    return site + servers  # the backend is the last section
