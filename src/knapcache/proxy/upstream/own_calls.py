"""Calls that the proxy makes for itself, with credentials of the settings only. No caller waits for them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from knapcache.errors import Incomplete
from knapcache.model import Endpoint
from knapcache.price.meter import Bill, Meter
from knapcache.proxy.upstream.client import encode_headers
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.wire.answer_text import answer_text
from knapcache.wire.base import CompleteAnswer, to_json
from knapcache.wire.registry import FORMATS

HEADERS: Mapping[str, str] = {"content-type": "application/json", "accept": "application/json"}
ANTHROPIC_HEADERS: Mapping[str, str] = {**HEADERS, "anthropic-version": "2023-06-01"}
MAX_TOKENS = 16
REFUSED_OPTION = (400, 422)
"""Statuses with which models refuse `temperature` or `max_tokens`."""


class OwnAnswer(NamedTuple):
    """The answer to a call of the proxy's own."""

    endpoint: Endpoint
    answer: CompleteAnswer
    model: str
    bill: Bill

    @property
    def text(self) -> str | None:
        """Its text; None if it is not plain text."""
        return answer_text(self.endpoint, self.answer.body, self.answer.form)


async def call(upstream: Upstream, endpoint: Endpoint, model: str, body: bytes, meter: Meter) -> OwnAnswer | int:
    """Return the answer to a request for a model, or the status of an error. Raises UpstreamFailed or Incomplete."""
    started = time.perf_counter()
    anthropic = upstream.settings.kind == "anthropic"
    headers = upstream.request_headers(ANTHROPIC_HEADERS if anthropic else HEADERS, own_key=False)
    path = upstream.path(f"/v1/{endpoint.value}")
    response = await upstream.send_with_retries(path, encode_headers(headers), body, [])
    try:
        content = await response.read()
    finally:
        await response.close()
    if response.status != 200:
        return response.status
    answer = FORMATS[endpoint].parse(content, {})
    name, seconds = answer.model or model, time.perf_counter() - started
    return OwnAnswer(
        endpoint, answer, name, meter.bill(endpoint, name, answer.usage, seconds, service_tier=answer.tier)
    )


class WordModel:
    """Asks a model for one word. instructions: what it is told, beside a text that is data."""

    def __init__(self, upstream: Upstream, model: str, instructions: str, meter: Meter) -> None:
        self._upstream, self.model, self._instructions, self._meter = upstream, model, instructions, meter
        self._plain = False
        """The model refuses the options; its requests have none."""

    async def ask(self, data: str) -> OwnAnswer:
        """Return its answer. Raises UpstreamFailed or Incomplete."""
        anthropic = self._upstream.settings.kind == "anthropic"
        endpoint = Endpoint.MESSAGES if anthropic else Endpoint.CHAT
        for plain in (self._plain, True):
            body = to_json(self._body(data, anthropic=anthropic, plain=plain))
            found = await call(self._upstream, endpoint, self.model, body, self._meter)
            if isinstance(found, OwnAnswer):
                self._plain = plain
                return found
            if plain or found not in REFUSED_OPTION:
                break
        raise Incomplete(f"status {found}")

    def _body(self, data: str, *, anthropic: bool, plain: bool) -> dict[str, Any]:
        """Return the request. plain: without the options that some models refuse."""
        message = {"role": "user", "content": data}
        body: dict[str, Any] = {"model": self.model}
        if anthropic:
            body |= {"system": self._instructions, "messages": [message], "max_tokens": MAX_TOKENS}
            return body if plain else body | {"temperature": 0}
        body["messages"] = [{"role": "system", "content": self._instructions}, message]
        return body if plain else body | {"temperature": 0, "max_tokens": MAX_TOKENS}
