"""Rows of bench/reliability.py for stores that many machines share: on real servers, as processes of this machine."""

from __future__ import annotations

from contextlib import closing

from _reliability_run import Measured, ReliabilityRow, Run
from tests.support.cluster_scenarios import check_counts, kill_primaries_repeatedly
from tests.support.owner_scenarios import replace_owners, wake_stopped_owners
from tests.support.redis_servers import ClusterProcesses, RedisProcess

MAX_FAILED = 0.001
SECONDS_BETWEEN_FAILURES = 10.0


def failing_primaries(run: Run) -> Measured:
    rounds = run.count(12, 2)
    with closing(ClusterProcesses(run.folder, replicas=1)) as cluster:
        counts = kill_primaries_repeatedly(
            run.folder, cluster, rounds, SECONDS_BETWEEN_FAILURES, run.progress("failures", rounds)
        )
    check_counts(counts, failed=MAX_FAILED)
    answered = counts["requests"] - counts["failed"]
    return Measured(
        how_often=f"{counts['kills']} kills and {counts.get('partitions', 0)} partitions, one every "
        f"{SECONDS_BETWEEN_FAILURES:g} s, during {counts['requests']:,} requests of OpenAI's SDK to 3 proxies",
        measured=f"0 wrong answers; {100 * answered / counts['requests']:.2f} % of the requests answered, "
        f"{counts['hits']:,} of them from the cache; in {counts['samples']:,} samples no shard above its limit, and at "
        f"most {counts['most_used_bytes']:,} bytes used of {counts['capacity_bytes']:,}; the slowest request took "
        f"{counts['slowest_seconds']:.1f} s",
        counts=counts,
    )


def stale_owners(run: Run) -> Measured:
    with RedisProcess(run.folder) as server:
        rounds, stopped = run.count(1000, 20), run.count(20, 2)
        replaced = replace_owners(server, rounds, 1, run.progress("owners replaced", rounds))
        woken = wake_stopped_owners(server, stopped, progress=run.progress("owners stopped", stopped))
    return Measured(
        how_often=f"{rounds:,} owners replaced while they write; {stopped} stopped (SIGSTOP), replaced and woken",
        measured=f"{replaced['refused']:,} of {replaced['refused']:,} writes and snapshots with an old epoch refused; "
        f"{woken['fenced']} of {stopped} woken owners fenced; no entry of a new owner replaced",
        counts={**replaced, **woken},
    )


CLUSTER_ROWS = (
    ReliabilityRow(
        name="R10", done="a cluster of 3 primaries and 3 replicas: a primary is killed or cut off every 10 s",
        run=failing_primaries, seconds=200,
        promised="no wrong answer; never more bytes than the limits; at least 99.9 % of the requests answered",
    ),
    ReliabilityRow(
        name="R11", done="two owners of one store: the former one writes on", run=stale_owners, seconds=40,
        promised="an older decision never replaces a newer one",
    ),
)  # fmt: skip
