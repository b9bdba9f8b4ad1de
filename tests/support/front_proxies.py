"""nginx and HAProxy in front of the proxy, as processes of the user who runs the tests."""

from __future__ import annotations

import re
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.support.programs import find_program
from tests.support.timing import wait_until

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "guides" / "operations.md"
NGINX_MAIN = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {site}
}}
"""


class FrontProxy:
    """A running front proxy. kind: nginx or haproxy; site: a configuration with the addresses of the documentation."""

    def __init__(self, folder: Path, kind: str, site: str, proxy_url: str) -> None:
        self.kind = kind
        self.careless = site == careless(kind)
        binary = find(kind)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        address = urlsplit(proxy_url).netloc
        config = folder / f"{kind}.conf"
        folder.mkdir(parents=True, exist_ok=True)
        if kind == "nginx":
            site = re.sub(r"listen 443 ssl;", f"listen 127.0.0.1:{port};", site)
            site = re.sub(r"^\s*ssl_\w+ .*\n", "", site, flags=re.M)
            text = NGINX_MAIN.format(folder=folder, site=site.replace("127.0.0.1:8080", address))
            command = [binary, "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")]
        else:
            site = re.sub(r"bind :443 ssl crt \S+", f"bind 127.0.0.1:{port}", site)
            text = site.replace("127.0.0.1:8080", address)
            command = [binary, "-db", "-f", str(config)]
        assert address in text
        assert f"127.0.0.1:{port}" in text
        config.write_text(text + "\n", encoding="utf-8")  # HAProxy requires the last line end
        self._log = (folder / "output.log").open("wb")
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        with ExitStack() as stack:
            stack.push(self)
            wait_until(lambda: is_serving(self.process, port, folder / "output.log"), f"{kind} listens")
            stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        terminate(self.process)
        self._log.close()


def terminate(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force if it does not end within 10 seconds."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def find(kind: str) -> str:
    """Return the path of the program. Without it, skip the test, or fail in CI."""
    return find_program(kind, {"nginx": "nginx-light"}.get(kind, kind))


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert isinstance(port, int)
    return port


def is_serving(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    """Return whether a process that was started listens on a port. It must not have ended."""
    assert process.poll() is None, f"{process.args!r} ended: {log.read_text()}"
    return accepts(port)


def accepts(port: int) -> bool:
    """Return whether somebody listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def documented(kind: str) -> str:
    """Return the configuration that the operations guide recommends."""
    blocks = re.findall(r"```\w+\n(.*?)```", OPERATIONS.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(f"# /etc/{kind}/")]
    assert isinstance(found, str)
    return found


def careless(kind: str) -> str:
    """Return a configuration that forwards everything, as is often copied for WebSockets: paths, Upgrade, addresses."""
    if kind == "nginx":
        return """
            upstream knapcache { server 127.0.0.1:8080; keepalive 4; }
            server {
                listen 443 ssl;
                client_max_body_size 0;
                large_client_header_buffers 16 64k;
                location / {
                    proxy_pass http://knapcache;
                    proxy_http_version 1.1;
                    proxy_set_header Host $http_host;
                    proxy_set_header Upgrade $http_upgrade;
                    proxy_set_header Connection $http_connection;
                    proxy_set_header TE $http_te;
                    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                    proxy_request_buffering off;
                }
            }
        """
    return """
        global
            tune.bufsize 131072
            tune.http.maxhdr 1000
        defaults
            mode http
            timeout client 60s
            timeout connect 5s
            timeout server 60s
            option accept-invalid-http-request
            option forwardfor
        frontend llm
            bind :443 ssl crt none
            default_backend knapcache
        backend knapcache
            http-reuse always
            server knapcache 127.0.0.1:8080
    """
