"""Requests that are not cacheable go to the upstream untouched, streams included. Bodies stay encoded in both
directions.

The upstream is the model's, if there are several and the path or a JSON body names one; otherwise it is the first one.
Paths of Amazon Bedrock's own API (`/v1/model/{model}/converse`, `invoke`) name the model.

A caller with a provider key of its own may send everything. A request that is sent with credentials of the proxy, or
for a tenant without a provider key, must match the setting `passthrough`: one key sees the files, batches and stored
responses of all its users, and the provider cannot tell them apart.

A path must not be a near spelling of one whose answers are cached (`check_path`).
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Iterable
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote, unquote_to_bytes

from knapcache.errors import InvalidInput, Uncacheable, UpstreamFailed
from knapcache.exchange.headers import forwarded_headers, outcome_headers, sandboxed
from knapcache.proxy.events.events import Event
from knapcache.proxy.hooks import CallContext, CallHooks, CallRefused
from knapcache.proxy.http.access import AccessControl
from knapcache.proxy.http.asgi_request import (
    CLIENT_CLOSED_REQUEST,
    AsgiRequest,
    ClientDisconnected,
    RequestRejected,
    model_not_found,
    too_large,
)
from knapcache.proxy.http.process import ProxyProcess
from knapcache.proxy.upstream import Response, encode_headers
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.wire import PROXY_PATHS

if TYPE_CHECKING:
    from knapcache.proxy.http.auth import Principal

BEDROCK_PATH = re.compile(r"/v1/model/([^/?]+)/(?:converse|invoke)(?:-stream|-with-response-stream)?(?:\?|$)")
EVENT_STREAMS = ("text/event-stream", "application/vnd.amazon.eventstream")
BODY_HEADERS = ("content-encoding", "content-length")
"""Response headers that hold for the body as it came, which is how it is forwarded."""
AMBIGUOUS = re.compile(rb"[\x00-\x1f\x7f\\]|//|/\.{1,2}(?:;[^/]*)?(?:/|$)")
"""Control characters, backslashes, empty segments and dot segments. Servers differ in what they read them as."""
MAX_DECODINGS = 4
"""Times that a path is percent-decoded to look for the above: some servers decode more than once."""
SEGMENT_END = re.compile(r"[;?#].*|[. ]+$", re.DOTALL)
"""The end of a segment that some servers ignore: parameters, dots and blanks."""
AZURE_DEPLOYMENT = re.compile(r"/deployments/[^/]+(?=/)")
READING_METHODS = ("GET", "HEAD", "OPTIONS")
"""Methods that cost nothing at a provider. Features are asked about every other one."""


class Passthrough:
    """Forwards requests to their upstream."""

    def __init__(self, proxy: ProxyProcess, access: AccessControl) -> None:
        self._access, self._upstreams, self._record = access, proxy.upstreams, proxy.events.append
        self._max_body = proxy.settings.max_body
        self._workers, self._features = proxy.body_pool, proxy.features
        self._allowed, self._tenants = proxy.settings.passthrough, bool(proxy.settings.tenants)

    async def serve(self, request: AsgiRequest) -> None:
        """Forward the request and its response. Records an event unless it raises."""
        arrival = time.time()
        principal = self._access.authorize(request).principal
        check_path(request)
        upstream, content, model = await self._route(request)
        self._check_allowed(request, principal, upstream)
        headers = upstream.request_headers(request.headers, principal.credential is not None, raw=True)
        if isinstance(content, bytes):
            headers = [pair for pair in headers if pair[0] != "content-length"]
        attempts: list[int] = []
        outcome, ttfb, stream, reason = "failed", 0.0, False, ""
        path, head = upstream.path(request.target), encode_headers(headers)
        hooks: tuple[CallHooks, ...] = ()
        refused = ""
        try:
            if request.method not in READING_METHODS:
                query, credential = request.query, principal.credential
                hooks = self._features.begin(
                    CallContext(None, model, principal.name, credential, request.headers, query, upstream)
                )
                for each in hooks:
                    await each.before_call(0)
            response = await upstream.send(request.method, path, head, content, attempts, raw=True)
            ttfb = time.perf_counter() - request.started
            stream = response.headers.get("content-type", "").startswith(EVENT_STREAMS)
            await forward(response, request)
            outcome, status = "passthrough", response.status
        except CallRefused as error:
            outcome, status, refused = "rejected", error.status, error.event_reason
            await request.respond(status, [("content-type", "application/json"), *error.headers], error.body())
        except UpstreamFailed as error:
            status, reason = error.status, error.reason
            if not request.response_started:
                await request.respond_error(error.status, str(error), "upstream_failed")
        except RequestRejected as error:  # the body became too long
            if not request.response_started:
                raise
            status = error.status
        except (ClientDisconnected, OSError):
            status = CLIENT_CLOSED_REQUEST
        finally:
            for each in hooks:
                each.end()
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
                upstream="" if refused else upstream.name,
                reason=refused,
                attempts=tuple(attempts),
                error=reason,
                trace=request.headers.get("traceparent", ""),
            )
        )

    def _check_allowed(self, request: AsgiRequest, principal: Principal, upstream: Upstream) -> None:
        """Raise RequestRejected for a request that may not be sent with another's credentials."""
        own_key = principal.credential is not None or not self._tenants
        if own_key and not upstream.has_credentials:
            return
        if not is_allowed(request.method, request.path, self._allowed):
            message = (
                f"{request.method[:20]} {request.path[:100]} is not in the setting `passthrough`, which lists what is "
                "sent for callers without a provider key of their own."
            )
            reason = "The path is not in the setting `passthrough`."
            raise RequestRejected(403, message, "passthrough_not_allowed", reason=reason)

    async def _route(self, request: AsgiRequest) -> tuple[Upstream, bytes | AsyncIterator[bytes] | None, str]:
        """Return the upstream, the body to send, and the model if it is known."""
        headers, model = request.headers, model_in_path(request.target)
        upstream = self._for_model(model)
        if "content-length" not in headers and "transfer-encoding" not in headers:
            return upstream, None, model
        announced = int(length) if (length := headers.get("content-length", "")).isdecimal() else 0
        if announced > self._max_body:
            raise too_large(self._max_body)
        is_read = not model and len(self._upstreams.all) > 1 and "json" in headers.get("content-type", "")
        if not is_read or "content-encoding" in headers:
            return upstream, limited(request.iter_body(), self._max_body), model
        content = await request.read_body(self._max_body, self._max_body)
        try:
            model = await self._workers.call(partial(self._upstreams.find_model, content))
        except Uncacheable as reason:
            raise model_not_found(reason) from None
        except InvalidInput as error:
            raise RequestRejected(400, f"{error}.", "invalid_request") from None
        return self._for_model(model), content, model

    def _for_model(self, model: str) -> Upstream:
        """Return the upstream of a model, and the first one if there is only one or the model is not known."""
        if not model or len(self._upstreams.all) == 1:
            return self._upstreams.all[0]
        upstream = self._upstreams.for_model(model)
        if upstream is None:
            raise RequestRejected(404, f"No upstream serves the model {model[:100]!r}.", "model_not_found")
        return upstream


