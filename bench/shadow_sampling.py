"""Benchmark of shadows that see one key in eight: the error of what they estimate other policies would have spent.

    python bench/shadow_sampling.py [--out DIR] [--quick]

Each trace is replayed by the live policy, `adaptive`, and exactly by each shadow. Then the keys are divided into eight
samples by a hash, and a shadow with an eighth of the capacity sees one of them. With the costs X of the shadow, O of
the live policy and N without a cache, of the sample (s) and of all requests (a), the estimates of the shadow's cost are

    scaled        8 · X_s
    of_none       N_a · X_s / N_s
    of_own        O_a · X_s / O_s
    difference    O_a + 8 · (X_s − O_s)

The error is (estimate − exact) / N_a, in points: root of the mean square over the eight samples, and the largest one.
Public traces are read from $KNAPCACHE_TRACES, by default ../shared/data; missing ones are reported and skipped. They
are smaller than the caches that sample. Prints a table; writes shadow_sampling.json to DIR.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from _results import Row, options_for, print_targets, target, write_result
from policies import public_traces

from knapcache.cache.key_sample import RATE
from knapcache.cache.shadow import parse_shadow
from knapcache.cli.output import print_table
from knapcache.lab.replay import replay
from knapcache.lab.sampling import hashes, subset
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Floats, Trace

OWN, SHADOWS = "adaptive", ("lru", "gdsf-cost", "adaptive@2x")
PUBLIC = ("adaptsize_camp", "mooncake_conversation")
ESTIMATES = ("scaled", "of_none", "of_own", "difference")
CHOSEN = "difference"
"""The estimate of `cache/shadow.py`."""
MAX_ERROR = 1.0


def workloads(quick: bool) -> Iterator[tuple[str, Trace]]:
    """Yield synthetic traffic with more ids than a cache simulates exactly, and the public traces."""
    size = 20_000 if quick else 1_000_000
    for arrivals in ("zipf:0.7", "zipf:1.0"):
        workload = Workload(
            queries=size, rounds=2 * size, sizes="lognormal:1000", arrivals=arrivals, costs="lognormal", one_hits=0.05
        )
        yield arrivals, workload.draw(np.random.default_rng(1))[1]
    yield from public_traces(PUBLIC)


def paid(name: str, capacity: int, trace: Trace) -> Floats:
    """Return what a shadow or the live policy pays for each request."""
    spec, times = parse_shadow(name)
    policy = spec.build(max(1, int(capacity * times)), trace.ids)
    return np.where(replay(policy, trace).hits, 0.0, trace.costs)


def errors(trace: Trace, capacity: int) -> Iterator[Row]:
    """Yield the errors of each shadow."""
    own = paid(OWN, capacity, trace)
    part = (hashes(trace.keys, 0) * RATE).astype(np.int64)
    samples = [(subset(trace, part == k), own[part == k].sum()) for k in range(RATE)]
    own_cost, none = float(own.sum()), float(trace.costs.sum())
    for name in SHADOWS:
        exact = paid(name, capacity, trace).sum()
        found = np.empty((RATE, len(ESTIMATES)))
        for k, (sample, own_part) in enumerate(samples):
            part_cost = paid(name, capacity // RATE, sample).sum()
            found[k] = (
                RATE * part_cost,
                none * part_cost / sample.costs.sum(),
                own_cost * part_cost / own_part,
                own_cost + RATE * (part_cost - own_part),
            )
        points = 100 * (found - exact) / none
        yield {
            "shadow": name,
            "exact": 100 * exact / none,
            "own": 100 * own_cost / none,
            **{each: float(np.sqrt((points[:, k] ** 2).mean())) for k, each in enumerate(ESTIMATES)},
            **{f"{each}_max": float(np.abs(points[:, k]).max()) for k, each in enumerate(ESTIMATES)},
        }


def main() -> None:
    parser = options_for(__doc__, "shadow_sampling.json")
    parser.add_argument("--quick", action="store_true", help="small synthetic traffic")
    args = parser.parse_args()
    rows = [
        {"trace": name, "capacity": f"{share:.0%}", **row}
        for name, trace in workloads(args.quick)
        for share in (0.02, 0.1)
        for row in errors(trace, int(share * trace.working_set))
    ]
    print_table(rows, title="errors of sampled shadows, in points of the cost without a cache")
    worst = max(row[CHOSEN] for row in rows if row["trace"] not in PUBLIC)
    targets = [target("error of the estimate that is used, synthetic traffic", worst, at_most=MAX_ERROR, unit="points")]
    print_targets(targets)
    write_result(args.out, "shadow_sampling", {"rows": rows, "targets": targets})


if __name__ == "__main__":
    main()
