"""Bodies of requests to the admin API."""

from __future__ import annotations

import orjson
from starlette.requests import ClientDisconnect, Request

from knapcache.proxy.admin.models import RequestModel, bad_request, parse
from knapcache.proxy.http.asgi_request import RequestRejected

MAX_BODY = 64 << 10
"""Bytes of a request body."""


async def read_body(request: Request, model: type[RequestModel]) -> RequestModel:
    """Read and validate a JSON body. Raises RequestRejected."""
    content = b""
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > MAX_BODY:
                raise RequestRejected(413, f"A body may have at most {MAX_BODY} bytes.", "too_large")
    except ClientDisconnect:
        raise bad_request("The body is incomplete.") from None
    try:
        values = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The body must be a JSON object: {error}.") from None
    return parse(model, values)
