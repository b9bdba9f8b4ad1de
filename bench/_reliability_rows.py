"""The rows of bench/reliability.py: what is done, what is promised, and how it is measured.

A row's function gets a `Run` and returns a `Measured`. It raises if a promise is broken. The scenarios are those of the
tests (tests/support), at full scale.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from _reliability_cluster import CLUSTER_ROWS
from _reliability_run import Measured, ReliabilityRow, Run, in_loop
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.cache import test_against_a_dict, test_against_a_knapsack
from tests.store import test_against_model
from tests.support import ROOT, cache_kills, store_kills
from tests.support.capacity import fill_with_mixed_sizes
from tests.support.damage import damage_and_use, write_crashed_file
from tests.support.faulty_disk import DISK_FAULTS, slow_disk_under_stores
from tests.support.flood import flood_cache
from tests.support.fuzzing.admin import fuzz_admin
from tests.support.fuzzing.heads import fuzz_heads
from tests.support.fuzzing.keys import fuzz_keys
from tests.support.fuzzing.sse import fuzz_sse
from tests.support.power_cuts import PowerCutVFS, cut_power_repeatedly
from tests.support.proxy_scenarios import (
    FAILING_DISKS,
    MAX_ADDED,
    answers_with_a_failing_disk,
    concurrent_clients,
    latency_with_a_broken_disk,
    many_faults,
    proxy_on,
    tenant,
    tenant_matrix,
)

FULL_SOAK_MINUTES = 10.0


def kills(run: Run) -> Measured:
    cache = run.count(1000, 3)
    counts = cache_kills.kill_repeatedly(run.new_folder("cache"), cache, 1, run.progress("kills of a cache", cache))
    store = run.count(250, 3)
    changes = store_kills.kill_repeatedly(run.new_folder("store"), store, 1, run.progress("kills of a store", store))
    return Measured(
        how_often=f"{cache:,} kills of a process that serves requests from 4 threads, {store:,} of a store's writer",
        measured=f"0 wrong of {counts['answers']:,} answers; 0 lost of {counts['acknowledged']:,} acknowledged entries "
        f"and {changes['acknowledged']:,} acknowledged changes; the totals are the sums of the sizes after every kill; "
        f"at most {counts['disk_bytes']:,} bytes on disk of {cache_kills.SIZE_LIMIT:,}",
        counts={**counts, "store_kills": changes["kills"], "store_changes": changes["acknowledged"]},
    )


def power_cuts(run: Run) -> Measured:
    totals = {mode: {"cuts": 0, "changes": 0, "torn": 0, "lost": 0} for mode in ("full", "normal")}
    cuts, series = run.count(1000, 20), 50
    report = run.progress("power cuts", 2 * cuts)
    for mode, total in totals.items():
        disk = PowerCutVFS()
        for seed in range(-(-cuts // series)):
            many = min(series, cuts - total["cuts"])
            found = cut_power_repeatedly(run.new_folder(f"{mode}-{seed}"), disk, many, 100 + seed, mode)
            for name in total:
                total[name] += found[name]
            report(sum(each["cuts"] for each in totals.values()))
        disk.unregister()
    full, normal = totals["full"], totals["normal"]
    assert full["lost"] == 0
    assert full["torn"] > 0
    return Measured(
        how_often=f'{cuts:,} cuts with synchronous="full", {cuts:,} with "normal"',
        measured=f"0 damaged files; full: 0 lost of {full['changes']:,} changes; normal: a suffix, "
        f"{normal['lost']:,} of {normal['changes']:,} changes in all; "
        f"{full['torn'] + normal['torn']:,} unsynced writes were lost or torn",
        counts=totals,
    )


def bit_flips(run: Run) -> Measured:
    rounds = run.count(10_000, 30)
    file = write_crashed_file(run.new_folder("original"))
    counts = damage_and_use(file, run.folder, rounds, 11, run.progress("damaged files", rounds))
    return Measured(
        how_often=f"{rounds:,} damaged copies of a database and its log: {counts['flipped_bits']:,} flipped bits, "
        f"{counts['truncated']:,} truncated, {counts['swapped']:,} with swapped pages",
        measured=f"0 wrong of {counts['answers']:,} answers, 0 crashes; {counts['intact']:,} copies lost nothing; "
        f"{counts['refused']:,} copies with a damaged header were refused and left as they were",
        counts=counts,
    )


async def failing_disks(run: Run) -> Measured:
    requests, found = run.count(2000, 40), {}
    for kind in FAILING_DISKS:
        with slow_disk_under_stores() as disk, proxy_on(run.new_folder(kind.split()[0])) as (proxy, upstream):
            found[kind] = await answers_with_a_failing_disk(proxy, upstream, disk, kind, requests)
        run.progress("disks", len(FAILING_DISKS))(len(found))
    hits = sum(counts["hits"] for counts in found.values())
    return Measured(
        how_often=f"{requests:,} requests to a running proxy for each of: {', '.join(FAILING_DISKS)}",
        measured=f"{len(found) * requests:,} of {len(found) * requests:,} requests answered, "
        f"{hits:,} of them from what could still be read; stored again after the repair",
        counts=found,
    )


def capacity(run: Run) -> Measured:
    requests = run.count(100_000, 300)
    counts = fill_with_mixed_sizes(run.folder / "answers.db", requests, run.progress("requests", requests))
    return Measured(
        how_often=f"{counts['samples']:,} samples, {counts['milliseconds_between_samples']:.0f} ms apart, during "
        f"{counts['requests']:,} requests for answers of 0 to 200 kB",
        measured=f"files: at most {counts['largest_files_bytes']:,} bytes of {counts['size_limit_bytes']:,}; "
        f"entries: at most {counts['largest_entries_bytes']:,} of {counts['capacity_bytes']:,}",
        counts=counts,
    )


async def one_cold_key(run: Run) -> Measured:
    rounds, clients = run.count(10), run.count(500, 20)
    report = run.progress("rounds", rounds)
    with proxy_on(run.folder) as (proxy, upstream):
        answered = 0
        for k in range(rounds):
            counts = await concurrent_clients(proxy, upstream, clients, killed=5, text=f"cold-{k}-")
            answered += counts["answered"]
            report(k + 1)
    return Measured(
        how_often=f"{rounds:,} rounds of {clients:,} clients; 5 more, the first among them, disconnect early",
        measured=f"1 upstream call in each round; {answered:,} of {rounds * clients:,} clients answered, 0 hung",
        counts={"rounds": rounds, "clients": clients, "answered": answered},
    )


async def upstream_faults(run: Run) -> Measured:
    requests = run.count(4000, 60)
    with proxy_on(run.folder, retries=0) as (proxy, upstream):
        counts = await many_faults(proxy, upstream, requests, 0.2, run.progress("requests", 2 * requests))
    return Measured(
        how_often=f"{requests:,} requests, half of them streams, {counts['faults']:,} of them with a fault",
        measured=f"0 bad entries: {counts['checked']:,} answers to the same requests afterwards are complete, "
        f"{counts['hits']:,} of them hits; 0 connections broken by the proxy",
        counts=counts,
    )


def soak(run: Run) -> Measured:
    minutes, clients = FULL_SOAK_MINUTES * run.scale, run.count(200, 20)
    minutes = max(minutes, 1 / 6)
    command = [sys.executable, str(ROOT / "bench" / "soak.py"), "--out", str(run.folder)]
    done = subprocess.run(
        [*command, "--minutes", str(minutes), "--clients", str(clients)], stdout=subprocess.PIPE, text=True
    )
    record = json.loads((run.folder / "soak.json").read_text(encoding="utf-8"))
    if run.out and run.scale == 1:
        for name in ("soak.json", "soak.png"):
            shutil.copy(run.folder / name, run.out / name)
    missed = [f"{row['metric']}: {row['measured']:.3g}, {row['target']}" for row in record["targets"] if not row["met"]]
    assert not missed, "; ".join(missed)
    assert done.returncode == 0
    growth = [
        f"{row['metric'].split(': ')[1]} {row['measured']:+.1f} %"
        for row in record["targets"]
        if "growth" in row["metric"]
    ]
    stalls = record["stalls"]
    return Measured(
        how_often=f"{minutes:.3g} minutes, {clients:,} clients, {record['answered']:,} answers, "
        f"{record['disconnected']:,} disconnects",
        measured="0 crossed answers, 0 failed, 0 hung; growth in the last two thirds: "
        f"{', '.join(growth) or 'not measured'}; 0 descriptors and 0 tasks left at the end"
        f"; of {stalls['measured']:,} measurements the event loop was late by more than 50 ms in "
        f"{stalls['above_50_ms_wall']:,}, by more than 50 ms of its own CPU time in {stalls['above_50_ms_cpu']:,}",
        counts={name: value for name, value in record.items() if name not in ("curve", "targets")},
    )


async def broken_store(run: Run) -> Measured:
    requests, found = run.count(2000, 60), {}
    for kind in DISK_FAULTS:
        with slow_disk_under_stores() as disk, proxy_on(run.new_folder(kind.replace(" ", "-"))) as (proxy, upstream):
            found[kind] = await latency_with_a_broken_disk(proxy, upstream, disk, kind, requests)
        run.progress("kinds of fault", len(DISK_FAULTS))(len(found))
    added = [f"{kind}: {counts['broken_p99_ms'] - counts['healthy_p99_ms']:+.1f} ms" for kind, counts in found.items()]
    return Measured(
        how_often=f"{requests:,} requests with a healthy disk and {requests:,} with a broken one, for each of: "
        f"{', '.join(DISK_FAULTS)}",
        measured=f"added at the 99th percentile: {', '.join(added)}; 0 errors",
        counts=found,
    )


def tenants(run: Run) -> Measured:
    many = run.count(10, 3)
    with proxy_on(run.folder, tenants=[tenant(k) for k in range(many)]) as (proxy, upstream):
        counts = tenant_matrix(proxy, upstream, many, many)
    return Measured(
        how_often=f"{many} tenants send the same {many} requests three times each",
        measured=f"0 hits on entries of others in {counts['first_misses']:,} first requests; "
        f"{counts['own_hits']:,} of {2 * many * many:,} own hits",
        counts=counts,
    )


def flood(run: Run) -> Measured:
    hot, keys = run.count(300_000, 5000), run.count(1_000_000, 10_000)
    counts = flood_cache(hot, keys, max(50_000 * keys // 1_000_000, 5000), run.progress("requests", hot + keys))
    return Measured(
        how_often=f"{keys:,} keys that occur once among {hot:,} requests for 5,000 hot keys",
        measured=f"hit rate of the hot set {counts['hit_rate_percent']:.1f} %, in the flood "
        f"{counts['hit_rate_in_flood_percent']:.1f} %: {counts['points_lost']:+.2f} points lost; statistics of at most "
        f"{counts['ids']:,} keys; memory {counts['memory_growth_second_half_percent']:+.1f} % in the second half",
        counts=counts,
    )


def state_machines(run: Run) -> Measured:
    examples = run.count(300, 3)
    sequences = steps = compared = 0
    for store_machine in test_against_model.MACHINES:
        options = settings(max_examples=examples, stateful_step_count=80, deadline=None)
        run_state_machine_as_test(store_machine, settings=options)
        sequences, steps = sequences + examples, steps + 80 * examples
        run.progress("sequences", 8 * examples)(sequences)
    for cache_machine in (test_against_a_dict.Machine, test_against_a_dict.OnDisk):
        options = settings(max_examples=examples, stateful_step_count=60, deadline=None)
        run_state_machine_as_test(cache_machine, settings=options)
        sequences, steps = sequences + examples, steps + 60 * examples
        run.progress("sequences", 8 * examples)(sequences)
    for store in test_against_a_knapsack.STORES:
        compared += test_against_a_knapsack.compare_with_a_knapsack(store, examples, 60)
        sequences, steps = sequences + examples, steps + 60 * examples
        run.progress("sequences", 8 * examples)(sequences)
    return Measured(
        how_often=f"{sequences:,} random sequences, up to {steps:,} calls, all checked: 3 stores against a dict, "
        "2 caches against a dict, 3 caches against a dict and an exact knapsack",
        measured=f"0 failures; {compared:,} comparisons of the recommended set with the exact optimum",
        counts={"sequences": sequences, "calls": steps, "optima_compared": compared},
    )


FUZZERS: dict[str, tuple[Callable[..., dict[str, int]], int]] = {
    "keys": (fuzz_keys, 300_000),
    "server-sent events": (fuzz_sse, 450_000),
    "request heads": (fuzz_heads, 200_000),
    "admin API": (fuzz_admin, 50_000),
}
FUZZ_SEED = 20


def fuzz(run: Run) -> Measured:
    found: dict[str, Any] = {}
    for target, (fuzzer, full) in FUZZERS.items():
        cases, start = run.count(full, 300), time.monotonic()
        counts = fuzzer(cases, FUZZ_SEED, run.progress(f"cases of {target}", cases))
        found[target] = {"seed": FUZZ_SEED, **counts, "seconds": round(time.monotonic() - start, 1)}
        print(f"  {run.row}  {target}: {found[target]}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pytest", "tests/proxy/admin/test_openapi.py", "-k", "test_responses_conform"]
    command += ["--hypothesis-profile", "exploring"] if run.scale >= 1 else []
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    operations = next(int(line.split()[0]) for line in done.stdout.splitlines() if " passed" in line)
    examples = 300 if run.scale >= 1 else 4
    found["OpenAPI document"] = {"operations": operations, "most_examples_per_operation": examples}
    total = sum(found[target]["cases"] for target in FUZZERS)
    each = ", ".join(f"{target} {found[target]['cases']:,}" for target in FUZZERS)
    return Measured(
        how_often=f"{total:,} mutated inputs ({each}); "
        f"up to {examples} generated requests to each of {operations} operations",
        measured=f"0 crashes, 0 server errors; equal meaning ⇔ same key for {found['keys']['keyed']:,} bodies with "
        f"{found['keys']['distinct_keys']:,} distinct keys; {found['server-sent events']['events']:,} events as in the "
        f"reference; {found['request heads']['requests']:,} requests as h11 reads them",
        counts=found,
    )


ROWS = (
    ReliabilityRow(
        name="R1", done="kill -9 at random points under load", run=kills, seconds=330,
        promised="no wrong answer; no acknowledged entry lost, except by recorded evictions; totals right; disk within "
        "the capacity",
    ),
    ReliabilityRow(
        name="R2", done="simulated power cuts that drop or tear unsynced writes", run=power_cuts, seconds=60,
        promised='no damaged file; "full" loses nothing, "normal" only the youngest changes',
    ),
    ReliabilityRow(
        name="R3", done="flipped bits, truncated and reordered database and log", run=bit_flips, seconds=160,
        promised="no wrong answer, no crash",
    ),
    ReliabilityRow(
        name="R4", done="a disk that is full, fails or is locked", run=in_loop(failing_disks), seconds=40,
        promised="every request is answered",
    ),
    ReliabilityRow(
        name="R5", done="bytes on disk sampled under mixed sizes", run=capacity, seconds=60,
        promised="never above the capacity",
    ),
    ReliabilityRow(
        name="R6", done="many clients, one cold key, the first client disconnects", run=in_loop(one_cold_key),
        seconds=40, promised="one upstream call, no client hangs",
    ),
    ReliabilityRow(
        name="R7", done="20 % upstream faults: 429, 500, reset, cut, stall, no finish reason, error event, HTML",
        run=in_loop(upstream_faults), seconds=40, promised="no bad entry",
    ),
    ReliabilityRow(
        name="R8", done="soak: half streams, one request in ten aborted", run=soak, seconds=690,
        promised="memory, descriptors and tasks flat (≤ 5 %), none left at the end; no crossed answer",
    ),
    ReliabilityRow(
        name="R9", done="a store that is stopped, black-holed or takes 5 s per read", run=in_loop(broken_store),
        seconds=100,
        promised=f"at most {1000 * MAX_ADDED:.0f} ms more at the 99th percentile once the breaker is open; no error",
    ),
    *CLUSTER_ROWS,
    ReliabilityRow(
        name="R12", done="tenants send the same requests", run=tenants, seconds=5,
        promised="no hit on another tenant's entry, every hit on one's own",
    ),
    ReliabilityRow(
        name="R13", done="a flood of keys that occur once", run=flood, seconds=200,
        promised="the hot set's hit rate falls by at most 1 point; statistics are bounded",
    ),
    ReliabilityRow(
        name="R14", done="random calls against a dict and an exact knapsack, on every store", run=state_machines,
        seconds=240, promised="no difference",
    ),
    ReliabilityRow(
        name="R15", done="fuzzing of keys, server-sent events, request heads and the admin API", run=fuzz, seconds=600,
        promised="no crash; equal meaning ⇔ same key; nothing but what h11 reads; no server error",
    ),
)  # fmt: skip
