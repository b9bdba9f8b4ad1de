"""Delay of other requests while the proxy answers large embeddings requests.

    python bench/embeddings.py [--requests 20] [--inputs 2048] [--numbers 1536] [--floats] [--runs 3] [--out DIR]

All requests are sent at once, each with other texts. The proxy sends each of them upstream, stores every vector in a
file, and answers. Meanwhile a client in a process of its own asks for the same stored answer every PERIOD seconds.

    entries/s        vectors that were answered and stored a second
    idle …, burst …  milliseconds of a hit without and with the burst: median, 99th percentile, maximum
    over N ms        stalls of the proxy's event loop of more than N ms, by the CPU time of the proxy: other processes
                     hardly change it

Vectors are base64, as OpenAI's SDK asks for, or with --floats lists of numbers. The proxy has one core; the clients and
the upstream share another one. Prints a table; writes embeddings.json to DIR.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _results import Row, options_for, print_targets, target, write_result
from _server_processes import KEY, LOAD_CORE, UPSTREAM_CORE, ServerProcess, baseline_server, knapcache, pin_to

from knapcache.cli.output import print_table

PERIOD = 0.003
"""Seconds between two hits."""
IDLE_SECONDS = 3.0
LIMITS = {50: "0.05", 100: "0.1", 250: "0.25"}
"""Milliseconds, and the bucket of the proxy's metric."""
MAX_DELAY = 50.0
"""Milliseconds by which the burst may delay a hit."""
CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "a question"}]}
HEADERS = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}


def probe(port: int, ended: Any, found: Any) -> None:
    """Send hits until `ended` is set, and put the milliseconds of each into `found`."""
    pin = pin_to(LOAD_CORE)
    if pin is not None:
        pin()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body, times = json.dumps(CHAT), []
    while not ended.is_set():
        start = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, HEADERS)
        response = connection.getresponse()
        response.read()
        assert response.headers["x-knapcache"] == "hit", response.headers
        times.append(1000 * (time.perf_counter() - start))
        time.sleep(PERIOD)
    found.put(times)


class Probe:
    """Hits during a block. `times` has their milliseconds afterwards."""

    def __init__(self, port: int) -> None:
        self._ended = multiprocessing.Event()
        self._found: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
        self._process = multiprocessing.Process(target=probe, args=(port, self._ended, self._found))
        self.times: list[float] = []

    def __enter__(self) -> Probe:
        self._process.start()
        time.sleep(0.3)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.times = self._found.get()
        self._process.join()


async def send(port: int, body: bytes) -> bytes:
    """Send an embeddings request. Return the head of the response, and read the rest."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    lines = [f"{name}: {value}" for name, value in HEADERS.items()]
    head = ["POST /v1/embeddings HTTP/1.1", "host: 127.0.0.1", "connection: close", f"content-length: {len(body)}"]
    writer.write("\r\n".join([*head, *lines, "", ""]).encode() + body)
    found = await reader.readuntil(b"\r\n\r\n")
    while await reader.read(1 << 20):
        pass
    writer.close()
    return found


async def burst(port: int, bodies: list[bytes]) -> float:
    """Send all requests at once. Return the seconds until the last one is answered."""
    start = time.perf_counter()
    for head in await asyncio.gather(*(send(port, body) for body in bodies)):
        assert b"x-knapcache-hits: 0/" in head, head
    return time.perf_counter() - start


def metric(text: str, name: str) -> float:
    """Return the value of a metric in the text of /metrics."""
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))


def measure(args: argparse.Namespace, upstream: ServerProcess, folder: Path) -> Row:
    texts = [[f"text {k} of request {n}" for k in range(args.inputs)] for n in range(args.requests)]
    sent = [json.dumps({"model": "text-embedding-3-small", "input": each}).encode() for each in texts]
    with knapcache(folder, upstream.port, "--capacity", "4GB") as proxy:
        for _ in range(2):
            proxy.post("/v1/chat/completions", CHAT, {})
        with Probe(proxy.port) as idle:
            time.sleep(IDLE_SECONDS)
        before = proxy.get("/metrics").decode()
        with Probe(proxy.port) as busy:
            seconds = asyncio.run(burst(proxy.port, sent))
            after = proxy.get("/metrics").decode()
    row: Row = {"entries/s": args.requests * args.inputs / seconds, "burst s": seconds}
    for name, times in (("idle", idle.times), ("burst", busy.times)):
        for part, value in zip(("p50", "p99", "max"), np.percentile(times, (50, 99, 100)), strict=True):
            row[f"{name} {part}"] = float(value)
    assert metric(after, "knapcache_entries") == 1 + args.requests * args.inputs, "not all are stored"
    for limit, bound in LIMITS.items():
        row[f"over {limit} ms"] = stalls_over(after, bound) - stalls_over(before, bound)
    return row


def stalls_over(metrics: str, bound: str) -> float:
    """Return the number of stalls of more than `bound` seconds of the proxy's CPU time."""
    name = 'knapcache_loop_stall_seconds_bucket{clock="cpu",le="%s"}'
    return metric(metrics, name % "+Inf") - metric(metrics, name % bound)


def main() -> None:
    parser = options_for(__doc__, "embeddings.json")
    parser.add_argument("--requests", type=int, default=20, help="requests at once")
    parser.add_argument("--inputs", type=int, default=2048, help="texts of a request")
    parser.add_argument("--numbers", type=int, default=1536, help="numbers of a vector")
    parser.add_argument("--floats", action="store_true", help="vectors as lists of numbers")
    parser.add_argument("--runs", type=int, default=3, help="how often the whole measurement is repeated")
    args = parser.parse_args()
    rows, vectors = [], (args.inputs, args.numbers, int(args.floats))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["KNAPCACHE_COMPILE"] = "1"
        with baseline_server("embeddings", folder / "upstream", *vectors, core=UPSTREAM_CORE) as upstream:
            for run in range(args.runs):
                rows.append(measure(args, upstream, folder / f"run{run}"))
                print(rows[-1], file=sys.stderr)
    print_table(rows)
    worst = max(row["burst max"] - row["idle p50"] for row in rows)
    targets = [target("delay of a hit, maximum of all runs", worst, at_most=MAX_DELAY, unit="ms")]
    print_targets(targets)
    settings = {"requests": args.requests, "inputs": args.inputs, "numbers": args.numbers, "floats": args.floats}
    write_result(args.out, "embeddings", {**settings, "rows": rows, "targets": targets})


if __name__ == "__main__":
    main()
