"""The load of bench/proxy.py and bench/soak.py: HTTP/1.1 over raw sockets, in a process of its own.

A client library costs more than the server it asks, so requests are bytes made beforehand, and of an answer is read
what is needed to know where it ends. One generator for all servers: `wrk` may not be there, and two would not compare.

    python bench/_load_generator.py < what.json       what is to be asked, and how; prints what came of it as JSON

    {"kind": "closed", "port": …, "requests": […], "order": […], "connections": 32, "seconds": 3.0, "must": "x: y"}
        every connection asks again as soon as it is answered; `must` is in the head of a right answer
    {"kind": "turns", "ports": […], "requests": [[…], …], "pause": 0.0}
        one request at a time, each server asked in turn: what differs between servers differs by them alone

A request is [path, headers, body]. Times are in microseconds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any

import uvloop

END, LAST_CHUNK = b"\r\n\r\n", b"\r\n0\r\n\r\n"
LENGTH = b"\r\ncontent-length: "


def request(port: int, path: str, headers: dict[str, str], body: str) -> bytes:
    """As it goes over the wire."""
    raw = body.encode()
    said = {"host": f"127.0.0.1:{port}", "content-type": "application/json", "content-length": str(len(raw)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + raw


class Wire(asyncio.Protocol):
    """One connection, one request at a time. `done(wire)` is called for every answer, and for an end without one."""

    transport: asyncio.Transport

    def __init__(self, done: Callable[[Wire], None]) -> None:
        self._done = done
        self.lost = False
        self._clear()

    def _clear(self) -> None:
        self.answer, self.head, self.length = b"", b"", -1
        self.first = self.last = 0.0
        self.whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's are no asyncio.Transport

    def ask(self, raw: bytes) -> None:
        """Send a request."""
        self._clear()
        self.started = time.perf_counter()
        self.transport.write(raw)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self.answer = answer = self.answer + data if self.answer else data
        if not self.head:
            end = answer.find(END)
            if end < 0:
                return
            self.head = head = answer[: end + 4].lower()
            at = head.find(LENGTH)
            if at >= 0:
                self.length = end + 4 + int(head[at + 18 : head.index(b"\r\n", at + 18)])
        if not self.first and len(answer) > len(self.head):
            self.first = time.perf_counter()
        if len(answer) == self.length if self.length >= 0 else answer.endswith(LAST_CHUNK):
            self.last = time.perf_counter()
            self.whole = True
            self._done(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """No more will come."""
        self.lost = True
        if not self.whole:
            self._done(self)


async def connect(port: int, done: Callable[[Wire], None]) -> Wire:
    """A connection."""
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(lambda: Wire(done), "127.0.0.1", port)
    wire.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return wire


async def closed(what: dict[str, Any]) -> dict[str, Any]:
    """As many requests as the server takes."""
    requests = [request(what["port"], *each) for each in what["requests"]]
    order = cycle([requests[k] for k in what["order"]])
    must = what["must"].lower().encode()
    spent: list[float] = []
    counts = {"bad": 0, "bytes": 0}
    over = asyncio.get_running_loop().create_future()
    open_ = what["connections"]
    began = time.perf_counter()
    end = began + what["seconds"]

    def done(wire: Wire) -> None:
        nonlocal open_
        spent.append(wire.last - wire.started)
        if not wire.head.startswith(b"http/1.1 200") or must not in wire.head:
            counts["bad"] += 1
        counts["bytes"] += len(wire.answer)
        if wire.last < end and not wire.lost:
            wire.ask(next(order))
            return
        open_ -= 1
        if not open_:
            over.set_result(None)

    wires = [await connect(what["port"], done) for _ in range(open_)]
    cpu = time.process_time()
    began = time.perf_counter()
    end = began + what["seconds"]
    for wire in wires:
        wire.ask(next(order))
    await over
    seconds = time.perf_counter() - began
    cpu = time.process_time() - cpu
    for wire in wires:
        wire.transport.close()
    return {"requests": len(spent), "seconds": seconds, "busy": cpu / seconds, **counts, **quantiles(spent)}


async def turns(what: dict[str, Any]) -> dict[str, Any]:
    """One at a time, by turns; for each server: the whole answer, and its first byte."""
    answered: asyncio.Future[None]

    def done(_: Wire) -> None:
        if not answered.done():
            answered.set_result(None)

    wires = [await connect(port, done) for port in what["ports"]]
    whole: list[list[float]] = [[] for _ in wires]
    first: list[list[float]] = [[] for _ in wires]
    bad = 0
    for k, some in enumerate(what["requests"]):
        for j in range(len(wires)):
            at = (j + k) % len(wires)  # nobody is always the first
            wire, raw = wires[at], request(what["ports"][at], *some[at])
            await asyncio.sleep(what["pause"])
            answered = asyncio.get_running_loop().create_future()
            wire.ask(raw)
            await answered
            bad += not wire.head.startswith(b"http/1.1 200")
            whole[at].append(wire.last - wire.started)
            first[at].append(wire.first - wire.started)
    return {"whole": [quantiles(v) for v in whole], "first": [quantiles(v) for v in first], "bad": bad}


def quantiles(seconds: list[float]) -> dict[str, float]:
    """p50 and p99 in microseconds."""
    found = sorted(seconds)
    return {"p50_us": found[len(found) // 2] * 1e6, "p99_us": found[int(len(found) * 0.99)] * 1e6}


KINDS: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {"closed": closed, "turns": turns}


def main() -> None:
    """From stdin to stdout."""
    what = json.load(sys.stdin)
    gc.freeze()
    gc.disable()  # a pause of ours would be counted as one of the server's
    print(json.dumps(uvloop.run(KINDS[what["kind"]](what))))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
