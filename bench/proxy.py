"""Benchmark of the proxy: hit throughput compared with a bare server and other caching servers, and latency of misses.

    python bench/proxy.py [--out DIR] [--quick] [--only NAME,…] [--part hits|misses]

All servers run on loopback, each in a process on one core, with the load generator on another (_server_processes.py,
_load_generator.py). Requests of 1 KB with an API key, for 100 prompts by Zipf's law; answers of 2 KB.

Hits: `knapcache serve` with its defaults and its files, warm. The bare echo, a raw ASGI application on the same uvicorn
that reads the body and returns a fixed answer, parses every request head; knapcache does not parse a head that a
connection repeats. 32 connections in a closed loop, then one connection. Servers run in turns. Of each number the best
round is reported, because other work on the machine can only slow it down; the ratio to the echo is the median of the
rounds, and the worst. CPU time is that of the server process. Every response must state in its head that it is a hit.
LiteLLM's proxy has its in-memory cache, and GPTCache's server its map, queried with /get. nginx has its `proxy_cache`
with the request's body as key; it shows what a server in C reaches.

The load generator is measured with a server that does nothing ("canned"). It must be faster than every server under
test, or it would limit the results. `load_cpu_share` is its share of its core.

Misses: prompts that never repeat, sent directly and through a proxy in turn, one at a time, to an upstream that takes
5 ms; plain and streamed. Reported is the latency added to p50, of the whole answer and of the first byte of a stream.
CPU time is that of the proxy, including storing. Each proxy has its core to itself. Two passthrough proxies without a
cache show the minimum of a Python server plus client.

Prints tables; writes proxy.json and proxy.png to DIR.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _results import Row, options_for, print_targets, target, write_result
from _server_processes import (
    HERE,
    KEY,
    LOAD_CORE,
    SERVER_CORE,
    UPSTREAM_CORE,
    ServerProcess,
    baseline_server,
    gptcache,
    knapcache,
    litellm,
    nginx,
    pin_to,
)

from knapcache.cli.output import print_table
from knapcache.lab.figures import new_figure

OURS, ECHO, NGINX, LITELLM = "knapcache", "bare echo", "nginx proxy_cache", "LiteLLM proxy"
GPTCACHE, CANNED = "GPTCache server", "canned"
DIRECT, PASSTHROUGH, AIOHTTP = "direct", "passthrough only", "passthrough only, aiohttp client"
PROMPTS, REQUEST_BYTES, CONNECTIONS = 100, 1024, 32
UPSTREAM_DELAY = 0.005
CHAT = "/v1/chat/completions"
HEADERS = {"authorization": f"Bearer {KEY}", "user-agent": "bench", "accept": "application/json"}

HttpRequest = tuple[str, dict[str, str], str]
"""Path, headers and body."""


class HitServer(NamedTuple):
    """A warm server and the requests that it answers from its cache."""

    server: ServerProcess
    requests: list[HttpRequest]
    must: str
    """Text in the head of every hit."""


def chat(nonce: str, *, stream: bool = False) -> HttpRequest:
    """Return a chat request of about 1 KB."""
    messages = [{"role": "system", "content": "You are a helpful assistant that answers briefly."}, {"role": "user"}]
    body = {"model": "gpt-4o", "messages": messages, "temperature": 0.7, "max_tokens": 512, "stream": stream}
    messages[1]["content"] = f"{nonce} "
    messages[1]["content"] += "How is a knapsack filled? " * ((REQUEST_BYTES - len(json.dumps(body))) // 26)
    return CHAT, HEADERS, json.dumps(body)


def zipf_order(count: int = 20_000) -> list[int]:
    """Return prompt numbers drawn by Zipf's law."""
    weights = 1.0 / np.arange(1, PROMPTS + 1)
    drawn = np.random.default_rng(0).choice(PROMPTS, count, p=weights / weights.sum())
    return [int(k) for k in drawn]


