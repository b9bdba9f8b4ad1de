"""Minimal servers for comparison, and a fake provider: raw ASGI on uvicorn, each in its own process.

    python bench/_baseline_servers.py canned PORT
        writes a fixed response without parsing HTTP: the limit of the load generator
    python bench/_baseline_servers.py echo PORT
        reads the body and returns a fixed answer of 2 KB: the minimum of a Python server
    python bench/_baseline_servers.py upstream PORT [DELAY]
        fake provider: returns the first word of the last message in an answer of 2 KB after DELAY seconds;
        GET returns the number of calls
    python bench/_baseline_servers.py paced PORT [DELAY PACE]
        the same, with approximate delays and PACE seconds between the events of a stream
    python bench/_baseline_servers.py embeddings PORT INPUTS NUMBERS FLOATS
        the same; returns INPUTS vectors of NUMBERS random numbers each for embeddings, as lists if FLOATS is 1
    python bench/_baseline_servers.py aiohttp PORT UPSTREAM
    python bench/_baseline_servers.py own-client PORT UPSTREAM
        forward requests to the port UPSTREAM with aiohttp's client or the proxy's own client, and do nothing else

`upstream` sleeps in a thread: event loop timers have a resolution of one millisecond, the size of what is measured.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
import uvloop

from knapcache.proxy.upstream import Client

CHAT = "/v1/chat/completions"
BYTES = 2048
EVENTS = 16
JSON = (b"content-type", b"application/json")
SSE = (b"content-type", b"text/event-stream")
USAGE = {"prompt_tokens": 250, "completion_tokens": 500, "total_tokens": 750}


def completion(nonce: str, model: str = "gpt-4o", size: int = BYTES) -> bytes:
    """Return a chat completion of `size` bytes."""
    message = {"role": "assistant", "content": f"{nonce} "}
    body: dict[str, Any] = {
        "id": f"chatcmpl-{nonce}", "object": "chat.completion", "created": 1700000000, "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE,
    }  # fmt: skip
    message["content"] += "x" * (size - len(json.dumps(body)))
    return json.dumps(body).encode()


def chunks(nonce: str, model: str, usage: bool, size: int = BYTES) -> list[bytes]:
    """Return a chat completion as the events of a stream."""
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


async def read_body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def send_json(send: Any, body: bytes) -> None:
    headers = [JSON, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Echo:
    """ASGI application with a fixed answer."""

    def __init__(self) -> None:
        self._body = completion("0")

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send_json(send, self._body)


class Upstream:
    """Fake provider.

    delay   seconds before an answer
    pace    seconds between two events of a stream
    exact   delay in a thread, with better than millisecond resolution
    """

    def __init__(self, delay: float = 0.0, pace: float = 0.0, *, exact: bool = True, size: int = BYTES) -> None:
        self._delay, self._pace, self._exact, self._size = delay, pace, exact, size
        self._threads = ThreadPoolExecutor(8)
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await send_json(send, b"%d" % self.calls)
            return
        body = json.loads(await read_body(receive))
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
            await send_json(send, completion(nonce, body["model"], self._size))

    async def _stream(self, send: Any, events: list[bytes]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [SSE]})
        for event in events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(self._pace)
        await send({"type": "http.response.body", "body": b""})


class Embeddings(Upstream):
    """Fake provider with a fixed answer for embeddings: made once, because it has millions of numbers."""

    def __init__(self, inputs: float, numbers: float, floats: float) -> None:
        super().__init__()
        rng, data = random.Random(1), []
        for index in range(int(inputs)):
            vector: Any = base64.b64encode(rng.randbytes(4 * int(numbers))).decode()
            if floats:
                vector = [round(rng.gauss(0, 0.03), 9) for _ in range(int(numbers))]
            data.append({"object": "embedding", "index": index, "embedding": vector})
        usage = {"prompt_tokens": 8 * int(inputs), "total_tokens": 8 * int(inputs)}
        body = {"object": "list", "data": data, "model": "text-embedding-3-small", "usage": usage}
        self._body = json.dumps(body).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not scope["path"].endswith("/embeddings"):
            await super().__call__(scope, receive, send)
            return
        await read_body(receive)
        await send_json(send, self._body)


class Passthrough:
    """Minimal proxy. fetch: sends a body upstream and yields (content type, bytes) parts of the answer."""

    def __init__(self, fetch: Callable[[bytes], AsyncIterator[tuple[str, bytes]]]) -> None:
        self._fetch = fetch

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await send_json(send, b"")
            return
        started = False
        async for content_type, part in self._fetch(await read_body(receive)):
            if not started:
                started = True
                head = [(b"content-type", content_type.encode())]
                await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class AiohttpFetch:
    """Fetch with aiohttp's client."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}{CHAT}"
        self._session: Any = None  # created on the event loop

    async def __call__(self, body: bytes) -> AsyncIterator[tuple[str, bytes]]:
        import aiohttp

        self._session = self._session or aiohttp.ClientSession()
        async with self._session.post(self._url, data=body, headers={"content-type": "application/json"}) as answer:
            async for part in answer.content.iter_any():
                yield answer.headers["content-type"], part


class OwnClientFetch:
    """Fetch with the proxy's own client."""

    def __init__(self, port: int) -> None:
        self._url, self._client = f"http://127.0.0.1:{port}", Client("upstream", 5.0, 60.0)

    async def __call__(self, body: bytes) -> AsyncIterator[tuple[str, bytes]]:
        answer = await self._client.request("POST", self._url, CHAT, b"content-type: application/json\r\n", body)
        async for part in answer.iter_bytes():
            yield answer.headers["content-type"], part


class Canned(asyncio.Protocol):
    """Write a fixed response to every request, without parsing it."""

    response = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(completion("0")), completion("0"))

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"}"):  # the end of every request of the load generator
            self._transport.write(self.response)


async def serve_canned(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", port)
    await server.serve_forever()


def serve(app: Any, port: int) -> None:
    """Run an ASGI application with the uvicorn settings of `knapcache serve`."""
    uvicorn.run(
        app, host="127.0.0.1", port=port, http="httptools", lifespan="off", access_log=False, log_config=None,
        server_header=False, proxy_headers=False, timeout_keep_alive=75,
    )  # fmt: skip


def main() -> None:
    kind, port, *rest = sys.argv[1:]
    numbers = [float(word) for word in rest]
    if kind == "canned":
        uvloop.run(serve_canned(int(port)))
    elif kind == "echo":
        serve(Echo(), int(port))
    elif kind in ("aiohttp", "own-client"):
        serve(Passthrough((AiohttpFetch if kind == "aiohttp" else OwnClientFetch)(int(rest[0]))), int(port))
    elif kind == "embeddings":
        serve(Embeddings(*numbers), int(port))
    elif kind == "paced":
        serve(Upstream(*numbers, exact=False), int(port))
    else:
        serve(Upstream(*numbers), int(port))


if __name__ == "__main__":
    main()
