"""Clients of bench/soak.py, in their own process.

    python bench/_soak_clients.py < job.json      {"port", "clients", "seconds", "interval", "prompts", "headers"}

Each client requests one of many prompts by Zipf's law, or, one time in ten, a prompt that occurs once; half of the
requests are streams. It checks that every nonce in the answer is that of its own prompt. One request in ten is
aborted: a stream after its first bytes, a plain request while waiting for the answer. Prints the counts so far as a
line of JSON every `interval` seconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from bisect import bisect
from itertools import accumulate
from typing import Any

import uvloop
from _load_generator import Connection, request

NONCE = re.compile(rb"nonce-(\d+)-")
ABORT_SHARE = 0.1
ONE_HIT_SHARE = 0.1
STREAM_SHARE = 0.5
TIMEOUT = 60.0
"""Seconds."""


class AbortingConnection(Connection):
    """A connection that can abort after the first bytes of a response."""

    abort_early = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.abort_early and self.first_byte_at and not self.complete:
            self.transport.abort()


class SoakClients:
    """All clients and their shared counts."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._end = time.monotonic() + job["seconds"]
        self._weights = list(accumulate(1.0 / rank for rank in range(1, job["prompts"] + 1)))
        self._last_one_hit: int = job["prompts"]
        self.counts = dict.fromkeys(("answered", "hits", "disconnected", "misdelivered", "failed", "timed_out"), 0)
        self.errors: list[str] = []
        """The first error responses."""

    def _draw_prompt(self, rng: random.Random) -> int:
        if rng.random() < ONE_HIT_SHARE:
            self._last_one_hit += 1
            return self._last_one_hit
        return bisect(self._weights, rng.random() * self._weights[-1])

    def _encode(self, k: int, stream: bool) -> bytes:
        messages = [{"role": "user", "content": f"nonce-{k}- Fill the knapsack. " + "Once more. " * (k % 40)}]
        body = {"model": "gpt-4o", "messages": messages, "stream": stream}
        return request(self._job["port"], "/v1/chat/completions", self._job["headers"], json.dumps(body))

    async def client(self, number: int) -> None:
        """Send requests until the end."""
        rng, connection = random.Random(number), None
        loop = asyncio.get_running_loop()
        while time.monotonic() < self._end:
            answered: asyncio.Future[None] = loop.create_future()

            def on_done(_: Connection, answered: asyncio.Future[None] = answered) -> None:
                if not answered.done():
                    answered.set_result(None)

            if connection is None or connection.lost:
                _, connection = await loop.create_connection(
                    lambda: AbortingConnection(lambda _: None), "127.0.0.1", self._job["port"]
                )
            connection.on_done = on_done
            k, stream, abort = self._draw_prompt(rng), rng.random() < STREAM_SHARE, rng.random() < ABORT_SHARE
            connection.abort_early = abort and stream
            connection.send(self._encode(k, stream))
            if abort and not stream:
                await asyncio.sleep(0.005 * rng.random())
                connection.transport.abort()
            try:
                await asyncio.wait_for(answered, TIMEOUT)
            except TimeoutError:
                self.counts["timed_out"] += 1
                connection.transport.abort()
                continue
            self._count(connection, k, abort)

    def _count(self, connection: Connection, k: int, aborted: bool) -> None:
        counts = self.counts
        if aborted and not connection.complete:
            counts["disconnected"] += 1
        elif (
            not connection.complete
            or not connection.head.startswith(b"http/1.1 200")
            or b'"error"' in connection.response
        ):
            counts["failed"] += 1
            if len(self.errors) < 10:
                self.errors.append(connection.response[:300].decode(errors="replace"))
        else:
            counts["answered"] += 1
            counts["hits"] += b"\r\nx-knapcache: hit" in connection.head
        nonces = NONCE.findall(connection.response)
        whole = connection.complete and connection.head.startswith(b"http/1.1 200")
        if any(int(found) != k for found in nonces) or (whole and not nonces):
            counts["misdelivered"] += 1

    async def report(self) -> None:
        """Print the counts at every interval."""
        while True:
            await asyncio.sleep(self._job["interval"])
            print(json.dumps({**self.counts, "errors": self.errors}), flush=True)

    async def run(self) -> None:
        reporter = asyncio.create_task(self.report())
        await asyncio.gather(*(self.client(number) for number in range(self._job["clients"])))
        reporter.cancel()
        print(json.dumps({**self.counts, "errors": self.errors}), flush=True)


if __name__ == "__main__":
    uvloop.run(SoakClients(json.load(sys.stdin)).run())
