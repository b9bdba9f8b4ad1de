"""The clients of bench/soak.py, in a process of their own.

    python bench/_soak_clients.py < what.json      {"port", "clients", "seconds", "every", "prompts", "headers"}

Each asks for one of many prompts, by Zipf's law, or, one time in ten, for one that nobody asks for again; half of them
as a stream. It checks that the nonce in every part of the answer is that of its own prompt. One in ten hangs up in the
middle: of a stream after its first bytes, of a plain answer while waiting for it. A line of JSON every so many seconds:
how much of what has happened so far.
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
from _load_generator import Wire, request

NONCE = re.compile(rb"nonce-(\d+)-")
LEAVING = 0.1
ONCE = 0.1
FILLING = 0.9
"""The same in the first third of the time, so that the table of known keys is full when curves are judged."""
STREAMS = 0.5
LONGEST = 60.0
"""Seconds that a client waits."""


class Visitor(Wire):
    """A connection whose client may leave."""

    leaving = False

    def data_received(self, data: bytes) -> None:
        """Read on, or hang up."""
        super().data_received(data)
        if self.leaving and self.first and not self.whole:
            self.transport.abort()


class Crowd:
    """All of them."""

    def __init__(self, what: dict[str, Any]) -> None:
        self._what = what
        self._end = time.monotonic() + what["seconds"]
        self._full = time.monotonic() + what["seconds"] / 3
        self._weights = list(accumulate(1.0 / rank for rank in range(1, what["prompts"] + 1)))
        self._last: int = what["prompts"]  # of the prompts that are asked for once
        self.counts = dict.fromkeys(("answered", "hits", "disconnected", "misdelivered", "failed", "timed_out"), 0)
        self.troubles: list[str] = []
        """Of what kind the first ones were."""

    def _drawn(self, rng: random.Random) -> int:
        if rng.random() < (FILLING if time.monotonic() < self._full else ONCE):
            self._last += 1
            return self._last
        return bisect(self._weights, rng.random() * self._weights[-1])

    def _asked(self, k: int, stream: bool) -> bytes:
        turns = [{"role": "user", "content": f"nonce-{k}- Fill the knapsack. " + "Once more. " * (k % 40)}]
        body = {"model": "gpt-4o", "messages": turns, "stream": stream}
        return request(self._what["port"], "/v1/chat/completions", self._what["headers"], json.dumps(body))

    async def client(self, number: int) -> None:
        """One of them, until the end."""
        rng, wire = random.Random(number), None
        loop = asyncio.get_running_loop()
        while time.monotonic() < self._end:
            answered: asyncio.Future[None] = loop.create_future()

            def done(_: Wire, answered: asyncio.Future[None] = answered) -> None:
                if not answered.done():
                    answered.set_result(None)

            if wire is None or wire.lost:
                _, wire = await loop.create_connection(lambda: Visitor(lambda _: None), "127.0.0.1", self._what["port"])
            wire._done = done
            k, stream, leaving = self._drawn(rng), rng.random() < STREAMS, rng.random() < LEAVING
            wire.leaving = leaving and stream
            wire.ask(self._asked(k, stream))
            if leaving and not stream:
                await asyncio.sleep(0.005 * rng.random())
                wire.transport.abort()
            try:
                await asyncio.wait_for(answered, LONGEST)
            except TimeoutError:
                self.counts["timed_out"] += 1
                wire.transport.abort()
                continue
            self._judge(wire, k, leaving)

    def _judge(self, wire: Wire, k: int, leaving: bool) -> None:
        counts = self.counts
        if leaving and not wire.whole:
            counts["disconnected"] += 1
        elif not wire.whole or not wire.head.startswith(b"http/1.1 200") or b'"error"' in wire.answer:
            counts["failed"] += 1
            if len(self.troubles) < 10:
                self.troubles.append(wire.answer[:300].decode(errors="replace"))
        else:
            counts["answered"] += 1
            counts["hits"] += b"\r\nx-knapcache: hit" in wire.head
        if any(int(found) != k for found in NONCE.findall(wire.answer)):
            counts["misdelivered"] += 1
        if wire.whole and not NONCE.search(wire.answer) and wire.head.startswith(b"http/1.1 200"):
            counts["misdelivered"] += 1  # whosever it is, it is not its own

    async def tell(self) -> None:
        """What has happened, again and again."""
        while True:
            await asyncio.sleep(self._what["every"])
            print(json.dumps({**self.counts, "troubles": self.troubles}), flush=True)

    async def run(self) -> None:
        """From first to last."""
        telling = asyncio.create_task(self.tell())
        await asyncio.gather(*(self.client(number) for number in range(self._what["clients"])))
        telling.cancel()
        print(json.dumps({**self.counts, "troubles": self.troubles}), flush=True)


if __name__ == "__main__":
    uvloop.run(Crowd(json.load(sys.stdin)).run())
