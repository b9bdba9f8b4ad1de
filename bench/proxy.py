"""How fast the proxy is: hits beside a bare server and other caches' servers, and what a miss takes longer through it.

    python bench/proxy.py [--out DIR] [--quick] [--only NAME,…]

All on loopback in one run, each server a process on one core, the load on another (_server_processes.py, _load_generator.py). Requests of
1 KB over 100 prompts by Zipf's law, with a key; answers of 2 KB.

Hits: `knapcache serve` with its defaults and its files, warm; beside it the bare echo, a raw ASGI application on the
same uvicorn that reads the body and gives a fixed answer: what any proxy in Python must take. 32 connections, each asks
again as soon as it is answered; then one connection. Servers by turns in rounds; the best round of each, for other work
on the machine only ever makes it slower. CPU time is the server process's, by the kernel. Every answer must say in its
head that it comes from the cache. LiteLLM's proxy has its cache in memory; GPTCache's server its map, asked by /get.

The load itself is measured against a server that does nothing ("canned"): it must be able to ask for more than it ever
got, or it is the generator that was measured. `load_busy` is its share of its core.

Misses: prompts that never come again, asked directly and through a proxy in turn, one at a time, of an upstream that
takes 5 ms, plain and streamed; what is added to p50, of the whole answer and of the first byte of a stream. CPU time of
these is that of the proxy, storing included. Each proxy has the core to itself meanwhile. Beside ours and LiteLLM's two
that only pass on: what the server and the client of a proxy in Python take by themselves.

Prints tables; writes proxy.json and proxy.png into DIR.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _server_processes import BEHIND, HERE, KEY, LOAD, SERVER, Server, bare, gptcache, knapcache, litellm, pinned
from _targets import Row, bar

from knapcache.cli.output import print_table
from knapcache.sim.figures import new_figure

OURS, ECHO, LITELLM, GPTCACHE, CANNED = "knapcache", "bare echo", "LiteLLM proxy", "GPTCache server", "canned"
DIRECT, PASSING, AIOHTTP = "direct", "passthrough only", "passthrough only, aiohttp client"
PROMPTS, BYTES, CONNECTIONS = 100, 1024, 32
DELAY = 0.005
CHAT = "/v1/chat/completions"
HEADERS = {"authorization": f"Bearer {KEY}", "user-agent": "bench", "accept": "application/json"}

Asked = tuple[str, dict[str, str], str]


class Subject(NamedTuple):
    """A server that gives hits."""

    server: Server
    asked: list[Asked]
    must: str
    """What the head of a hit says."""


def chat(nonce: str, *, stream: bool = False) -> Asked:
    """A chat request of about 1 KB."""
    turns = [{"role": "system", "content": "You are a helpful assistant that answers briefly."}, {"role": "user"}]
    body = {"model": "gpt-4o", "messages": turns, "temperature": 0.7, "max_tokens": 512, "stream": stream}
    turns[1]["content"] = f"{nonce} "
    turns[1]["content"] += "How is a knapsack filled? " * ((BYTES - len(json.dumps(body))) // 26)
    return CHAT, HEADERS, json.dumps(body)


def order(many: int = 20_000) -> list[int]:
    """Zipf's law over the prompts."""
    weights = 1.0 / np.arange(1, PROMPTS + 1)
    drawn = np.random.default_rng(0).choice(PROMPTS, many, p=weights / weights.sum())
    return [int(k) for k in drawn]


