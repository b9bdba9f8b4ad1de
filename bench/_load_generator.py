"""Load generator of bench/proxy.py and bench/soak.py: HTTP/1.1 over raw sockets, in its own process.

A client library costs more than the servers under test. So requests are encoded beforehand, and responses are parsed
only as far as needed to find their end. All servers get the same generator. `wrk` may not be installed, and results of
two generators are not comparable.

    python bench/_load_generator.py < job.json      prints the results as JSON

    {"kind": "closed", "port": …, "requests": […], "order": […], "connections": 32, "seconds": 3.0, "must": "x: y"}
        closed loop: every connection sends its next request when it has its answer; a correct response has `must` in
        its head
    {"kind": "turns", "ports": […], "requests": [[…], …], "pause": 0.0}
        one request at a time, to each server in turn, so that differences come from the servers

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
    """Return the encoded request."""
    raw = body.encode()
    fields = {
        "host": f"127.0.0.1:{port}",
        "content-type": "application/json",
        "content-length": str(len(raw)),
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + raw


class Connection(asyncio.Protocol):
    """One connection with one request at a time. `on_done(connection)` is called at the end of every response."""

    transport: asyncio.Transport

    def __init__(self, on_done: Callable[[Connection], None]) -> None:
        self.on_done = on_done
        self.lost = False
        self._clear()

    def _clear(self) -> None:
        self.response, self.head, self.length = b"", b"", -1
        self.first_byte_at = self.last_byte_at = 0.0
        self.complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio.Transport

    def send(self, raw: bytes) -> None:
        self._clear()
        self.sent_at = time.perf_counter()
        self.transport.write(raw)

    def data_received(self, data: bytes) -> None:
        self.response = response = self.response + data if self.response else data
        if not self.head:
            end = response.find(END)
            if end < 0:
                return
            self.head = head = response[: end + 4].lower()
            at = head.find(LENGTH)
            if at >= 0:
                self.length = end + 4 + int(head[at + 18 : head.index(b"\r\n", at + 18)])
        if not self.first_byte_at and len(response) > len(self.head):
            self.first_byte_at = time.perf_counter()
        if len(response) == self.length if self.length >= 0 else response.endswith(LAST_CHUNK):
            self.last_byte_at = time.perf_counter()
            self.complete = True
            self.on_done(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self.lost = True
        if not self.complete:
            self.on_done(self)


async def connect(port: int, on_done: Callable[[Connection], None]) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(on_done), "127.0.0.1", port)
    connection.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


async def closed_loop(job: dict[str, Any]) -> dict[str, Any]:
    """Send as many requests as the server answers; return rates and latencies."""
    requests = [request(job["port"], *each) for each in job["requests"]]
    order = cycle([requests[k] for k in job["order"]])
    must = job["must"].lower().encode()
    latencies: list[float] = []
    counts = {"bad": 0, "bytes": 0}
    finished = asyncio.get_running_loop().create_future()
    open_connections = job["connections"]
    start = time.perf_counter()
    end = start + job["seconds"]

    def on_done(connection: Connection) -> None:
        nonlocal open_connections
        latencies.append(connection.last_byte_at - connection.sent_at)
        if not connection.head.startswith(b"http/1.1 200") or must not in connection.head:
            counts["bad"] += 1
        counts["bytes"] += len(connection.response)
        if connection.last_byte_at < end and not connection.lost:
            connection.send(next(order))
            return
        open_connections -= 1
        if not open_connections:
            finished.set_result(None)

    connections = [await connect(job["port"], on_done) for _ in range(open_connections)]
    cpu = time.process_time()
    start = time.perf_counter()
    end = start + job["seconds"]
    for connection in connections:
        connection.send(next(order))
    await finished
    seconds = time.perf_counter() - start
    cpu = time.process_time() - cpu
    for connection in connections:
        connection.transport.close()
    return {
        "requests": len(latencies),
        "seconds": seconds,
        "cpu_share": cpu / seconds,
        **counts,
        **quantiles(latencies),
    }


async def in_turns(job: dict[str, Any]) -> dict[str, Any]:
    """Send one request at a time to each server in turn; return latencies of whole responses and first bytes."""
    answered: asyncio.Future[None]

    def on_done(_: Connection) -> None:
        if not answered.done():
            answered.set_result(None)

    connections = [await connect(port, on_done) for port in job["ports"]]
    whole: list[list[float]] = [[] for _ in connections]
    first: list[list[float]] = [[] for _ in connections]
    bad = 0
    for k, by_server in enumerate(job["requests"]):
        for j in range(len(connections)):
            at = (j + k) % len(connections)  # rotate which server is first
            connection, raw = connections[at], request(job["ports"][at], *by_server[at])
            await asyncio.sleep(job["pause"])
            answered = asyncio.get_running_loop().create_future()
            connection.send(raw)
            await answered
            bad += not connection.head.startswith(b"http/1.1 200")
            whole[at].append(connection.last_byte_at - connection.sent_at)
            first[at].append(connection.first_byte_at - connection.sent_at)
    return {"whole": [quantiles(v) for v in whole], "first": [quantiles(v) for v in first], "bad": bad}


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Return p50 and p99 in microseconds."""
    ordered = sorted(seconds)
    return {"p50_us": ordered[len(ordered) // 2] * 1e6, "p99_us": ordered[int(len(ordered) * 0.99)] * 1e6}


KINDS: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {"closed": closed_loop, "turns": in_turns}


def main() -> None:
    job = json.load(sys.stdin)
    gc.freeze()
    gc.disable()  # a collection here would count as latency of the server
    print(json.dumps(uvloop.run(KINDS[job["kind"]](job))))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
