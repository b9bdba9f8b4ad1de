"""Servers to compare with and to ask: raw ASGI on uvicorn, as bare as can be, each a process of its own.

    python bench/_baseline_servers.py canned PORT               no HTTP at all: a fixed answer to whatever comes
    python bench/_baseline_servers.py echo PORT                 reads the body, gives a fixed answer of 2 KB: the least that a
                                                    server in Python does
    python bench/_baseline_servers.py upstream PORT [DELAY]     a fake provider: the first word of the last message comes back, in
                                                    an answer of 2 KB, after DELAY seconds; GET: how often it was asked
    python bench/_baseline_servers.py aiohttp PORT UPSTREAM     passes a request on to that port and its answer back, by aiohttp's
    python bench/_baseline_servers.py ours PORT UPSTREAM        client or by that of the proxy, and does nothing else

The delay is slept in a thread: timers of event loops count whole milliseconds, which is as much as is to be measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
import uvloop

from knapcache.serve.upstream import Client

CHAT = "/v1/chat/completions"
BYTES = 2048
EVENTS = 16
JSON = (b"content-type", b"application/json")
SSE = (b"content-type", b"text/event-stream")
USAGE = {"prompt_tokens": 250, "completion_tokens": 500, "total_tokens": 750}


def completion(nonce: str, model: str = "gpt-4o", size: int = BYTES) -> bytes:
    """A chat completion of so many bytes."""
    message = {"role": "assistant", "content": f"{nonce} "}
    body: dict[str, Any] = {
        "id": f"chatcmpl-{nonce}", "object": "chat.completion", "created": 1700000000, "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE,
    }  # fmt: skip
    message["content"] += "x" * (size - len(json.dumps(body)))
    return json.dumps(body).encode()


def chunks(nonce: str, model: str, usage: bool, size: int = BYTES) -> list[bytes]:
    """The same as a stream of events."""
    head = {"id": f"chatcmpl-{nonce}", "object": "chat.completion.chunk", "created": 1700000000, "model": model}
    part = "x" * (size // EVENTS)

    def event(delta: dict[str, str], finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return b"data: " + json.dumps({**head, "choices": choices}).encode() + b"\n\n"

    events = [event({"role": "assistant", "content": f"{nonce} "})]
    events += [event({"content": part})] * EVENTS
    events.append(event({}, "stop"))
    if usage:
        events.append(b"data: " + json.dumps({**head, "choices": [], "usage": USAGE}).encode() + b"\n\n")
    return [*events, b"data: [DONE]\n\n"]


async def whole(receive: Any) -> bytes:
    """The body of a request."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def give(send: Any, body: bytes) -> None:
    """An answer."""
    headers = [JSON, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Echo:
    """The least that a server does."""

    def __init__(self) -> None:
        self._body = completion("0")

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        await receive()
        await give(send, self._body)


class Upstream:
    """A provider. pace: seconds between two events of a stream."""

    def __init__(self, delay: float = 0.0, pace: float = 0.0, *, exact: bool = True, size: int = BYTES) -> None:
        self._delay, self._pace, self._exact, self._size = delay, pace, exact, size
        self._threads = ThreadPoolExecutor(8)
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["method"] == "GET":
            await give(send, b"%d" % self.calls)
            return
        body = json.loads(await whole(receive))
        self.calls += 1
        nonce = body["messages"][-1]["content"].partition(" ")[0]
        if self._exact and self._delay:
            await asyncio.get_running_loop().run_in_executor(self._threads, time.sleep, self._delay)
        elif self._delay:
            await asyncio.sleep(self._delay)
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            await self._stream(send, chunks(nonce, body["model"], usage, self._size))
        else:
            await give(send, completion(nonce, body["model"], self._size))

    async def _stream(self, send: Any, events: list[bytes]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [SSE]})
        for event in events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(self._pace)
        await send({"type": "http.response.body", "body": b""})


class Passing:
    """The least that a proxy does. bodies: how the pieces of an answer are got."""

    def __init__(self, bodies: Callable[[bytes], AsyncIterator[tuple[str, bytes]]]) -> None:
        self._bodies = bodies

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["method"] == "GET":
            await give(send, b"")
            return
        begun = False
        async for kind, piece in self._bodies(await whole(receive)):
            if not begun:
                begun = True
                head = [(b"content-type", kind.encode())]
                await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class ByAiohttp:
    """Pieces of an answer by aiohttp."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}{CHAT}"
        self._session: Any = None  # begun on the loop

    async def __call__(self, body: bytes) -> AsyncIterator[tuple[str, bytes]]:
        """Ask."""
        import aiohttp

        self._session = self._session or aiohttp.ClientSession()
        async with self._session.post(self._url, data=body, headers={"content-type": "application/json"}) as answer:
            async for piece in answer.content.iter_any():
                yield answer.headers["content-type"], piece


class ByOurs:
    """The same by the proxy's own client."""

    def __init__(self, port: int) -> None:
        self._url, self._client = f"http://127.0.0.1:{port}", Client("upstream", 5.0, 60.0)

    async def __call__(self, body: bytes) -> AsyncIterator[tuple[str, bytes]]:
        """Ask."""
        answer = await self._client.request("POST", self._url, CHAT, b"content-type: application/json\r\n", body)
        async for piece in answer.iter_bytes():
            yield answer.headers["content-type"], piece


class Canned(asyncio.Protocol):
    """What a load generator can ask at most: the other end does next to nothing."""

    said = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(completion("0")), completion("0"))

    def connection_made(self, transport: Any) -> None:
        """Somebody came."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """A request, or the rest of one: its last bytes are known."""
        if data.endswith(b"}"):
            self._transport.write(self.said)


async def canned(port: int) -> None:
    """Serve for ever."""
    server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", port)
    await server.serve_forever()


def serve(app: Any, port: int) -> None:
    """With the settings of `knapcache serve`."""
    uvicorn.run(
        app, host="127.0.0.1", port=port, http="httptools", lifespan="off", access_log=False, log_config=None,
        server_header=False, proxy_headers=False, timeout_keep_alive=75,
    )  # fmt: skip


def main() -> None:
    """As told."""
    kind, port, *rest = sys.argv[1:]
    numbers = [float(word) for word in rest]
    if kind == "canned":
        uvloop.run(canned(int(port)))
    elif kind == "echo":
        serve(Echo(), int(port))
    elif kind in ("aiohttp", "ours"):
        serve(Passing((ByAiohttp if kind == "aiohttp" else ByOurs)(int(rest[0]))), int(port))
    elif kind == "paced":
        serve(Upstream(*numbers, exact=False), int(port))
    else:
        serve(Upstream(*numbers), int(port))


if __name__ == "__main__":
    main()
