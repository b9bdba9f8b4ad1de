"""Running the proxy: the socket, the processes, the words of greeting."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from knapcache.errors import InvalidInput
from knapcache.serve import logs
from knapcache.serve.app import App
from knapcache.serve.proxy import Proxy
from knapcache.serve.secrets import admin_token, data_directory
from knapcache.serve.settings import Settings
from knapcache.serve.workers import supervise

BACKLOG = 2048
IDLE = 75
"""Seconds that a connection may rest. Longer than clients' pools keep theirs: the server must not be the one to hang
up on a request that is just being sent."""

GREETING = """
knapcache {kept}, in front of {upstreams}

  curl {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1"{key})

dashboard  {dashboard}
"""


class Server(uvicorn.Server):
    """Says when it serves."""

    def __init__(self, config: uvicorn.Config, serving: Callable[[], None]) -> None:
        super().__init__(config)
        self._serving = serving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin."""
        await super().startup(sockets)
        if self.started:
            self._serving()


def run(settings: Settings) -> None:
    """Serve until told to stop."""
    if settings.workers > 1 and (settings.memory_only or any(upstream.local for upstream in settings.upstreams)):
        raise InvalidInput("workers must be 1 with memory_only, and with the embedded model: neither can be shared")
    with listen(settings.host, settings.port) as listening, alone(settings):
        port = listening.getsockname()[1]
        if settings.workers == 1:
            serve(settings, listening, lambda token: print(greeting(settings, port, token), flush=True))
        else:
            set_up_logs(settings)
            token = token_of(settings)
            supervise(settings, listening, serve, lambda: print(greeting(settings, port, token), flush=True))


def serve(settings: Settings, listening: socket.socket, serving: Callable[[str], None]) -> None:
    """Serve in this process. serving: is told the admin token, once requests are served."""
    set_up_logs(settings)
    proxy = Proxy(settings, team=settings.workers > 1)
    server(proxy, lambda: serving(proxy.admin_token)).run([listening])


def set_up_logs(settings: Settings) -> None:
    """Lines for people or machines, without secrets."""
    secrets = [token_of(settings), *(upstream.key for upstream in settings.upstreams)]
    logs.set_up(settings.log_level, settings.log_format, secrets=[secret for secret in secrets if secret])


def token_of(settings: Settings) -> str | None:
    """The admin token: given, or kept. None: each process makes one."""
    if settings.admin_token is not None:
        return settings.admin_token.get_secret_value()
    return None if settings.memory_only else admin_token(data_directory(settings.path))


def server(proxy: Proxy, serving: Callable[[], None] = lambda: None) -> Server:
    """A server for one process."""
    settings = proxy.settings
    config = uvicorn.Config(
        App(proxy),
        lifespan="on",
        http="httptools",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=int(settings.grace),
    )
    return Server(config, serving)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its name: asyncio turns Nagle's algorithm off, which costs 40 ms a request, only where it knows that it is TCP.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise InvalidInput(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    return listening


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """One proxy for a data directory: two would write over each other's record."""
    if settings.memory_only:
        yield
        return
    path = data_directory(settings.path) / "serve.lock"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(f"another proxy runs on {settings.path}; --path names another directory") from None
        yield
    finally:
        os.close(descriptor)


def greeting(settings: Settings, port: int, token: str | None) -> str:
    """How to use it."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    first = settings.upstreams[0]
    known = settings.admin_token is not None  # to whoever set it: it need not stand in a terminal
    told: dict[str, Any] = {
        "url": url,
        "kept": f"keeps what pays in {settings.capacity / 1e6:,.0f} MB"
        + (" of memory" if settings.memory_only else f" at {settings.path}"),
        "upstreams": ", ".join("a small model on this machine" if u.local else u.name for u in settings.upstreams),
        "model": "smollm2-135m" if first.local else first.models[0].replace("*", "4o-mini"),
        "key": ', api_key="any"' if first.local or first.key_env else "",
        "dashboard": f"{url}/dashboard" + ("" if known else f"#token={token}")
        if settings.dashboard
        else "off",
    }
    return GREETING.format(**told)
