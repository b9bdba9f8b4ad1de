"""The measurements of bench/cluster.py: proxies on a real engine, measured and broken.

Each measurement is a function of a `LiveRun` and returns rows; `check_targets` compares them with the limits. The
scenarios are those of the tests (tests/support), at full scale.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from _results import Row, target
from _server_processes import LOAD_CORE, UPSTREAM_CORE, ServerProcess, baseline_server, knapcache, litellm
from tests.support.cluster_load import SECRET, proxies_on
from tests.support.cluster_scenarios import freeze_engine, kill_primary_under_load, send_bursts
from tests.support.engine_cuts import cut_repeatedly
from tests.support.owner_scenarios import kill_owners, wake_stopped_owners
from tests.support.redis_servers import ClusterProcesses, RedisProcess, SentinelGroup, require_engine

from knapcache.cli.output import print_table
from knapcache.store.redis.ownership import LEASE_SECONDS
from knapcache.testing import FakeUpstream
from proxy import UPSTREAM_DELAY, HitServer, chat, hit_round, run_load, send_all, zipf_order

SQLITE, NEAR, ENGINE, LITELLM = "SQLite file", "shared, near cache", "shared, engine", "LiteLLM proxy, Redis"
OWNER, READER = "owner", "reader"
PROMPTS = 100


class LiveRun:
    """One run: its scale, a folder, and lines of progress."""

    def __init__(self, folder: Path, scale: float, peers: bool) -> None:
        self.scale, self.peers = scale, peers
        self._folder, self._folders, self._start = folder, 0, time.monotonic()
        self.not_started: list[str] = []

    def count(self, full: int, least: int = 1) -> int:
        """Return a count at this scale."""
        return max(least, round(full * self.scale))

    def new_folder(self) -> Path:
        self._folders += 1
        folder = self._folder / f"part{self._folders}"
        folder.mkdir()
        return folder

    def report(self, text: str) -> None:
        print(f"  {time.monotonic() - self._start:4.0f} s  {text}", file=sys.stderr, flush=True)

    def progress(self, what: str, of: int) -> Callable[[int], None]:
        """Return a function that reports every tenth part."""
        return lambda done: self.report(f"{done} of {of} {what}") if done % max(1, of // 5) == 0 else None


def engine_version() -> str:
    words = subprocess.run([require_engine(), "--version"], capture_output=True, text=True, check=True).stdout.split()
    return f"{words[0].lower()} {next(word[2:] for word in words if word.startswith('v='))}"


def pinned_engine(folder: Path) -> RedisProcess:
    """Start a server on the core of the load generator: the proxy under test has its core to itself."""
    server = RedisProcess(folder)
    if LOAD_CORE >= 0:
        os.sched_setaffinity(server.process.pid, {LOAD_CORE})
    return server


def shared_proxy(folder: Path, upstream: int, url: str) -> ServerProcess:
    return knapcache(folder, upstream, "--store", url, "--set", f"secret={SECRET}")


# Hits and misses.


def measure_hits(run: LiveRun) -> list[Row]:
    """Measure hits of one proxy at a time: on a file, on a shared store from the near cache, and from the server."""
    rows: dict[tuple[str, str], Row] = {}
    order, chats = zipf_order(), [chat(f"prompt-{k}") for k in range(PROMPTS)]
    with ExitStack() as stack:
        folder = run.new_folder()
        server = stack.enter_context(pinned_engine(run.new_folder()))
        upstream = stack.enter_context(baseline_server("upstream", folder / "upstream", 0.0, core=UPSTREAM_CORE))
        starts: dict[tuple[str, str], Callable[[], ServerProcess]] = {
            (SQLITE, OWNER): lambda: knapcache(folder / "sqlite", upstream.port),
            (NEAR, OWNER): lambda: shared_proxy(folder / "near1", upstream.port, f"{server.url}?prefix=near"),
            (NEAR, READER): lambda: shared_proxy(folder / "near2", upstream.port, f"{server.url}?prefix=near"),
            (ENGINE, OWNER): lambda: shared_proxy(folder / "get1", upstream.port, f"{server.url}?prefix=get&near=0"),
            (ENGINE, READER): lambda: shared_proxy(folder / "get2", upstream.port, f"{server.url}?prefix=get&near=0"),
        }
        if run.peers:
            starts[LITELLM, ""] = lambda: litellm(folder / "litellm", upstream.port, server.port)
        subjects = {}
        for name, start in starts.items():
            try:
                process = stack.enter_context(start())
            except RuntimeError as error:
                run.not_started.append(f"{name[0]}: {error}")
                continue
            must = "x-litellm-cache-key: " if name[0] == LITELLM else "x-knapcache: hit"
            subjects[name] = HitServer(process, chats, must)
            send_all(subjects[name], 3)
            rows[name] = {"store": name[0], "role": name[1]}
        rounds = run.count(6)
        for round_ in range(rounds):
            for name, subject in subjects.items():
                measure_round(rows[name], subject, order, 0.5 + 1.5 * min(1.0, run.scale))
            run.report(f"hits: round {round_ + 1} of {rounds}")
    return list(rows.values())


def measure_round(row: Row, subject: HitServer, order: list[int], seconds: float) -> None:
    """Send requests for some seconds, and keep the best of each number: other work can only slow it down."""
    done, cpu = hit_round(subject, order, seconds)
    row["not_hits"] = row.get("not_hits", 0) + done["bad"]
    row["requests_per_second"] = max(row.get("requests_per_second", 0.0), done["requests"] / done["seconds"])
    for name, value in (("cpu_us", cpu), ("p50_us", done["p50_us"]), ("p99_us", done["p99_us"])):
        row[name] = min(row.get(name, np.inf), value)


def measure_misses(run: LiveRun) -> list[Row]:
    """Send new prompts to proxies in turn, one at a time, to an upstream that takes 5 ms."""
    count = run.count(600, 60)
    with ExitStack() as stack:
        folder = run.new_folder()
        server = stack.enter_context(pinned_engine(run.new_folder()))
        upstream = stack.enter_context(
            baseline_server("upstream", folder / "upstream", UPSTREAM_DELAY, core=UPSTREAM_CORE)
        )
        names = [(SQLITE, OWNER), (ENGINE, OWNER), (ENGINE, READER)]
        proxies = [
            stack.enter_context(knapcache(folder / "sqlite", upstream.port)),
            stack.enter_context(shared_proxy(folder / "owner", upstream.port, server.url)),
            stack.enter_context(shared_proxy(folder / "reader", upstream.port, server.url)),
        ]
        for many in (count // 10, count):  # the first part is a warm-up
            requests = [[chat(f"miss-{many}-{k}-{j}") for j in range(len(names))] for k in range(many)]
            before = [proxy.cpu for proxy in proxies]
            calls = int(upstream.get())
            done = run_load(kind="turns", ports=[proxy.port for proxy in proxies], requests=requests, pause=0.002)
            assert done["bad"] == 0
            assert int(upstream.get()) - calls == len(names) * many, "not every request was a miss"
        run.report(f"misses: {count} at each of {len(names)} proxies")
        cpus = [(proxy.cpu - start) / count * 1e6 for proxy, start in zip(proxies, before, strict=True)]
    return [
        {
            "store": store,
            "role": role,
            "p50_ms": latency["p50_us"] / 1e3,
            "p99_ms": latency["p99_us"] / 1e3,
            "above_sqlite_p50_ms": (latency["p50_us"] - done["whole"][0]["p50_us"]) / 1e3,
            "cpu_us": cpu,
        }
        for (store, role), latency, cpu in zip(names, done["whole"], cpus, strict=True)
    ]


# Failures.


def measure_failovers(run: LiveRun) -> list[Row]:
    """Kill a primary under the load of OpenAI's SDK at three proxies: under Sentinel, and in a cluster of 3 + 3."""
    before, after = 1.0 + 3.0 * min(1.0, run.scale), 8.0 + 6.0 * min(1.0, run.scale)
    rows = []
    for name in ("Sentinel", "Cluster, 3 + 3"):
        folder = run.new_folder()
        engine = SentinelGroup(folder, 3) if name == "Sentinel" else ClusterProcesses(folder, replicas=1)
        with closing(engine):
            shards = 4 if name == "Sentinel" else 12
            counts = kill_primary_under_load(folder, engine, seconds_before=before, seconds_after=after, shards=shards)
        rows.append({"engine": name, **counts})
        run.report(f"kill -9 of a primary, {name}: {counts['failed']} of {counts['requests']} requests failed")
    return rows


