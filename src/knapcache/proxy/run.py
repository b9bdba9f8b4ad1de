"""Run the proxy: its socket, its processes, its start-up message."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from math import ceil
from typing import Any

import uvicorn

from knapcache.cache import huge_pages
from knapcache.errors import InvalidInput
from knapcache.proxy.admin.amounts import first_request
from knapcache.proxy.admin.summary_models import FirstRequest
from knapcache.proxy.events import logs
from knapcache.proxy.garbage import FullCollections
from knapcache.proxy.http.app import App
from knapcache.proxy.http.tls import ServerCertificate, load_context
from knapcache.proxy.http.uvicorn_check import http_protocol
from knapcache.proxy.proxy import Load, Proxy
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.secrets import TOKEN, admin_token, data_directory, open_private, write_token
from knapcache.proxy.upstream.embedded_model import MODEL_NAME
from knapcache.proxy.workers.supervisor import supervise
from knapcache.store.redis.urls import shown_url
from knapcache.units import format_size

log = logging.getLogger("knapcache.serve")

BACKLOG = 2048
SWITCH_SECONDS = 0.001
"""The interpreter's switch interval, 5 ms by default. The event loop waits for it whenever another thread computes: the
one that parses long bodies, and the one that writes to the store."""
FILES_PER_CONNECTION = 2
"""A connection of a client, and one to the upstream."""
OTHER_FILES = 200
"""Files and sockets beside them."""

TENANT_KEY = "YOUR_TENANT_KEY"
"""Placeholder in the example: the proxy has only digests of the keys of its tenants."""
STARTUP_MESSAGE = """knapcache {version} is running at {url} ({upstreams}; {cache})
dashboard: {dashboard}
try it:    curl {url}/v1/{path}{headers} -d '{{"model": "{model}", {options}"messages": \
[{{"role": "user", "content": "Why is the sky blue?"}}]}}'"""
"""Three lines: what runs, where to look, what to paste."""


class Server(uvicorn.Server):
    """A uvicorn server that calls `on_ready` when it accepts requests, and drains before it stops.

    A load balancer keeps connections open. If they were closed on SIGTERM, a request that it just sends would be lost.
    So for `drain` seconds everything is served as before, and `/readyz` says that this process is not to get more.
    """

    def __init__(self, config: uvicorn.Config, proxy: Proxy, app: App, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._proxy, self._app, self._on_ready = proxy, app, on_ready
        settings = proxy.settings
        self._certificate: ServerCertificate | None = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            self._certificate = ServerCertificate(settings.tls_cert, settings.tls_key)
        self._refreshing: asyncio.Task[None] | None = None
        self._tls_servers: list[asyncio.Server] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._certificate is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            await self._start_tls(self._certificate, sockets or [])
        if self.started:
            self._on_ready()

    async def _start_tls(self, certificate: ServerCertificate, sockets: list[socket.socket]) -> None:
        """Start the servers here: uvicorn has no setting for the time of a handshake."""
        config: Any = self.config
        make_protocol = partial(
            config.http_protocol_class,
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        timeout = self._proxy.settings.head_timeout
        self._tls_servers = [await certificate.serve(each, make_protocol, BACKLOG, timeout) for each in sockets]
        self._refreshing = asyncio.create_task(certificate.refresh_periodically())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, unless Ctrl-C ended the process; then stop as uvicorn does."""
        self._proxy.ready = False
        end = time.monotonic() + self._proxy.settings.drain
        while time.monotonic() < end and not self.force_exit and signal.SIGINT not in self._captured_signals:
            await asyncio.sleep(min(0.1, self._proxy.settings.drain))
        if self._refreshing is not None:
            self._refreshing.cancel()
        for server in self._tls_servers:  # uvicorn would wait for handshakes that do not end
            server.close()
        await super().shutdown(sockets)


def run(settings: Settings, load: Load | None = None) -> None:
    """Serve until the process gets SIGTERM or SIGINT. load: reads the settings again, on SIGHUP."""
    if settings.workers > 1 and (settings.memory_only or any(upstream.local for upstream in settings.upstreams)):
        raise InvalidInput("workers must be 1 with memory_only, and with the embedded model: neither can be shared")
    if settings.tls_cert is not None and settings.tls_key is not None:
        load_context(settings.tls_cert, settings.tls_key)  # an error of every worker would be reported later
    if sys.stdin is not None and sys.stdin.isatty():
        load = None  # when its terminal is closed, SIGHUP still ends the proxy
    if load is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can be handled
    with listen(settings.host, settings.port) as listening, exclusive(settings):
        port = listening.getsockname()[1]
        if settings.workers == 1:
            serve(settings, listening, lambda token: print(startup_message(settings, port, token), flush=True), load)
        else:
            configure_logs(settings)
            token = stored_admin_token(settings)
            ready = lambda: print(startup_message(settings, port, token), flush=True)  # noqa: E731
            supervise(settings, listening, partial(serve, load=load), ready, reload=load is not None)


def serve(
    settings: Settings, listening: socket.socket, on_ready: Callable[[str], None], load: Load | None = None
) -> None:
    """Serve in this process. on_ready: called with the admin token when requests are accepted."""
    configure_logs(settings)
    sys.setswitchinterval(SWITCH_SECONDS)
    huge_pages.disable_for_process()
    proxy = Proxy(settings)
    running: deque[asyncio.Task[None]] = deque(maxlen=8)  # an event loop has weak references only

    def started() -> None:
        FullCollections().start()
        if load is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: running.append(loop.create_task(proxy.reload(load))))
        on_ready(proxy.admin_token)

    server(proxy, started).run([listening])


