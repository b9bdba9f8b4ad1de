"""Everything that is not kept passes through untouched, streams included: bodies as they are packed, both ways.

Which upstream it goes to: that of the model, where the body is JSON, says one, and there is a choice; else the first.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import OWN, body_of
from knapcache.serve.http.access import AccessControl
from knapcache.serve.http.asgi_request import CLIENT_CLOSED_REQUEST, AsgiRequest, Left, Refused
from knapcache.serve.observe.events import Event
from knapcache.serve.upstream import encode_headers
from knapcache.serve.upstream.upstream import HOP_BY_HOP, Upstream

if TYPE_CHECKING:
    from knapcache.serve.proxy import Proxy

STAYS = OWN - {"content-encoding", "content-length"} | HOP_BY_HOP | {"date", "server"}
"""Headers of a response that end here; its body is passed as it is packed, and so are the headers that say how."""


class Passthrough:
    """Passes them on."""

    def __init__(self, proxy: Proxy, door: AccessControl) -> None:
        self._door, self._upstreams, self._write = door, proxy.upstreams, proxy.events.append
        self._most = proxy.settings.max_body

    async def serve(self, request: AsgiRequest) -> None:
        """Send it on, and its answer back."""
        began = time.time()
        caller = self._door.enter(request).caller
        upstream, content, model = await self._whose(request)
        path = upstream.path(request.target)
        headers = upstream.request_headers(request.headers, caller.key is not None, raw=True)
        if isinstance(content, bytes):
            headers = [pair for pair in headers if pair[0] != "content-length"]
        attempts: list[int] = []
        outcome, ttfb, stream = "failed", 0.0, False
        try:
            response = await upstream.send(request.method, path, encode_headers(headers), content, attempts, raw=True)
            ttfb = time.perf_counter() - request.started
            stream = response.headers.get("content-type", "").startswith("text/event-stream")
            try:
                passed = [(name, value) for name, value in response.pairs if name.lower() not in STAYS]
                await request.start(response.status, [*passed, ("x-knapcache", "pass")])
                async for piece in response.iter_bytes():
                    await request.piece(piece)
                await request.piece(b"", more=False)
            finally:
                await response.close()
            outcome, status = "pass", response.status
        except UpstreamFailed as error:
            status = error.status
            if not request.sent:
                await request.error(error.status, str(error), "upstream_failed")
        except (Left, OSError):
            status = CLIENT_CLOSED_REQUEST
        seconds = time.perf_counter() - request.started
        self._write(
            Event(
                time=began, endpoint="", model=model, tenant=caller.name, outcome=outcome, status=status,
                seconds=seconds, ttfb=ttfb or seconds, stream=stream, upstream=upstream.name, attempts=tuple(attempts),
                trace=request.headers.get("traceparent", ""),
            )
        )  # fmt: skip

    async def _whose(self, request: AsgiRequest) -> tuple[Upstream, bytes | AsyncIterator[bytes] | None, str]:
        """The upstream, what is left of the body to send, and the model, where it is known."""
        if "content-length" not in request.headers and "transfer-encoding" not in request.headers:
            return self._upstreams.all[0], None, ""
        json = "json" in request.headers.get("content-type", "") and "content-encoding" not in request.headers
        if len(self._upstreams.all) == 1 or not json:
            return self._upstreams.all[0], request.pieces(), ""
        content = await request.body(self._most, self._most)
        body = body_of(content)
        model = body.get("model") if body is not None else None
        if not isinstance(model, str):
            return self._upstreams.all[0], content, ""
        upstream = self._upstreams.for_model(model)
        if upstream is None:
            raise Refused(404, f"no upstream serves the model {model[:100]!r}", "model_not_found")
        return upstream, content, model