def check_path(request: AsgiRequest) -> None:
    """Raise RequestRejected for a path that the upstream may read as another one."""
    path = request.path.encode() if request.raw_path is None else request.raw_path
    for _ in range(MAX_DECODINGS):
        if AMBIGUOUS.search(path):
            break
        decoded = unquote_to_bytes(path)
        if decoded == path:
            try:
                text = path.decode()
            except UnicodeDecodeError:
                break
            if request.path not in PROXY_PATHS:  # of another method
                _check_near_path(text)
            return
        path = decoded
    message = "The path must not have dot segments, empty segments, backslashes, control characters or invalid UTF-8."
    raise RequestRejected(400, message, "invalid_path")


def _check_near_path(path: str) -> None:
    """Raise RequestRejected for a path that is not cached, but that the upstream may read as one that is.

    It would be sent without a key, and its cost would not be known. Servers may ignore case, a slash at the end, and
    SEGMENT_END. One whose address has no version may accept both `/v1/…` and `/…`.
    """
    segments = [SEGMENT_END.sub("", segment) for segment in path.casefold().split("/")]
    near = "/" + "/".join(segment for segment in segments if segment not in ("", "v1"))
    near = AZURE_DEPLOYMENT.sub("", near)
    if near in PROXY_PATHS:
        raise RequestRejected(400, f"The path must be spelled exactly /v1{near}.", "invalid_path")


def model_in_path(target: str) -> str:
    """Return the model that a path of Bedrock's API names, or ""."""
    found = BEDROCK_PATH.match(target)
    return unquote(found[1]) if found else ""


def is_allowed(method: str, path: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns, "METHOD /path" or "*", matches. `*` in a path also matches slashes."""
    for pattern in patterns:
        allowed, _, paths = pattern.partition(" ")
        if allowed in ("*", method) and fnmatchcase(path, paths or "*"):
            return True
    return False


async def limited(body: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """Yield the pieces of a body. Raises RequestRejected when they have more than `limit` bytes."""
    size = 0
    async for piece in body:
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        yield piece


async def forward(response: Response, request: AsgiRequest) -> None:
    """Send the upstream's response to the client as it arrives."""
    try:
        headers = sandboxed(forwarded_headers(response.pairs, keep=BODY_HEADERS))
        await request.send_head(response.status, [*headers, *outcome_headers("passthrough")])
        async for piece in response.iter_bytes():
            await request.send_body(piece)
        await request.send_body(b"", more=False)
    finally:
        await response.close()
