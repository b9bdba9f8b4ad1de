"""Requests to Amazon Bedrock's own API. They pass through, and its prompt cache is used for them.

    /v1/model/{model}/converse, converse-stream                    marks are blocks with `cachePoint`
    /v1/model/{model}/invoke, invoke-with-response-stream          Anthropic's format: marks are `cache_control`

The tier only changes a body that it has read without loss. Everything else is forwarded as it came: a body that is
compressed, long, no JSON or in another format; and one that is covered by a signature or a digest, as with AWS's
Signature Version 4. Requests with an API key (`Authorization: Bearer …`) are not signed.

The response is forwarded while it arrives, and not changed. Its usage is read meanwhile (bedrock_usage.py).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from knapcache.errors import Uncacheable
from knapcache.exchange.exchange import parse_request
from knapcache.keys.cache_marks import CONVERSE
from knapcache.keys.edited_text import edited_text
from knapcache.keys.parse import SHORT, ParsedBody
from knapcache.model import Endpoint
from knapcache.serve.http.bedrock_usage import UsageReader, usage_reader
from knapcache.serve.observe.events import PrefixEvent
from knapcache.serve.upstream import Response
from knapcache.serve.upstream.prefix_tier import PrefixMarker
from knapcache.serve.upstream.upstream import Upstream
from knapcache.threads import DeadlinePool

MODEL_PATH = re.compile(r"/v1/model/([^/?]+)/(converse|invoke)(?:-stream|-with-response-stream)?(?:\?|$)")
BEDROCK_TYPE = "application/json"
"""Type of a body without content-type. AWS's SDK for Python sends none with invoke."""
BODY_DIGESTS = ("content-digest", "content-md5", "digest", "repr-digest", "x-amz-content-sha256")
"""Request headers that hold for the bytes of the body."""
REFUSED = (400, 403, 422)
"""Statuses with which Bedrock refuses marks."""

Send = Callable[[bytes], Awaitable[Response]]


def model_in_path(target: str) -> str:
    """Return the model that a path of Bedrock's API names, or ""."""
    found = MODEL_PATH.match(target)
    return unquote(found[1]) if found else ""


def is_signed(headers: Mapping[str, str], query: bytes) -> bool:
    """Return whether the request has a signature or a digest of its body. headers: by lower-case name."""
    return (
        headers.get("authorization", "").lstrip().upper().startswith("AWS4-")
        or b"x-amz-signature=" in query.lower()
        or any(name in headers for name in BODY_DIGESTS)
    )


def may_be_marked(upstream: Upstream, headers: Mapping[str, str], query: bytes) -> bool:
    """Return whether a request with this head may be changed for Bedrock's prompt cache."""
    bedrock = upstream.prefix is not None and upstream.settings.prompt_cache == "bedrock"
    return bedrock and not is_signed(headers, query)


class BedrockRequest:
    """One request that was read whole, and may be marked."""

    def __init__(self, marker: PrefixMarker, raw: bytes, body: ParsedBody, pool: DeadlinePool) -> None:
        self._marker, self._raw, self._body, self._pool = marker, raw, body, pool
        self._status = 0
        self._usage: UsageReader | None = None

    async def send(self, send: Send) -> Response:
        """Send the request with marks if the tier places some; without them if the upstream refuses them."""
        marker = self._marker
        marked = await marker.mark()
        if marked is None:
            response = await send(self._raw)
        else:
            response = await send(await self._run(len(self._raw), partial(edited_text, self._raw, self._body, marked)))
            if response.status in REFUSED and marker.refusable:
                await response.close()
                response = await send(self._raw)
                marker.answered(response.status, marked=False)
            else:
                marker.answered(response.status, marked=True)
        self._status = response.status
        self._usage = usage_reader(response.headers) if response.status == 200 else None
        return response

    def collect(self, piece: bytes) -> None:
        """Read a piece of the response for its usage."""
        if self._usage is not None:
            self._usage.feed(piece)

    async def report(self) -> PrefixEvent | None:
        """Report the request to the tier after its response. Return what is recorded of it; None: it was not paid."""
        if self._status != 200:
            return None
        usage = self._usage
        return self._marker.report(None if usage is None else await self._run(usage.size, usage.tokens))

    async def _run(self, size: int, function: Callable[[], Any]) -> Any:
        return function() if size <= SHORT else await self._pool.call(function)


async def bedrock_request(
    upstream: Upstream, target: str, raw: bytes, *, model: str, account: str, pool: DeadlinePool
) -> BedrockRequest | None:
    """Return a request to a model of Bedrock for the tier; None if it is not understood."""
    found = MODEL_PATH.match(target)
    if upstream.prefix is None or upstream.prefix.mode == "off" or found is None:
        return None
    body = parse_request(raw) if len(raw) <= SHORT else await pool.call(partial(parse_request, raw))
    if isinstance(body, Uncacheable):
        return None
    shape = CONVERSE if found[2] == "converse" else Endpoint.MESSAGES
    if shape != CONVERSE and "anthropic_version" not in body:
        return None
    marker = PrefixMarker(upstream.prefix, shape, body, len(raw), model=model, account=account, pool=pool)
    return BedrockRequest(marker, raw, body, pool)
