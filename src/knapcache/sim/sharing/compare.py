"""Simulations of every design over traces, policies and capacities: one row each, compared with the shared cache."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.sim.capacity import Capacity
from knapcache.sim.executors import Jobs
from knapcache.sim.grid import check_arguments, require_usable
from knapcache.sim.sharing.designs import (
    DESIGNS,
    REFERENCE,
    SharingSettings,
    find_design,
    find_live_policy,
)
from knapcache.sim.sweep import sweep
from knapcache.sim.trace import Trace

Row = dict[str, Any]


@dataclass(frozen=True)
class SharingCell:
    """One simulation."""

    trace: str
    policy: str
    capacity: int
    capacity_text: str
    design: str
    settings: SharingSettings


@dataclass(frozen=True)
class SharingComparison:
    """The designs, policies and capacities to compare. Raises InvalidInput for values that no trace makes valid."""

    policies: Sequence[str]
    capacities: Sequence[str]
    proxies: Sequence[int]
    settings: SharingSettings
    """Settings of all simulations; the number of proxies is taken from `proxies`."""
    designs: Sequence[str] | None = None
    """Names of designs. None: all, without those that a policy does not support."""

    def __post_init__(self) -> None:
        for name in self.policies:
            find_live_policy(name)
        check_arguments(self.policies, self.capacities, self.settings.seed, None)
        for what, items in (("proxies", self.proxies), ("designs", self.designs or DESIGNS)):
            if not items or len(set(items)) < len(items):
                raise InvalidInput(f"{what} must be a list without repetitions, not {', '.join(map(str, items))!r}")
        for count in self.proxies:
            dataclasses.replace(self.settings, proxies=count)
        for design in map(find_design, self.designs or ()):
            if design is REFERENCE:
                raise InvalidInput(f"{design.name!r} is what designs are compared with; it is always simulated")
            for policy in self.policies:
                if design.resizes and not find_live_policy(policy).policy_class.resizable:
                    raise InvalidInput(f"policy {policy!r} cannot change its capacity, as design {design.name!r} does")

    def cells(self, trace_name: str, trace: Trace) -> Iterator[SharingCell]:
        """Yield the simulations of one trace: for each capacity and policy the reference, then the designs."""
        require_usable(trace)
        working_set = trace.working_set
        for text in self.capacities:
            units = Capacity.parse(text).units(working_set)
            if units < max(self.proxies):
                raise InvalidInput(
                    f"{trace_name}: a capacity of {units} cannot be divided among {max(self.proxies)} proxies"
                )
            for policy in self.policies:
                for design in (REFERENCE, *map(find_design, self.designs or DESIGNS)):
                    if design.resizes and not find_live_policy(policy).policy_class.resizable:
                        continue
                    for count in self.proxies if design.by_proxies else self.proxies[:1]:
                        settings = dataclasses.replace(self.settings, proxies=count)
                        yield SharingCell(
                            trace=trace_name,
                            policy=policy,
                            capacity=units,
                            capacity_text=text,
                            design=design.name,
                            settings=settings,
                        )


def compare_designs(traces: Mapping[str, Trace], comparison: SharingComparison, *, jobs: Jobs = None) -> list[Row]:
    """Return one row for each simulation. Equal seeds give equal rows, except for `seconds`."""
    cells = [cell for name, trace in traces.items() for cell in comparison.cells(name, trace)]
    bare = {name: Trace(trace.keys, trace.sizes, trace.costs, trace.ids) for name, trace in traces.items()}
    rows = sweep(run_sharing_cell, cells, shared=(bare,), jobs=jobs, title="simulate")
    reference = {_place(row): row["miss_cost"] for row in rows if row["design"] == REFERENCE.name}
    for row in rows:
        row["extra_cost"] = extra_cost(row["miss_cost"], reference[_place(row)])
    return rows


def _place(row: Row) -> tuple[str, str, str]:
    return row["trace"], row["capacity_text"], row["policy"]


def extra_cost(miss_cost: float, reference: float) -> float | None:
    """Return the share by which a cost exceeds the reference; None if only the reference is 0."""
    if reference:
        return miss_cost / reference - 1.0
    return None if miss_cost else 0.0


def run_sharing_cell(traces: Mapping[str, Trace], cell: SharingCell) -> Row:
    """Run one simulation and return its row, without the comparison."""
    trace, design, settings = traces[cell.trace], find_design(cell.design), cell.settings
    start = time.perf_counter()
    outcome = design.simulate(find_live_policy(cell.policy), cell.capacity, trace, settings)
    seconds = time.perf_counter() - start
    miss_cost, total = float(trace.costs[~outcome.hits].sum()), trace.total_cost
    return {
        "trace": cell.trace,
        "capacity": cell.capacity,
        "capacity_text": cell.capacity_text,
        "policy": cell.policy,
        "design": cell.design,
        "proxies": settings.proxies if design.by_proxies else None,
        "hits_late": settings.hits_late if design.is_late else None,
        "settles_late": settings.settles_late if design.is_late else None,
        "nursery": float(settings.nursery) if design.has_nursery else None,
        "requests": len(trace),
        "hits": int(outcome.hits.sum()),
        "miss_cost": miss_cost,
        "total_cost": total,
        "cost_ratio": miss_cost / total if total else None,
        "extra_cost": None,
        "peak_size": outcome.peak,
        "seconds": seconds,
    }


def mean_extra_costs(rows: Sequence[Row]) -> list[Row]:
    """Return mean and largest extra cost over traces and capacities, for each policy, design and number of proxies."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["design"] != REFERENCE.name and row["extra_cost"] is not None:
            groups.setdefault((row["policy"], row["design"], row["proxies"]), []).append(row)
    found = []
    for (policy, design, proxies), group in groups.items():
        extra = [row["extra_cost"] for row in group]
        found.append(
            {
                "policy": policy,
                "design": design,
                "proxies": proxies,
                "cells": len(extra),
                "mean_extra_cost": sum(extra) / len(extra),
                "largest_extra_cost": max(extra),
            }
        )
    return found