def configure_logs(settings: Settings) -> None:
    """Configure logging. Known secrets are redacted."""
    secrets = [stored_admin_token(settings), *(upstream.key for upstream in settings.upstreams)]
    secrets += [each.get_secret_value() for each in (settings.secret, settings.store) if each is not None]
    if (store := settings.store_address) is not None:
        secrets += [store.password, store.sentinel_password]
    logs.configure(settings.log_level, settings.log_format, secrets=[secret for secret in secrets if secret])


def stored_admin_token(settings: Settings) -> str | None:
    """Return the admin token from the settings or the data directory. None: the process makes one (memory_only)."""
    if settings.memory_only:
        return settings.fixed_admin_token
    folder, fixed = data_directory(settings.path), settings.fixed_admin_token
    if fixed is not None and settings.derives_admin_token:
        write_token(folder, fixed)
    return admin_token(folder, fixed)


def server(proxy: Proxy, on_ready: Callable[[], None] = lambda: None) -> Server:
    settings, app = proxy.settings, App(proxy)
    app.connections.reduce(raise_file_limit(settings.max_connections))
    config = uvicorn.Config(
        app,
        lifespan="on",
        http=http_protocol(),
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # app.py applies them where they matter
        backlog=BACKLOG,
        timeout_keep_alive=ceil(settings.idle_timeout),
        timeout_graceful_shutdown=int(settings.grace),
    )
    return Server(config, proxy, app, on_ready)


def raise_file_limit(connections: int) -> int:
    """Raise the limit of open files as far as the process may. Return how many connections it allows, at least 1.

    Logs a warning if there are fewer than `connections`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_PER_CONNECTION * connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft != hard:
        # macOS reports no hard limit, but refuses to remove the soft one.
        for limit in (hard, needed):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                soft = limit
                break
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    allowed = max(1, (soft - OTHER_FILES) // FILES_PER_CONNECTION)
    log.warning(
        "max_connections is %d instead of %d: the process may open only %d files, and needs %d.",
        allowed,
        connections,
        soft,
        needed,
    )
    return allowed


def listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket. Raises InvalidInput if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio sets TCP_NODELAY only on sockets with IPPROTO_TCP. Without it a request takes
    # 40 ms longer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        hint = {
            errno.EADDRINUSE: f"; choose another port, such as --port {port + 1 if port < 65535 else port - 1}",
            errno.EACCES: "; choose a port from 1024 on, such as --port 8080",
        }.get(error.errno or 0, "")
        raise InvalidInput(f"cannot listen on {host}, port {port}: {error.strerror}{hint}") from None
    return listening


@contextmanager
def exclusive(settings: Settings) -> Iterator[None]:
    """Lock the data directory: two proxies would overwrite each other's history and request log."""
    if settings.memory_only:
        yield
        return
    path = data_directory(settings.path) / "serve.lock"
    try:
        descriptor = open_private(path, os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise InvalidInput(f"cannot open {path}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"another proxy uses {settings.path}: choose another directory with --path"
            raise InvalidInput(message) from None
        yield
    finally:
        os.close(descriptor)


def startup_message(settings: Settings, port: int, token: str | None) -> str:
    """Return what runs where, and an example to copy."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    scheme = "http" if settings.tls_cert is None else "https"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    first = first_request(settings)
    anthropic = first.kind == "anthropic"
    place = "in memory" if settings.memory_only else f"in {settings.path}"
    if settings.store_address is not None:
        place = f"in {shown_url(settings.store_address)}"
    return STARTUP_MESSAGE.format(
        version=version("knapcache"),
        url=url,
        upstreams=", ".join(f"embedded model {MODEL_NAME}" if u.local else u.name for u in settings.upstreams),
        cache=f"{format_size(settings.capacity)} {place}",
        dashboard=f"{url}/dashboard{token_hint(settings, token)}" if settings.dashboard else "off",
        model=first.model,
        path="messages" if anthropic else "chat/completions",
        headers="".join(f" -H {header}" for header in example_headers(first)),
        options='"max_tokens": 32, '
        if anthropic or settings.upstreams[0].local
        else "",  # required, or a small model goes on
    )


def example_headers(first: FirstRequest) -> list[str]:
    """Return the headers of the example, quoted for a shell.

    With tenants the reader fills in a key. Without them the example works as it is: the upstream's key is the proxy's,
    or it is in the variable that the provider's own tools use.
    """
    anthropic = first.kind == "anthropic"
    headers = ["'content-type: application/json'", *(["'anthropic-version: 2023-06-01'"] if anthropic else [])]
    if first.key == "tenant":
        headers.append(f"'authorization: Bearer {TENANT_KEY}'")
    elif first.key == "provider":
        headers.append('"x-api-key: $ANTHROPIC_API_KEY"' if anthropic else '"authorization: Bearer $OPENAI_API_KEY"')
    elif first.key == "any":
        headers.append("'authorization: Bearer any'")
    return headers


def token_hint(settings: Settings, token: str | None) -> str:
    """Return what follows the dashboard's address: the token on a terminal, otherwise the place of the token.

    Standard output that is not a terminal is often a log that others read and that is kept for long.
    """
    if settings.admin_token is not None:  # the user knows it
        return ""
    if sys.stdout.isatty():
        return f"#token={token}"
    if settings.memory_only:
        return " (no terminal to print the generated token to; set admin_token)"
    return f" (the token is in {settings.path / TOKEN})"