def measure_takeovers(run: LiveRun) -> list[Row]:
    """Kill owners of a small and of a large store."""
    rows = []
    for entries, rounds in ((1000, run.count(5)), (run.count(100_000, 5000), run.count(3))):
        with RedisProcess(run.new_folder()) as server:
            rows.append(kill_owners(server, entries, rounds))
        run.report(f"owner killed with {entries:,} entries: {max(rows[-1]['decides_seconds']):.1f} s at most")
    return rows


def measure_fencing(run: LiveRun) -> Row:
    rounds = run.count(20, 2)
    with RedisProcess(run.new_folder()) as server:
        return wake_stopped_owners(server, rounds, progress=run.progress("owners stopped and woken", rounds))


def measure_cuts(run: LiveRun) -> Row:
    cuts = run.count(50, 4)
    found = cut_repeatedly(run.new_folder(), cuts, 1, run.progress("cuts", cuts))
    return {**found, "inconsistent_shards": 0}  # the scenario ends at the first one


def measure_bursts(run: LiveRun) -> Row:
    with (
        RedisProcess(run.new_folder()) as server,
        FakeUpstream(delay=0.05) as upstream,
        proxies_on(run.new_folder(), upstream, server.url) as proxies,
    ):
        found = send_bursts([proxy.url for proxy in proxies], upstream, run.count(100, 10))
    run.report(f"{found['bursts']} bursts: {found['bills_per_key']:.2f} bills per key")
    return found