def load(**what: Any) -> dict[str, Any]:
    """Run the generator."""
    done = subprocess.run(
        [sys.executable, str(HERE / "_load_generator.py")], input=json.dumps(what), stdout=subprocess.PIPE, text=True, check=True,
        preexec_fn=pinned(LOAD),
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def once(subject: Subject, times: int = 1) -> None:
    """Every prompt, one after the other."""
    requests = [[each] for each in subject.asked] * times
    assert load(kind="turns", ports=[subject.server.port], requests=requests, pause=0.0)["bad"] == 0


def subjects(names: list[str], stack: ExitStack, folder: Path, missing: list[str]) -> dict[str, Subject]:
    """All that can be started, warm: each prompt was asked before."""
    upstream = stack.enter_context(bare("upstream", folder / "upstream", 0.0, core=BEHIND))
    chats = [chat(f"prompt-{k}") for k in range(PROMPTS)]
    prompts = [json.loads(body)["messages"][1]["content"] for _, _, body in chats]
    got: list[Asked] = [("/get", HEADERS, json.dumps({"prompt": prompt})) for prompt in prompts]
    answer = "x" * 2048
    puts: list[Asked] = [("/put", HEADERS, json.dumps({"prompt": prompt, "answer": answer})) for prompt in prompts]
    starts: dict[str, tuple[Callable[[], Server], list[Asked], str]] = {
        OURS: (lambda: knapcache(folder / "ours", upstream.port), chats, "x-knapcache: hit"),
        ECHO: (lambda: bare("echo", folder / "echo"), chats, ""),
        CANNED: (lambda: bare("canned", folder / "canned"), chats, ""),
        LITELLM: (lambda: litellm(folder / "litellm", upstream.port), chats, "x-litellm-cache-key: "),
        GPTCACHE: (lambda: gptcache(folder / "gptcache"), got, ""),
    }
    found = {}
    for name in names:
        start, asked, must = starts[name]
        try:
            server = stack.enter_context(start())
        except RuntimeError as error:
            missing.append(f"{name}: {error}")
            continue
        found[name] = subject = Subject(server, asked, must)
        once(subject._replace(asked=puts) if name == GPTCACHE else subject, 1 if name == GPTCACHE else 3)
        calls = int(upstream.ask())
        if name == GPTCACHE:
            one = load(kind="closed", port=server.port, requests=got, order=[0], connections=1, seconds=0.0, must="")
            assert one["bytes"] > len(answer), "GPTCache has no answer"
        once(subject)
        assert int(upstream.ask()) == calls, f"{name} asked its upstream for what it should have kept"
    return found


def hits(found: dict[str, Subject], rounds: int, seconds: float) -> list[Row]:
    """By turns: at 32 connections, and at one."""
    zipf = order()
    best: dict[str, Row] = {name: {"server": name} for name in found}
    for _ in range(rounds):
        for name, subject in found.items():
            for connections in (CONNECTIONS, 1):
                before = subject.server.cpu
                done = load(
                    kind="closed", port=subject.server.port, requests=subject.asked, order=zipf, must=subject.must,
                    connections=connections, seconds=seconds,
                )  # fmt: skip
                assert done["bad"] == 0, f"{name}: {done['bad']} of {done['requests']} answers are no hits"
                cpu = (subject.server.cpu - before) / done["requests"] * 1e6
                keep(best[name], done, cpu, connections)
    return list(best.values())


def keep(row: Row, done: dict[str, Any], cpu: float, connections: int) -> None:
    """The best of the rounds, number by number."""
    if connections == 1:
        row["one_connection_p50_us"] = min(row.get("one_connection_p50_us", np.inf), done["p50_us"])
        row["one_connection_p99_us"] = min(row.get("one_connection_p99_us", np.inf), done["p99_us"])
        return
    row.setdefault("rounds", []).append(done["requests"] / done["seconds"])
    if max(row["rounds"]) == row["rounds"][-1]:
        row["requests_per_second"], row["load_cpu_share"] = row["rounds"][-1], done["busy"]
    for name, value in (("cpu_us", cpu), ("p50_us", done["p50_us"]), ("p99_us", done["p99_us"])):
        row[name] = min(row.get(name, np.inf), value)


def misses(names: list[str], folder: Path, many: int, missing: list[str]) -> list[Row]:
    """What is added to a call, in microseconds."""
    with bare("upstream", folder / "slow", DELAY, core=BEHIND) as upstream:
        starts: dict[str, Callable[[], Server]] = {
            OURS: lambda: knapcache(folder / "ours-miss", upstream.port),
            PASSING: lambda: bare("ours", folder / "passing", upstream.port),
            AIOHTTP: lambda: bare("aiohttp", folder / "aiohttp", upstream.port),
            LITELLM: lambda: litellm(folder / "litellm-miss", upstream.port),
        }
        rows: list[Row] = []
        for name, start in starts.items():
            if (name in names or name in (PASSING, AIOHTTP)) and not any(line.startswith(name) for line in missing):
                with start() as proxy:
                    pair = added(upstream, proxy, name, many)
                rows += pair if not rows else pair[1:]
    return rows


def added(upstream: Server, proxy: Server, name: str, many: int) -> list[Row]:
    """Directly and through one proxy, in turn."""
    rows: list[Row] = [{"path": DIRECT}, {"path": name}]
    ports = [upstream.port, proxy.port]
    asked = int(upstream.ask())
    for kind, stream in (("plain", False), ("stream", True)):
        for part in (many // 10, many):  # the first part warms up
            requests = [[chat(f"{name.replace(' ', '-')}-{kind}-{part}-{k}", stream=stream)] * 2 for k in range(part)]
            before = proxy.cpu
            done = load(kind="turns", ports=ports, requests=requests, pause=0.002)
            assert done["bad"] == 0
            asked += 2 * part
        figure = "first" if stream else "whole"
        for row, seen in zip(rows, done[figure], strict=True):
            row[f"{kind}_p50_us"], row[f"{kind}_p99_us"] = seen["p50_us"], seen["p99_us"]
            row[f"{kind}_added_us"] = seen["p50_us"] - done[figure][0]["p50_us"]
        rows[0][f"{kind}_cpu_us"], rows[1][f"{kind}_cpu_us"] = None, (proxy.cpu - before) / part * 1e6
    assert int(upstream.ask()) == asked, "not every request was a miss"
    return rows


def bars(rows: list[Row], ways: list[Row]) -> list[Row]:
    """What must hold, as far as it was measured."""
    at = {row["server"]: row for row in rows}
    lines = []
    if OURS in at and ECHO in at:
        ours, echo = at[OURS]["requests_per_second"], at[ECHO]["requests_per_second"]
        worst = min(a / b for a, b in zip(at[OURS]["rounds"], at[ECHO]["rounds"], strict=True))
        lines.append(bar("hits per second / bare echo", ours / echo, 0.5, "×", most=False, worst=worst))
    if OURS in at and LITELLM in at:
        times = at[OURS]["requests_per_second"] / at[LITELLM]["requests_per_second"]
        lines.append(bar("hits per second / LiteLLM proxy", times, 50, "×", most=False))
    if CANNED in at and ECHO in at:
        spare = at[CANNED]["requests_per_second"] / at[ECHO]["requests_per_second"]
        lines.append(bar("load generator limit / bare echo", spare, 1.2, "×", most=False))
    for row in ways:
        if row["path"] == OURS:
            lines.append(bar("latency added to a miss, p50", row["plain_added_us"] / 1e3, 1, "ms", most=True))
            what = "latency added to the first byte of a stream, p50"
            lines.append(bar(what, row["stream_added_us"] / 1e3, 1, "ms", most=True))
    return lines


def draw(rows: list[Row], ways: list[Row], path: Path) -> None:
    """Hits a second; what is added to a miss."""
    figure, (left, right) = new_figure(2, width=5.4, height=3.2)
    shown = sorted((row for row in rows if row["server"] != CANNED), key=lambda row: row["requests_per_second"])
    names = [row["server"] for row in shown]
    colours = ["#C1121F" if name == OURS else "#999999" for name in names]
    drawn = left.barh(names, [row["requests_per_second"] for row in shown], color=colours)
    left.bar_label(drawn, fmt="{:,.0f}", padding=3)
    left.set_xlim(right=1.2 * shown[-1]["requests_per_second"])
    left.set_xlabel("hits a second, one core, 32 connections")
    through = [row for row in ways if row["path"] != DIRECT]
    y = np.arange(len(through))
    whole, first = (0.2, "plain", "whole answer", "#0072B2"), (-0.2, "stream", "first byte of a stream", "#E69F00")
    for shift, kind, label, colour in (whole, first):
        added_ms = [row[f"{kind}_added_us"] / 1e3 for row in through]
        drawn = right.barh(y + shift, added_ms, 0.4, color=colour, label=label)
        right.bar_label(drawn, fmt="{:.2f}", padding=3)
    right.set_yticks(y, [row["path"] for row in through])
    right.set_xscale("log")
    right.margins(x=0.2)
    right.set_xlabel("ms added to a miss, p50")
    right.legend(loc="lower right")
    figure.savefig(path, dpi=140)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write proxy.json and proxy.png here")
    parser.add_argument("--quick", action="store_true", help="one short round")
    everyone = [OURS, ECHO, CANNED, LITELLM, GPTCACHE]
    parser.add_argument("--only", default=",".join(everyone), metavar="NAME,…", help="only these servers")
    args = parser.parse_args()
    names = [name for name in everyone if name in args.only.split(",")]
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        found = subjects(names, stack, Path(place), missing)
        rows = hits(found, 1 if args.quick else 7, 0.5 if args.quick else 3.0)
        stack.close()
        ways = misses(names, Path(place), 100 if args.quick else 1000, missing)
    lines = bars(rows, ways)
    print_table([{k: v for k, v in row.items() if k != "rounds"} for row in rows], title="hits, one core each")
    print(f"left out: {'; '.join(missing) or 'none'}. Cores: server {SERVER}, load {LOAD}, upstream {BEHIND}")
    print_table(ways, title=f"misses, of an upstream that takes {DELAY * 1e3:g} ms")
    print_table(lines, title="targets")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {
            "name": "proxy", "python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count(),
            "targets": lines, "rows": rows, "not_started": missing, "misses": ways,
        }  # fmt: skip
        (args.out / "proxy.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        draw(rows, ways, args.out / "proxy.png")


if __name__ == "__main__":
    main()
