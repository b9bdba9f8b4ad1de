"""The application, as the server calls it: what is asked often goes the short way, everything else through Starlette.

    POST to an endpoint whose answers are kept     calls.py
    anything else below /v1                        passing.py
    /healthz, /readyz                              here
    the rest (admin API, dashboard, metrics)       admin.py

Here is the edge: whatever goes wrong inside becomes an error that a client can read, and one line in the log, which
names the kind of error and no content.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from knapcache.model import Endpoint
from knapcache.serve.http.access import AccessControl
from knapcache.serve.http.asgi_request import CLIENT_CLOSED_REQUEST, AsgiRequest, Left, Receive, Refused, Scope, Send
from knapcache.serve.http.handler import Handler
from knapcache.serve.http.passthrough import Passthrough
from knapcache.serve.observe.events import Event

if TYPE_CHECKING:
    from knapcache.serve.proxy import Proxy

log = logging.getLogger("knapcache.serve")

HOT = {f"{root}/{at.value}": at for root in ("/v1", "") for at in Endpoint}
"""With and without the version: what people set as base_url differs."""


class App:
    """One proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        # Who asked, and whether by TLS, as a server in front of this one tells; only the admin API wants to know.
        self._forwarded: Any = ProxyHeadersMiddleware(self._rest, os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1"))
        self._calls: Handler | None = None
        self._passing: Passthrough | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's request, or the life of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] != "http":  # a WebSocket
            await receive()
            await send({"type": "websocket.close", "code": 1003})
        else:
            started = time.perf_counter()
            path = scope["path"]
            endpoint = HOT.get(path) if scope["method"] == "POST" else None
            if endpoint is not None or path.startswith("/v1/"):
                await self._serve(AsgiRequest(scope, receive, send, started), endpoint)
            elif path in ("/healthz", "/readyz"):
                await self._health(AsgiRequest(scope, receive, send, started))
            else:
                await self._forwarded(scope, receive, send)

    def short(self, headers: list[tuple[bytes, bytes]], endpoint: Endpoint, body: bytes) -> list[bytes] | None:
        """A hit that can be given at once (protocol.py)."""
        return None if self._calls is None else self._calls.short(headers, endpoint, body)

    async def _rest(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._proxy.admin_app is not None
        await self._proxy.admin_app(scope, receive, send)

    async def _serve(self, request: AsgiRequest, endpoint: Endpoint | None) -> None:
        assert self._calls is not None
        assert self._passing is not None
        try:
            if endpoint is not None:
                await self._calls.serve(request, endpoint)
            else:
                await self._passing.serve(request)
        except Refused as refused:
            self._note(request, endpoint, "refused", refused.status)
            await request.error(refused.status, refused.message, refused.kind, refused.headers)
        except (Left, OSError):
            self._note(request, endpoint, "failed", CLIENT_CLOSED_REQUEST)
        except Exception as error:
            self._note(request, endpoint, "failed", 500)
            log.error("a request failed within the proxy: %s", type(error).__name__, exc_info=log.isEnabledFor(10))
            if not request.sent:
                await request.error(500, "the proxy failed", "internal_error")

    def _note(self, request: AsgiRequest, endpoint: Endpoint | None, outcome: str, status: int) -> None:
        seconds = time.perf_counter() - request.started
        at = "" if endpoint is None else endpoint.value
        self._proxy.events.append(
            Event(
                time=time.time() - seconds, endpoint=at, model="", tenant="", outcome=outcome, status=status,
                seconds=seconds, ttfb=seconds, stream=False,
            )
        )  # fmt: skip

    async def _health(self, request: AsgiRequest) -> None:
        ready = self._proxy.ready
        if request.path == "/healthz" or ready:
            await request.answer(200, [("content-type", "text/plain")], b"ok\n")
        else:
            await request.answer(503, [("content-type", "text/plain"), ("retry-after", "1")], b"not ready\n")

    async def _live(self, receive: Receive, send: Send) -> None:
        """From start to end."""
        proxy = self._proxy
        await receive()
        try:
            await proxy.open()
            door = AccessControl(proxy.settings, proxy.authenticator)
            self._calls, self._passing = Handler(proxy, door), Passthrough(proxy, door)
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._calls.settled(proxy.settings.grace)
        await proxy.close()
        await send({"type": "lifespan.shutdown.complete"})