def measure_freeze(run: LiveRun) -> Row:
    with (
        RedisProcess(run.new_folder()) as server,
        FakeUpstream(delay=0.02) as upstream,
        proxies_on(run.new_folder(), upstream, f"{server.url}?near=0", 1) as (proxy,),
    ):
        found = freeze_engine(proxy.url, server, run.count(400, 60))
    run.report(f"engine frozen: {1000 * found['longest_added_seconds']:.0f} ms added at most")
    return found


def measure(scale: float, names: list[str], peers: bool) -> Row:
    """Run the measurements and return their rows and targets."""
    os.environ.setdefault("KNAPCACHE_COMPILE", "1")  # compiled kernels from the first request on
    with tempfile.TemporaryDirectory() as folder:
        run = LiveRun(Path(folder), scale, peers)
        found = {}
        for name in names:
            run.report(name)
            found[name] = MEASUREMENTS[name][0](run)
    record = {"engine": engine_version(), "scale": scale, "cpus": os.cpu_count(), **found}
    return {**record, "not_started": run.not_started, "targets": check_targets(record)}


def check_targets(found: Row) -> list[Row]:
    """Return the targets of what was measured."""
    return [row for name, (_, check) in MEASUREMENTS.items() if name in found for row in check(found[name])]


def check_hits(rows: list[Row]) -> list[Row]:
    cpu: dict[str, list[float]] = {}
    for row in rows:
        cpu.setdefault(row["store"], []).append(row["cpu_us"])
    near = [each - cpu[SQLITE][0] for each in cpu[NEAR]]
    return [
        target("CPU of a near hit above a hit of a SQLite file", max(near), at_most=5, unit="µs"),
        target("CPU of an engine hit in the proxy", max(cpu[ENGINE]), at_most=200, unit="µs"),
    ]


def check_misses(rows: list[Row]) -> list[Row]:
    added = max(row["above_sqlite_p50_ms"] for row in rows)
    return [target("p50 of a miss above that with a SQLite file", added, at_most=2, unit="ms")]


def check_failovers(rows: list[Row]) -> list[Row]:
    targets = []
    for row in rows:
        name = f"kill -9 of a primary, {row['engine']}"
        degraded = max(row["reads_degraded_seconds"], row["writes_degraded_seconds"])
        over = row["over_limit"] + bool(row["inconsistent"])
        targets += [
            target(f"{name}: failed requests of {row['requests']:,}", row["failed"], at_most=0),
            target(f"{name}: wrong answers", row["wrong"], at_most=0),
            target(f"{name}: of {row['samples']:,} samples over the limit", over, at_most=0),
            target(f"{name}: degraded", degraded, at_most=8, unit="s"),
        ]
    return targets


