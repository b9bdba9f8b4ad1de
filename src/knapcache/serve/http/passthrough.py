"""Requests that are not cacheable go to the upstream untouched, streams included. Bodies stay encoded in both
directions.

The upstream is the model's, if there are several and the body is JSON with a model; otherwise it is the first one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from knapcache.errors import UpstreamFailed
from knapcache.exchange.cache_headers import outcome_headers
from knapcache.exchange.exchange import NOT_FORWARDED, parse_request
from knapcache.serve.http.access import AccessControl
from knapcache.serve.http.asgi_request import CLIENT_CLOSED_REQUEST, AsgiRequest, ClientDisconnected, RequestRejected
from knapcache.serve.observe.events import Event
from knapcache.serve.upstream import Response, encode_headers
from knapcache.serve.upstream.upstream import HOP_BY_HOP, Upstream

if TYPE_CHECKING:
    from knapcache.serve.proxy import Proxy

DROPPED_HEADERS = NOT_FORWARDED - {"content-encoding", "content-length"} | HOP_BY_HOP | {"date", "server"}
"""Response headers that are not forwarded. Those about the encoding of the body are: it is forwarded as it is."""


class Passthrough:
    """Forwards requests to their upstream."""

    def __init__(self, proxy: Proxy, access: AccessControl) -> None:
        self._access, self._upstreams, self._record = access, proxy.upstreams, proxy.events.append
        self._max_body = proxy.settings.max_body

    async def serve(self, request: AsgiRequest) -> None:
        """Forward the request and its response. Records an event unless it raises."""
        arrival = time.time()
        principal = self._access.authorize(request).principal
        upstream, content, model = await self._route(request)
        headers = upstream.request_headers(request.headers, principal.credential is not None, raw=True)
        if isinstance(content, bytes):
            headers = [pair for pair in headers if pair[0] != "content-length"]
        attempts: list[int] = []
        outcome, ttfb, stream = "failed", 0.0, False
        try:
            path = upstream.path(request.target)
            response = await upstream.send(request.method, path, encode_headers(headers), content, attempts, raw=True)
            ttfb = time.perf_counter() - request.started
            stream = response.headers.get("content-type", "").startswith("text/event-stream")
            await forward(response, request)
            outcome, status = "passthrough", response.status
        except UpstreamFailed as error:
            status = error.status
            if not request.response_started:
                await request.respond_error(error.status, str(error), "upstream_failed")
        except (ClientDisconnected, OSError):
            status = CLIENT_CLOSED_REQUEST
        seconds = time.perf_counter() - request.started
        self._record(
            Event(
                time=arrival,
                endpoint="",
                model=model,
                tenant=principal.name,
                outcome=outcome,
                status=status,
                seconds=seconds,
                ttfb=ttfb or seconds,
                stream=stream,
                upstream=upstream.name,
                attempts=tuple(attempts),
                trace=request.headers.get("traceparent", ""),
            )
        )

    async def _route(self, request: AsgiRequest) -> tuple[Upstream, bytes | AsyncIterator[bytes] | None, str]:
        """Return the upstream, the body to send, and the model if it is known."""
        first = self._upstreams.all[0]
        if "content-length" not in request.headers and "transfer-encoding" not in request.headers:
            return first, None, ""
        is_json = "json" in request.headers.get("content-type", "") and "content-encoding" not in request.headers
        if len(self._upstreams.all) == 1 or not is_json:
            return first, request.iter_body(), ""
        content = await request.read_body(self._max_body, self._max_body)
        body = parse_request(content)
        model = body.get("model") if body is not None else None
        if not isinstance(model, str):
            return first, content, ""
        upstream = self._upstreams.for_model(model)
        if upstream is None:
            raise RequestRejected(404, f"No upstream serves the model {model[:100]!r}.", "model_not_found")
        return upstream, content, model


async def forward(response: Response, request: AsgiRequest) -> None:
    """Send the upstream's response to the client as it arrives."""
    try:
        headers = [(name, value) for name, value in response.pairs if name.lower() not in DROPPED_HEADERS]
        await request.send_head(response.status, [*headers, *outcome_headers("passthrough")])
        async for piece in response.iter_bytes():
            await request.send_body(piece)
        await request.send_body(b"", more=False)
    finally:
        await response.close()