def run_load(**job: Any) -> dict[str, Any]:
    """Run the load generator in its own process."""
    done = subprocess.run(
        [sys.executable, str(HERE / "_load_generator.py")], input=json.dumps(job), stdout=subprocess.PIPE, text=True,
        check=True,
        preexec_fn=pin_to(LOAD_CORE),
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def hit_round(
    subject: HitServer, order: list[int], seconds: float, connections: int = CONNECTIONS
) -> tuple[dict[str, Any], float]:
    """Send requests in a closed loop; return what the load generator measured, and the server's CPU µs per request."""
    before = subject.server.cpu
    done = run_load(
        kind="closed", port=subject.server.port, requests=subject.requests, order=order, must=subject.must,
        connections=connections, seconds=seconds,
    )  # fmt: skip
    return done, (subject.server.cpu - before) / done["requests"] * 1e6


def send_all(subject: HitServer, times: int = 1) -> None:
    """Send every request, one after the other."""
    requests = [[each] for each in subject.requests] * times
    assert run_load(kind="turns", ports=[subject.server.port], requests=requests, pause=0.0)["bad"] == 0


def start_hit_servers(names: list[str], stack: ExitStack, folder: Path, not_started: list[str]) -> dict[str, HitServer]:
    """Start the servers and fill their caches with every prompt. Servers that fail go to `not_started`."""
    upstream = stack.enter_context(baseline_server("upstream", folder / "upstream", 0.0, core=UPSTREAM_CORE))
    chats = [chat(f"prompt-{k}") for k in range(PROMPTS)]
    prompts = [json.loads(body)["messages"][1]["content"] for _, _, body in chats]
    gets: list[HttpRequest] = [("/get", HEADERS, json.dumps({"prompt": prompt})) for prompt in prompts]
    answer = "x" * 2048
    puts: list[HttpRequest] = [
        ("/put", HEADERS, json.dumps({"prompt": prompt, "answer": answer})) for prompt in prompts
    ]
    starts: dict[str, tuple[Callable[[], ServerProcess], list[HttpRequest], str]] = {
        OURS: (lambda: knapcache(folder / "ours", upstream.port), chats, "x-knapcache: hit"),
        ECHO: (lambda: baseline_server("echo", folder / "echo"), chats, ""),
        CANNED: (lambda: baseline_server("canned", folder / "canned"), chats, ""),
        NGINX: (lambda: nginx(folder / "nginx", upstream.port), chats, "X-Cache: HIT"),
        LITELLM: (lambda: litellm(folder / "litellm", upstream.port), chats, "x-litellm-cache-key: "),
        GPTCACHE: (lambda: gptcache(folder / "gptcache"), gets, ""),
    }
    started = {}
    for name in names:
        start, requests, must = starts[name]
        try:
            server = stack.enter_context(start())
        except RuntimeError as error:
            not_started.append(f"{name}: {error}")
            continue
        started[name] = subject = HitServer(server, requests, must)
        send_all(subject._replace(requests=puts) if name == GPTCACHE else subject, 1 if name == GPTCACHE else 3)
        calls = int(upstream.get())
        if name == GPTCACHE:
            one = run_load(
                kind="closed", port=server.port, requests=gets, order=[0], connections=1, seconds=0.0, must=""
            )
            assert one["bytes"] > len(answer), "GPTCache returned no answer"
        send_all(subject)
        assert int(upstream.get()) == calls, f"{name} called its upstream for a stored answer"
    return started


def measure_hits(servers: dict[str, HitServer], rounds: int, seconds: float) -> list[Row]:
    """Measure the servers in turns, with 32 connections and with one."""
    order = zipf_order()
    best: dict[str, Row] = {name: {"server": name} for name in servers}
    for _ in range(rounds):
        for name, subject in servers.items():
            for connections in (CONNECTIONS, 1):
                done, cpu = hit_round(subject, order, seconds, connections)
                assert done["bad"] == 0, f"{name}: {done['bad']} of {done['requests']} answers are not hits"
                keep_best(best[name], done, cpu, connections)
    return list(best.values())


def keep_best(row: Row, done: dict[str, Any], cpu: float, connections: int) -> None:
    """Update the row with the best value of each number."""
    if connections == 1:
        row["one_connection_p50_us"] = min(row.get("one_connection_p50_us", np.inf), done["p50_us"])
        row["one_connection_p99_us"] = min(row.get("one_connection_p99_us", np.inf), done["p99_us"])
        return
    row.setdefault("rounds", []).append(done["requests"] / done["seconds"])
    if max(row["rounds"]) == row["rounds"][-1]:
        row["requests_per_second"], row["load_cpu_share"] = row["rounds"][-1], done["cpu_share"]
    for name, value in (("cpu_us", cpu), ("p50_us", done["p50_us"]), ("p99_us", done["p99_us"])):
        row[name] = min(row.get(name, np.inf), value)


def measure_misses(names: list[str], folder: Path, count: int, not_started: list[str]) -> list[Row]:
    """Measure the latency that each proxy adds to a miss, in microseconds."""
    with baseline_server("upstream", folder / "slow", UPSTREAM_DELAY, core=UPSTREAM_CORE) as upstream:
        starts: dict[str, Callable[[], ServerProcess]] = {
            OURS: lambda: knapcache(folder / "ours-miss", upstream.port),
            PASSTHROUGH: lambda: baseline_server("own-client", folder / "passthrough", upstream.port),
            AIOHTTP: lambda: baseline_server("aiohttp", folder / "aiohttp", upstream.port),
            LITELLM: lambda: litellm(folder / "litellm-miss", upstream.port),
        }
        rows: list[Row] = []
        for name, start in starts.items():
            if (name in names or name in (PASSTHROUGH, AIOHTTP)) and not any(
                line.startswith(name) for line in not_started
            ):
                with start() as proxy:
                    pair = added_latency(upstream, proxy, name, count)
                rows += pair if not rows else pair[1:]
    return rows


def added_latency(upstream: ServerProcess, proxy: ServerProcess, name: str, count: int) -> list[Row]:
    """Send requests directly and through one proxy in turn; return one row for each."""
    rows: list[Row] = [{"path": DIRECT}, {"path": name}]
    ports = [upstream.port, proxy.port]
    calls = int(upstream.get())
    for kind, stream in (("plain", False), ("stream", True)):
        for requests_sent in (count // 10, count):  # the first part is a warm-up
            requests = [
                [chat(f"{name.replace(' ', '-')}-{kind}-{requests_sent}-{k}", stream=stream)] * 2
                for k in range(requests_sent)
            ]
            before = proxy.cpu
            done = run_load(kind="turns", ports=ports, requests=requests, pause=0.002)
            assert done["bad"] == 0
            calls += 2 * requests_sent
        moment = "first" if stream else "whole"
        for row, latency in zip(rows, done[moment], strict=True):
            row[f"{kind}_p50_us"], row[f"{kind}_p99_us"] = latency["p50_us"], latency["p99_us"]
            row[f"{kind}_added_us"] = latency["p50_us"] - done[moment][0]["p50_us"]
        rows[0][f"{kind}_cpu_us"], rows[1][f"{kind}_cpu_us"] = None, (proxy.cpu - before) / requests_sent * 1e6
    assert int(upstream.get()) == calls, "not every request was a miss"
    return rows


def check_targets(hits: list[Row], misses: list[Row]) -> list[Row]:
    """Return the measured targets."""
    by_server = {row["server"]: row for row in hits}
    targets = []
    if OURS in by_server and ECHO in by_server:
        ratios = [a / b for a, b in zip(by_server[OURS]["rounds"], by_server[ECHO]["rounds"], strict=True)]
        median, worst = float(np.median(ratios)), min(ratios)
        targets.append(target("hits per second / bare echo", median, at_least=0.75, unit="×", worst=worst))
        tail = by_server[OURS]["p99_us"] / by_server[ECHO]["p99_us"]
        targets.append(target("p99 of a hit at full load / bare echo", tail, at_most=2, unit="×"))
    if OURS in by_server and LITELLM in by_server:
        ratio = by_server[OURS]["requests_per_second"] / by_server[LITELLM]["requests_per_second"]
        targets.append(target("hits per second / LiteLLM proxy", ratio, at_least=50, unit="×"))
    if OURS in by_server and NGINX in by_server:
        ratio = by_server[OURS]["requests_per_second"] / by_server[NGINX]["requests_per_second"]
        targets.append(target("hits per second / nginx proxy_cache", ratio, at_least=0.5, unit="×"))
    if CANNED in by_server and ECHO in by_server:
        fastest = max(row["requests_per_second"] for name, row in by_server.items() if name != CANNED)
        ratio = by_server[CANNED]["requests_per_second"] / fastest
        targets.append(target("load generator limit / fastest server", ratio, at_least=1.2, unit="×"))
    for row in misses:
        if row["path"] == OURS:
            added_ms = {kind: row[f"{kind}_added_us"] / 1e3 for kind in ("plain", "stream")}
            targets.append(target("latency added to a miss, p50", added_ms["plain"], at_most=1, unit="ms"))
            metric = "latency added to the first byte of a stream, p50"
            targets.append(target(metric, added_ms["stream"], at_most=1, unit="ms"))
    return targets


def draw(hits: list[Row], misses: list[Row], path: Path) -> None:
    """Plot hits per second and the latency added to a miss."""
    figure, (left, right) = new_figure(2, width=5.4, height=3.2)
    shown = sorted((row for row in hits if row["server"] != CANNED), key=lambda row: row["requests_per_second"])
    names = [row["server"] for row in shown]
    colours = ["#C1121F" if name == OURS else "#999999" for name in names]
    drawn = left.barh(names, [row["requests_per_second"] for row in shown], color=colours)
    left.bar_label(drawn, fmt="{:,.0f}", padding=3)
    left.set_xlim(right=1.2 * shown[-1]["requests_per_second"])
    left.set_xlabel("hits per second, one core, 32 connections")
    through = [row for row in misses if row["path"] != DIRECT]
    y = np.arange(len(through))
    whole, first = (0.2, "plain", "whole answer", "#0072B2"), (-0.2, "stream", "first byte of a stream", "#E69F00")
    for shift, kind, label, colour in (whole, first):
        added_ms = [row[f"{kind}_added_us"] / 1e3 for row in through]
        drawn = right.barh(y + shift, added_ms, 0.4, color=colour, label=label)
        right.bar_label(drawn, fmt="{:.2f}", padding=3)
    right.set_yticks(y, [row["path"] for row in through])
    right.set_xscale("log")
    right.margins(x=0.2)
    right.set_xlabel("latency added to a miss, p50, ms")
    right.legend(loc="lower right")
    figure.savefig(path, dpi=140)


def main() -> None:
    os.environ.setdefault("KNAPCACHE_COMPILE", "1")  # compiled kernels from the first request on
    parser = options_for(__doc__, "proxy.json and proxy.png")
    parser.add_argument("--quick", action="store_true", help="one short round")
    all_servers = [OURS, ECHO, NGINX, CANNED, LITELLM, GPTCACHE]
    parser.add_argument(
        "--only",
        default=",".join(all_servers),
        metavar="NAME,…",
        help="comma-separated names of the servers to measure (default: all)",
    )
    parser.add_argument("--part", choices=("hits", "misses"), help="measure only hits or only misses (default: both)")
    args = parser.parse_args()
    names = [name for name in all_servers if name in args.only.split(",")]
    not_started: list[str] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        hits: list[Row] = []
        misses: list[Row] = []
        if args.part != "misses":
            servers = start_hit_servers(names, stack, Path(folder), not_started)
            hits = measure_hits(servers, 1 if args.quick else 7, 0.5 if args.quick else 3.0)
            stack.close()
        if args.part != "hits":
            misses = measure_misses(names, Path(folder), 100 if args.quick else 1000, not_started)
    targets = check_targets(hits, misses)
    print_table([{k: v for k, v in row.items() if k != "rounds"} for row in hits], title="hits, one core per server")
    print(
        f"not started: {'; '.join(not_started) or 'none'}. Cores: server {SERVER_CORE}, "
        f"load {LOAD_CORE}, upstream {UPSTREAM_CORE}"
    )
    print_table(misses, title=f"misses, with an upstream that takes {UPSTREAM_DELAY * 1e3:g} ms")
    print_targets(targets)
    record = {"cpus": os.cpu_count(), "targets": targets, "rows": hits, "not_started": not_started, "misses": misses}
    write_result(args.out, "proxy", record)
    if args.out and hits and misses:
        draw(hits, misses, args.out / "proxy.png")


if __name__ == "__main__":
    main()
