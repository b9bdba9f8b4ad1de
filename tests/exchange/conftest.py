"""A provider without a network: `Provider.send` returns scripted responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import Exchange, exchange_of
from knapcache.model import Endpoint
from knapcache.wire import FORMATS

JSON = {"content-type": "application/json", "x-request-id": "r1", "set-cookie": "secret"}
SSE = {"content-type": "text/event-stream"}


class ScriptedResponse:
    """A response in pieces. An exception among them is raised, an event is awaited."""

    def __init__(self, status: int, headers: dict[str, str], *pieces: bytes | Exception | asyncio.Event) -> None:
        self.status, self.headers, self.pairs = status, headers, list(headers.items())
        self._pieces = pieces
        self.taken = 0
        self.closed = False

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.iter_bytes()])

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self.taken += 1
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            else:
                yield piece

    async def close(self) -> None:
        self.closed = True


class Provider:
    """Returns the responses in their order, the last one again and again. Exceptions are raised."""

    def __init__(self, *responses: ScriptedResponse | Exception) -> None:
        self.responses = list(responses)
        self.requests: list[dict[str, Any]] = []

    async def send(self, content: bytes) -> ScriptedResponse:
        self.requests.append(json.loads(content))
        response = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        if isinstance(response, Exception):
            raise response
        return response


def answer_of(text: str) -> bytes:
    return json.dumps(
        {
            "id": "1",
            "object": "chat.completion",
            "model": "gpt-4o",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
        }
    ).encode()


def plain(text: str = "Hi") -> ScriptedResponse:
    return ScriptedResponse(200, JSON, answer_of(text))


def blocks_of(text: str = "Hi", usage: bool = True) -> list[bytes]:
    return list(FORMATS[Endpoint.CHAT].to_stream(answer_of(text), "json", usage))


def failure(status: int = 502) -> UpstreamFailed:
    return UpstreamFailed(status, "the connection was lost")


def exchange(headers: dict[str, str] | None = None, **body: Any) -> Exchange:
    url = httpx.URL("https://api.example/v1/chat/completions")
    raw = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}], **body}).encode()
    return exchange_of(Endpoint.CHAT, url, headers or {}, raw)


@pytest.fixture
def gate() -> asyncio.Event:
    return asyncio.Event()
