"""The ASGI application: the hot paths by hand, everything else through Starlette.

    POST to a cacheable endpoint           handler.py
    anything else below /v1                passthrough.py
    paths of providers                     one of the above (client_paths.py)
    /healthz, /readyz                      here
    admin API, dashboard, metrics          proxy/admin

This is the edge of the proxy: every exception becomes an error response, an event, and at most one log line, which
names the kind of error and no content.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from knapcache.model import Endpoint
from knapcache.proxy.events.events import Event
from knapcache.proxy.http.access import AccessControl, RequestHead
from knapcache.proxy.http.asgi_request import (
    CLIENT_CLOSED_REQUEST,
    AsgiRequest,
    ClientDisconnected,
    RawPairs,
    Receive,
    RequestRejected,
    Scope,
    Send,
)
from knapcache.proxy.http.client_paths import azure_deployment, with_own_root
from knapcache.proxy.http.connections import Connections
from knapcache.proxy.http.handler import Handler
from knapcache.proxy.http.passthrough import Passthrough
from knapcache.proxy.http.process import ProxyProcess
from knapcache.wire import PROXY_PATHS

log = logging.getLogger("knapcache.serve")


class App:
    """One proxy as an ASGI application."""

    def __init__(self, proxy: ProxyProcess) -> None:
        self._proxy = proxy
        # Only the admin API needs the client's address and scheme behind a reverse proxy.
        self._forwarded: Any = ProxyHeadersMiddleware(self._admin, list(proxy.settings.trusted_proxies))
        self._access: AccessControl | None = None
        self._handler: Handler | None = None
        self._passthrough: Passthrough | None = None
        self.connections = Connections(proxy.settings, self._record_refused)
        """Connections of the server, and their limits (limited_protocol.py)."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the server's lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] != "http":  # a WebSocket
            await receive()
            await send({"type": "websocket.close", "code": 1003})
        else:
            started = time.perf_counter()
            endpoint = PROXY_PATHS.get(scope["path"]) if scope["method"] == "POST" else None
            if endpoint is not None:
                await self._serve(AsgiRequest(scope, receive, send, started), endpoint)
            elif scope["path"] in ("/healthz", "/readyz"):
                await self._health(AsgiRequest(scope, receive, send, started))
            else:
                await self._serve_other(with_own_root(scope), receive, send, started)

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send, started: float) -> None:
        """Serve a request whose path is not one of PROXY_PATHS as the client sent it."""
        path, endpoint, deployment = scope["path"], None, ""
        if scope["method"] == "POST":
            endpoint = PROXY_PATHS.get(path)
            if endpoint is None and (found := azure_deployment(path)):
                endpoint, deployment = found
        if endpoint is not None or path.startswith("/v1/"):
            await self._serve(AsgiRequest(scope, receive, send, started, deployment), endpoint)
        else:
            await self._forwarded(scope, receive, send)

    def fast_response(self, head: RequestHead, endpoint: Endpoint, body: bytes) -> tuple[bytes, ...] | None:
        """Return the response to a hit that needs no task, or None (uvicorn_protocol.py)."""
        return None if self._handler is None else self._handler.fast_response(head, endpoint, body)

    def known_head(self, headers: RawPairs) -> RequestHead | None:
        """Return the facts about a head that was accepted before, or None."""
        return None if self._access is None else self._access.known(headers)

    def repeated_head(self, headers: tuple[tuple[bytes, bytes], ...]) -> RequestHead | None:
        """Return the same for headers without content-length."""
        return None if self._access is None else self._access.known_without_length(headers)

    async def _admin(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._proxy.admin_app is not None
        await self._proxy.admin_app(scope, receive, send)

    async def _serve(self, request: AsgiRequest, endpoint: Endpoint | None) -> None:
        assert self._handler is not None
        assert self._passthrough is not None
        assert self._access is not None
        try:
            if endpoint is not None:
                await self._handler.serve(request, endpoint)
            else:
                await self._passthrough.serve(request)
        except RequestRejected as error:
            self._record(request, endpoint, "rejected", error.status, error.reason)
            await request.respond_error(error.status, error.message, error.kind, error.headers)
        except (ClientDisconnected, OSError):
            refused = request.refused  # by the server protocol, while the body was arriving
            self._record(request, endpoint, "rejected" if refused else "failed", refused or CLIENT_CLOSED_REQUEST)
        except Exception as error:
            self._record(request, endpoint, "failed", 500)
            log.error("Request failed inside the proxy: %s", type(error).__name__, exc_info=log.isEnabledFor(10))
            if not request.response_started:
                await request.respond_error(500, "Internal error of the proxy.", "internal_error")
        finally:
            self._access.release(request)

    def _record_refused(self, status: int) -> None:
        """Record an error that the server protocol sent, before the application got the request."""
        self._append(None, "rejected", status, 0.0)

    def _record(
        self, request: AsgiRequest, endpoint: Endpoint | None, outcome: str, status: int, reason: str = ""
    ) -> None:
        self._append(endpoint, outcome, status, time.perf_counter() - request.started, reason)

    def _append(self, endpoint: Endpoint | None, outcome: str, status: int, seconds: float, reason: str = "") -> None:
        self._proxy.events.append(
            Event(
                time=time.time() - seconds,
                endpoint="" if endpoint is None else endpoint.value,
                model="",
                tenant="",
                outcome=outcome,
                status=status,
                seconds=seconds,
                ttfb=seconds,
                stream=False,
                reason=reason,
            )
        )

    async def _health(self, request: AsgiRequest) -> None:
        if request.path == "/healthz" or not (reason := self._proxy.not_ready()):
            # Always 200 while the process serves: a restart would not repair an upstream.
            lines = ["ok", *self._proxy.failing_upstreams()] if request.path == "/healthz" else ["ok"]
            await request.respond(
                200, [("content-type", "text/plain")], "".join(f"{line}\n" for line in lines).encode()
            )
        else:
            headers = [("content-type", "text/plain"), ("retry-after", "1")]
            await request.respond(503, headers, f"not ready: {reason}\n".encode())

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Open the proxy when the server starts, close it when the server stops."""
        proxy = self._proxy
        await receive()
        try:
            await proxy.open()
            access = self._access = AccessControl(proxy.settings, proxy.authenticator)
            self._handler, self._passthrough = Handler(proxy, access), Passthrough(proxy, access)
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._handler.drain(proxy.settings.grace)
        await proxy.close()
        await send({"type": "lifespan.shutdown.complete"})
