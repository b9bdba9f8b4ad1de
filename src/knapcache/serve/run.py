"""Running the proxy: the socket, the server, the words of greeting."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

from knapcache.errors import InvalidInput
from knapcache.serve.app import App
from knapcache.serve.proxy import Proxy

if TYPE_CHECKING:
    from knapcache.serve.settings import Settings

BACKLOG = 2048
IDLE = 75
"""Seconds that a connection may rest. Longer than clients' pools keep theirs: the server must not be the one to hang
up on a request that is just being sent."""


def run(settings: Settings) -> None:
    """Serve until told to stop."""
    with listen(settings.host, settings.port) as listening:
        server(Proxy(settings)).run([listening])


def server(proxy: Proxy) -> uvicorn.Server:
    """A server for one process."""
    settings = proxy.settings
    config = uvicorn.Config(
        App(proxy, Starlette()),
        lifespan="on",
        http="httptools",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=int(settings.grace),
    )
    return uvicorn.Server(config)


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
