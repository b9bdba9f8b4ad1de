"""The extra cost of several proxies that share a cache, against one cache whose policy sees every request at once.

The designs have the same capacity in total and decide with the same policy (cluster_designs.py):

    own      every proxy has its own cache of 1/n of the capacity
    hashed   keys are hashed to n deciders, each with 1/n of the capacity
    one      one decider for a store that all proxies read

The one decider, as in the shared store on Valkey or Redis, learns of hits and of paid answers late, counted in requests
of all proxies. With a nursery, undecided answers can be read.

The extra cost is the cost of misses divided by that of the one cache, minus 1: its mean and its largest value over the
cells, which are traces × capacities × repeats. Public traces are read from $KNAPCACHE_TRACES, by default
../shared/data. `--traces FILE` replays your own log, in the formats of `knapcache replay`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.capacity import Capacity
from knapcache.lab.executors import Jobs, sweep
from knapcache.lab.figures import new_figure
from knapcache.lab.grid import require_usable
from knapcache.lab.synthetic import Workload
from knapcache.lab.trace import Trace, trace_stats
from knapcache.lab.traces import read_trace
from knapcache.policy import registry
from knapcache_experiments.cluster_designs import ClusterCell, miss_cost
from knapcache_experiments.experiment import Experiment, ExperimentResult, ExperimentSettings, option
from knapcache_experiments.measured import traces_directory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLIC = ("oasst_zipf_0.6", "oasst_zipf_1.0", "mooncake_conversation", "adaptsize_camp")
SYNTHETIC = "synthetic"
LINEAR_BELOW = 1.0
"""Extra costs up to 1 % have a linear axis, larger ones a logarithmic one."""
DIVIDED: tuple[Literal["own", "hashed"], ...] = ("own", "hashed")
COLOURS = {"own": "#D55E00", "hashed": "#0072B2", "one": "#009E73"}


@dataclass(frozen=True, kw_only=True)
class ClusterSettings(ExperimentSettings):
    """Settings of the comparison."""

    repeats: int = option(1, "draws of the proxy of each request and of the decider of each key")
    traces: tuple[str, ...] = option(PUBLIC, f"names of public traces, {SYNTHETIC}, or files")
    policy: str = option("adaptive", "policy that decides")
    capacities: tuple[str, ...] = option(("1%", "5%", "10%", "30%"), "capacities, in units or % of the working set")
    proxies: tuple[int, ...] = option((3, 10, 50), "numbers of proxies, for own and hashed")
    late: tuple[str, ...] = option(
        ("250:25", "1000:100", "100:100", "1000:0"),
        "requests until the one decider knows of a hit, and of a paid answer, HITS:ANSWERS",
    )
    nursery: float = option(2.0, "share of the capacity for undecided answers, in %")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not registry.find(self.policy).online:
            raise InvalidInput(f"policy {self.policy!r} knows the future or replaces answers for free")
        for text in self.capacities:
            Capacity.parse(text)
        if min(self.proxies) < 1:
            raise InvalidInput(f"proxies must be at least 1, not {min(self.proxies)}")
        if not 0 <= self.nursery < 100:
            raise InvalidInput(f"nursery must be from 0 to less than 100 %, not {self.nursery:g}")
        self.lateness()
        for name in ("traces", "capacities", "proxies", "late"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise InvalidInput(f"{name} must be different, not {', '.join(map(str, getattr(self, name)))}")

    def lateness(self) -> list[tuple[int, int]]:
        """Return the pairs of `late` as numbers."""
        pairs = [text.split(":") for text in self.late]
        for text, pair in zip(self.late, pairs, strict=True):
            if len(pair) != 2 or not all(part.isascii() and part.isdecimal() for part in pair):
                raise InvalidInput(f"late must be pairs of numbers of requests, such as 250:25, not {text!r}")
        return [(int(hits), int(answers)) for hits, answers in pairs]


def open_trace(name: str, seed: int) -> Trace:
    """Return a trace by name: a public one, a synthetic one, or a file."""
    if name == SYNTHETIC:
        _, trace = Workload(queries=300, rounds=5_000, arrivals="zipf:0.8").draw(np.random.default_rng(seed))
        return trace
    path = traces_directory() / f"{name}.csv.gz" if name in PUBLIC else Path(name)
    if name in PUBLIC and not path.exists():
        raise InvalidInput(f"{path} does not exist: set KNAPCACHE_TRACES to the directory of the public traces")
    return read_trace(path)


def cells(settings: ClusterSettings, traces: Mapping[str, Trace]) -> Iterator[ClusterCell]:
    """Yield the simulations: for each trace and capacity the reference, then the designs."""
    for (name, trace), text in itertools.product(traces.items(), settings.capacities):
        units = Capacity.parse(text).units(trace.working_set)
        shared = ClusterCell(
            trace=name,
            policy=settings.policy,
            capacity=units,
            capacity_text=text,
            design="shared",
            seed=settings.seed,
        )
        yield shared
        divided = itertools.product(DIVIDED, settings.proxies, range(settings.repeats))
        for design, count, repeat in divided:
            yield replace(shared, design=design, proxies=count, repeat=repeat)
        for late, nursery in itertools.product(settings.lateness(), dict.fromkeys((0.0, settings.nursery))):
            yield replace(shared, design="one", late=late, nursery=nursery)


def run(settings: ClusterSettings, jobs: Jobs) -> ExperimentResult:
    """Simulate every design on every trace, and compare it with one cache."""
    new_figure()  # raises MissingExtra before the long work
    traces = {name: open_trace(name, settings.seed) for name in settings.traces}
    for trace in traces.values():
        require_usable(trace_stats(trace))
    bare = {name: Trace(trace.keys, trace.sizes, trace.costs, trace.ids) for name, trace in traces.items()}
    todo = list(cells(settings, bare))
    costs = dict(zip(todo, sweep(miss_cost, todo, shared=(bare,), jobs=jobs, title=EXPERIMENT.name), strict=True))
    reference = {(c.trace, c.capacity_text): cost for c, cost in costs.items() if c.design == "shared"}
    groups: dict[tuple[Any, ...], list[tuple[ClusterCell, float]]] = {}
    for cell, cost in costs.items():
        base = reference[cell.trace, cell.capacity_text]
        if not base:
            raise InvalidInput(f"{cell.trace} costs nothing with one cache of {cell.capacity_text}: lower the capacity")
        if cell.design != "shared":
            key = cell.design, cell.proxies, cell.late, cell.nursery
            groups.setdefault(key, []).append((cell, 100.0 * (cost / base - 1.0)))
    rows = [as_row(group) for group in groups.values()]
    return ExperimentResult(rows, draw(rows, [[extra for _, extra in group] for group in groups.values()], settings))


def as_row(group: Sequence[tuple[ClusterCell, float]]) -> dict[str, Any]:
    """Return the row of one design: mean and largest extra cost in % of its cells."""
    first, _ = group[0]
    worst, largest = max(group, key=lambda found: found[1])
    hits_late, answers_late = first.late if first.design == "one" else (None, None)
    return {
        "design": first.design,
        "proxies": first.proxies,
        "hits_late": hits_late,
        "answers_late": answers_late,
        "nursery": first.nursery if first.design == "one" else None,
        "cells": len(group),
        "extra_mean": sum(extra for _, extra in group) / len(group),
        "extra_largest": largest,
        "largest_at": f"{Path(worst.trace).name} {worst.capacity_text}",
    }


def label(row: Mapping[str, Any]) -> str:
    """Return the name of a design in the figure and in the guide."""
    if row["design"] == "own":
        return "every proxy its own cache of 1/n"
    if row["design"] == "hashed":
        return "keys hashed to n deciders"
    nursery = f"nursery {row['nursery']:g} %" if row["nursery"] else "no nursery"
    return f"one decider, hits {row['hits_late']:,} and answers {row['answers_late']:,} late, {nursery}"


def draw(rows: Sequence[Mapping[str, Any]], extras: Sequence[Sequence[float]], settings: ClusterSettings) -> Figure:
    """Return bars of the mean extra cost, with a dot for each cell."""
    figure, (axes,) = new_figure(width=10.0, height=1.2 + 0.3 * len(rows))
    for place, (row, cell_extras) in enumerate(zip(rows, extras, strict=True)):
        axes.barh(place, row["extra_mean"], 0.7, color=COLOURS[row["design"]], alpha=0.75)
        axes.plot(cell_extras, [place] * len(cell_extras), ".", color="#000000", markersize=3, alpha=0.5)
        at = max(row["extra_mean"], row["extra_largest"]), place
        axes.annotate(
            f"mean {row['extra_mean']:+.1f} %", at, (4, 0), textcoords="offset points", va="center", fontsize=8
        )
    names = [label(row) + (f", n = {row['proxies']}" if row["proxies"] else "") for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=LINEAR_BELOW)
    lowest = min(min(cell_extras) for cell_extras in extras)
    axes.set_xlim(min(0.0, 1.5 * lowest), 5.0 * max(max(row["extra_largest"] for row in rows), LINEAR_BELOW))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:+g} %" if x else "0")
    axes.set_xlabel("cost above one cache that learns of every request at once")
    axes.set_title(f"{settings.policy}, {len(settings.traces)} traces at {', '.join(settings.capacities)}")
    return figure


EXPERIMENT = Experiment(
    name="cluster",
    summary="extra cost of designs in which several proxies share a cache",
    text=__doc__ or "",
    settings=ClusterSettings,
    run=run,
    quick={"traces": (SYNTHETIC,), "policy": "lru", "capacities": ("10%", "30%"), "proxies": (3, 10)},
)