def check_takeovers(rows: list[Row]) -> list[Row]:
    return [
        target(
            f"owner killed, {row['entries']:,} entries: until another decides, at most of {row['rounds']}",
            max(row["decides_seconds"]), at_most=LEASE_SECONDS + 1, unit="s",
        )
        for row in rows
    ]  # fmt: skip


def check_fencing(row: Row) -> list[Row]:
    return [target("owners that were stopped, replaced and woken: fenced", row["fenced"], at_least=row["rounds"])]


def check_cuts(row: Row) -> list[Row]:
    name = f"{row['cuts']} cuts: inconsistent shards of {row['shards']:,}"
    return [target(name, row["inconsistent_shards"], at_most=0)]


def check_bursts(row: Row) -> list[Row]:
    name = f"{row['bursts']} bursts over {row['proxies']} proxies: bills per key"
    return [target(name, row["bills_per_key"], at_most=1, worst=row["most_bills"])]


def check_freeze(row: Row) -> list[Row]:
    longest, second = 1000 * row["longest_added_seconds"], 1000 * row["second_longest_added_seconds"]
    others = 1000 * row["others_added_p50_seconds"]
    return [
        target("engine frozen: latency added to one request", longest, at_most=250, unit="ms"),
        target("engine frozen: latency added to the others, p50", others, at_most=5, unit="ms", worst=second),
    ]


MEASUREMENTS: dict[str, tuple[Callable[[LiveRun], Any], Callable[[Any], list[Row]]]] = {
    "hits": (measure_hits, check_hits),
    "misses": (measure_misses, check_misses),
    "failovers": (measure_failovers, check_failovers),
    "takeovers": (measure_takeovers, check_takeovers),
    "fencing": (measure_fencing, check_fencing),
    "cuts": (measure_cuts, check_cuts),
    "bursts": (measure_bursts, check_bursts),
    "freeze": (measure_freeze, check_freeze),
}
"""By name: how it is measured, and its targets."""


# Tables.


def tables(part: Row) -> dict[str, list[Row]]:
    """Return the tables by their titles, with numbers as text."""
    found: dict[str, list[Row]] = {}
    if "hits" in part:
        found["hits of one proxy on one core, 32 connections"] = [
            {
                "store": row["store"], "role": row["role"], "hits per second": f"{row['requests_per_second']:,.0f}",
                "CPU per hit": f"{row['cpu_us']:.0f} µs", "p50": f"{row['p50_us'] / 1e3:.1f} ms",
                "p99": f"{row['p99_us'] / 1e3:.1f} ms",
            }
            for row in part["hits"]
        ]  # fmt: skip
    if "misses" in part:
        found[f"misses, one at a time, with an upstream that takes {1e3 * UPSTREAM_DELAY:g} ms"] = [
            {
                "store": row["store"], "role": row["role"], "p50": f"{row['p50_ms']:.2f} ms",
                "above SQLite": f"{row['above_sqlite_p50_ms']:+.2f} ms", "CPU per miss": f"{row['cpu_us']:,.0f} µs",
            }
            for row in part["misses"]
        ]  # fmt: skip
    found["targets"] = [targets_row(row) for row in part["targets"]]
    return found


def targets_row(row: Row) -> Row:
    unit = row["target"].split(" ", 2)[2:]
    measured = f"{row['measured']:,.3g}" if isinstance(row["measured"], float) else f"{row['measured']:,}"
    return {
        "metric": row["metric"], "measured": " ".join([measured, *unit]), "target": row["target"],
        "met": "yes" if row["met"] else "no",
    }  # fmt: skip


def show(part: Row) -> None:
    for title, rows in tables(part).items():
        print_table(rows, title=f"{title} ({part['engine']})" if title != "targets" else title)
    if part["not_started"]:
        print(f"not started: {'; '.join(part['not_started'])}")


def markdown(part: Row) -> list[str]:
    text = []
    for title, rows in tables(part).items():
        text += ["", f"{title[0].upper()}{title[1:]}:", "", f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
        text += [f"| {' | '.join(row.values())} |" for row in rows]
    return text[1:]
