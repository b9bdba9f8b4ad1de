"""Benchmark of the prefix tier: what its marks save at a provider's prompt cache, and what it costs a request.

    python bench/prefix.py [--out DIR] [--traces LIST] [--random N] [--tariff NAME]
    python bench/prefix.py --markdown FILE

A *cell* is a trace and a provider that honours upgrades, or does not: a mark for the longer time to live on a prefix
that was written for the shorter one. The ratio of a rule is its input bill divided by the bill without marks. `learned`
is the tier; the other rules learn nothing. Open traces are read from $KNAPCACHE_TRACES, by default ../shared/data;
missing ones are reported and skipped. Synthetic traffic and random mixtures (_prefix_traffic.py) guard against a tier
that is tuned to two files.

Measured as well are the two steps of the learner on requests of a trace, and what the proxy's tier adds to a request of
100 KB before it is sent. Times are CPU time of the thread. The target is for the minimum over all requests, because
other programs on the machine slow the rest.

Prints tables; writes prefix.json and prefix.png to DIR. --markdown prints the tables of
docs/reference/prefix-lab.md from such a file and runs nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import _prefix_traffic
import orjson
from _results import Row, options_for, print_targets, run_or_show, target, write_result

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput
from knapcache.features.prefix.lab import read_prefix_trace, replay_rules
from knapcache.features.prefix.lab.replay import LEARNED, default_rules, tariff_of
from knapcache.features.prefix.learner import PrefixLearner
from knapcache.features.prefix.request import PrefixRequest
from knapcache.features.prefix.settings import PrefixMode
from knapcache.features.prefix.tariff import Tariff
from knapcache.features.prefix.tier import PrefixMarker, PrefixTier
from knapcache.lab.figures import new_figure
from knapcache.model import Endpoint
from knapcache.price.input_tokens import InputTokens
from knapcache.threads import DeadlinePool, run_blocking
from knapcache.wire.base import to_json
from knapcache_experiments.measured import traces_directory

AGENTS, CHAT = "agent_sessions", "chat_prefixes"
OPEN = (AGENTS, CHAT)
RANDOM = 20
MAX_AGENTS, MAX_CHAT = 0.165, 0.945
MAX_AGENTS_WITHOUT_UPGRADES, MAX_TO_BEST = 1.01, 1.02
MAX_BODY_MS, BODY_BYTES, BODY_BLOCKS = 0.1, 100_000, 50
TIMED_REQUESTS, ROUNDS, TURNS = 5000, 400, 4
PATH = "before the call, request"


def load(names: Sequence[str], tariff: Tariff) -> Iterator[tuple[str, list[PrefixRequest]]]:
    """Yield the traces whose files exist and the synthetic ones; report the others."""
    for name in names:
        path = traces_directory() / f"{name}.csv.gz"
        if name not in OPEN:
            yield name, _prefix_traffic.draw(name, tariff.minimum_of)
        elif path.exists():
            yield name, read_prefix_trace(path, tariff.minimum_of).requests
        else:
            print(f"{name}: skipped, {path} does not exist; set KNAPCACHE_TRACES to another directory", file=sys.stderr)


def measure(name: str, requests: list[PrefixRequest], tariff: Tariff) -> Iterator[Row]:
    """Yield the cells of a trace: ratios of all rules, with and without upgrades."""
    for upgrades in (True, False) if tariff.long > tariff.short else (True,):
        bills = replay_rules(requests, default_rules(tariff), tariff, upgrades=upgrades)
        ratios = {bill.rule: bill.ratio for bill in bills}
        best = min((rule for rule in ratios if rule != LEARNED), key=ratios.__getitem__)
        yield {
            "trace": name, "upgrades": upgrades, "requests": len(requests), "best_fixed": best,
            "best_fixed_ratio": ratios[best], LEARNED: ratios[LEARNED],
            "learned_by_best": ratios[LEARNED] / ratios[best], "ratios": ratios,
        }  # fmt: skip


def check_targets(cells: Sequence[Row], times: Sequence[Row]) -> list[Row]:
    """Return the measured targets. Those of a trace that was skipped are left out."""
    by_cell = {(cell["trace"], cell["upgrades"]): cell for cell in cells}
    targets = []
    if cell := by_cell.get((AGENTS, True)):
        targets.append(target(f"{AGENTS}, bill ratio", cell[LEARNED], at_most=MAX_AGENTS))
    if (cell := by_cell.get((AGENTS, False))) and "system2-1h" in cell["ratios"]:
        metric = f"{AGENTS} without upgrades, bill / system2-1h"
        ratio = cell[LEARNED] / cell["ratios"]["system2-1h"]
        targets.append(target(metric, ratio, at_most=MAX_AGENTS_WITHOUT_UPGRADES, unit="×"))
    for upgrades, name in ((True, CHAT), (False, f"{CHAT} without upgrades")):
        if cell := by_cell.get((CHAT, upgrades)):
            targets.append(target(f"{name}, bill ratio", cell[LEARNED], at_most=MAX_CHAT))
    for group in ("open", "synthetic", "random"):
        if found := [cell for cell in cells if group_of(cell["trace"]) == group]:
            worst = max(cell["learned_by_best"] for cell in found)
            metric = f"worst of {len(found)} {group} cells, bill / best fixed rule"
            targets.append(target(metric, worst, at_most=MAX_TO_BEST, unit="×"))
    on_path = [row for row in times if row["part"].startswith(PATH)]
    return targets + [target(row["part"], row["min_us"] / 1000, at_most=MAX_BODY_MS, unit="ms") for row in on_path]


def group_of(trace: str) -> str:
    if trace in OPEN:
        return "open"
    return "synthetic" if trace in _prefix_traffic.KINDS else "random"


def time_decisions(requests: Sequence[PrefixRequest], tariff: Tariff) -> list[Row]:
    """Return the time of the learner's two steps, for requests of a trace."""
    learner, place, report = PrefixLearner(tariff), [], []
    for request in requests[:TIMED_REQUESTS]:
        start = time.thread_time_ns()
        placement = learner.place(request)
        middle = time.thread_time_ns()
        learner.report(placement, placement.bill)
        report.append(time.thread_time_ns() - middle)
        place.append(middle - start)
    return [times_of("decision, before the call", place), times_of("report, after the answer", report)]


def time_path(mode: PrefixMode) -> Row:
    """Return what the tier adds to a request of about BODY_BYTES before it is sent. In the mode on it reads the blocks,
    decides, places the marks and serializes the body. Conversations of TURNS requests; texts are fresh, as after
    parsing.
    """
    tier = PrefixTier("bench", "anthropic", mode, b"secret", input_price=lambda *_: None)
    model, text, taken = _prefix_traffic.MODEL, "x" * (BODY_BYTES // BODY_BLOCKS), []
    pool = DeadlinePool("bench", threads=1)
    messages: list[dict[str, Any]] = []
    for number in range(ROUNDS):
        tier.clock = lambda now=60.0 * number: now  # type: ignore[misc]
        if number % TURNS == 0:
            messages = [message(f"{number} {k} {text}", k) for k in range(BODY_BLOCKS - 1)]
        else:
            messages += [message(f"{number} {k}", k) for k in (1, 0)]
        body = orjson.loads(orjson.dumps({"model": model, "system": text, "messages": messages}))
        # A body that counts as short is read on this thread, so that its time is seen.
        size = BODY_BYTES if mode == "observe" else 0
        marker = PrefixMarker(tier, Endpoint.MESSAGES, body, size, model=model, account="account", pool=pool)
        start = time.thread_time_ns()
        marked = run_blocking(marker.mark())
        if marked is not None:
            to_json(marked)
        taken.append(time.thread_time_ns() - start)
        read = threading.Event()
        pool.submit(read.set)  # after the blocks
        read.wait()
        marker.report(InputTokens(BODY_BYTES // 4, 0, 0, 0))
    pool.close()
    return times_of(f"{PATH} of {BODY_BYTES // 1000} KB, {BODY_BLOCKS} blocks, mode {mode}", taken)


def message(text: str, number: int) -> dict[str, Any]:
    return {"role": ("user", "assistant")[number % 2], "content": [{"type": "text", "text": text}]}


def times_of(part: str, nanoseconds: Sequence[int]) -> Row:
    """Return the minimum, the median and the 99th percentile in microseconds."""
    ordered = [each / 1000.0 for each in sorted(nanoseconds)]
    p99 = ordered[len(ordered) * 99 // 100]
    return {"part": part, "min_us": ordered[0], "median_us": statistics.median(ordered), "p99_us": p99}


def markdown(record: Row) -> str:
    """Return the tables of a page."""
    rules = list(record["cells"][0]["ratios"])
    text = [
        f"| trace | upgrades | {' | '.join(f'`{rule}`' for rule in rules)} | `learned` ÷ best fixed rule |",
        "|---" * (len(rules) + 3) + "|",
    ]
    for cell in record["cells"]:
        if group_of(cell["trace"]) != "random":
            ratios = " | ".join(f"{cell['ratios'][rule]:.3f}" for rule in rules)
            shown = "yes" if cell["upgrades"] else "no"
            text.append(f"| {cell['trace']} | {shown} | {ratios} | {cell['learned_by_best']:.3f} |")
    text += ["", "| metric | measured | target | met |", "|---|---|---|---|"]
    for b in record["targets"]:
        text.append(f"| {b['metric']} | {b['measured']:.3f} | {b['target']} | {'yes' if b['met'] else 'no'} |")
    text += ["", "| part | minimum | median | 99 % |", "|---|---|---|---|"]
    for row in record["times"]:
        times = " | ".join(f"{row[name]:.0f} µs" for name in ("min_us", "median_us", "p99_us"))
        text.append(f"| {row['part']} | {times} |")
    return "\n".join(text)


def draw(cells: Sequence[Row], path: Path) -> None:
    """Plot the ratio of every rule on the open traces, and the tier's bill against the best fixed rule in all cells."""
    shown = [cell for cell in cells if cell["trace"] in OPEN]
    figure, panels = new_figure(len(shown) // 2 + 1 if shown else 1, width=5.2, height=4.6)
    colours = {True: "#C1121F", False: "#56B4E9"}
    for axes, name in zip(panels, dict.fromkeys(cell["trace"] for cell in shown), strict=False):
        for cell in (cell for cell in shown if cell["trace"] == name):
            rules = list(cell["ratios"])
            offset = -0.2 if cell["upgrades"] else 0.2
            bars = axes.barh(
                [k + offset for k in range(len(rules))], cell["ratios"].values(), height=0.38,
                color=colours[cell["upgrades"]],
            )  # fmt: skip
            axes.bar_label(bars, [f"{ratio:.3f}" for ratio in cell["ratios"].values()], padding=3, fontsize=8)
            axes.set_yticks(range(len(rules)), rules)
        axes.set_xlim(0.0, 1.15 * max(max(cell["ratios"].values()) for cell in shown if cell["trace"] == name))
        axes.invert_yaxis()
        axes.set_xlabel("bill ÷ bill without marks")
        axes.set_title(name)
    axes = panels[-1]
    for upgrades in (True, False):
        values = sorted(cell["learned_by_best"] for cell in cells if cell["upgrades"] == upgrades)
        label = "upgrades honoured" if upgrades else "upgrades not honoured"
        axes.plot(values, range(1, len(values) + 1), marker="o", markersize=3, color=colours[upgrades], label=label)
    axes.axvline(MAX_TO_BEST, color="#444444", linestyle=":", label=f"target: {MAX_TO_BEST:g}")
    axes.set_xlabel("bill of learned ÷ best fixed rule of the trace")
    axes.set_ylabel("cells")
    axes.set_title("all traces")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=140)


def run(args: argparse.Namespace) -> None:
    allowed = [*OPEN, *_prefix_traffic.KINDS]
    names = args.traces.split(",") if args.traces else allowed
    for name in names:
        if name not in allowed:
            raise InvalidInput(f"{name!r} is not one of {', '.join(allowed)}")
    if args.random < 0:
        raise InvalidInput(f"random must be at least 0, not {args.random}")
    tariff = tariff_of(args.tariff)
    names += [f"random {number}" for number in range(1, args.random + 1)]
    cells: list[Row] = []
    times: list[Row] = []
    for name, requests in load(names, tariff):
        cells += measure(name, requests, tariff)
        times = times or [*time_decisions(requests, tariff), time_path("observe"), time_path("on")]
        print(f"{name}: done", file=sys.stderr)
    if not cells:
        raise InvalidInput("no trace was found")
    targets = check_targets(cells, times)
    if on_open := [cell for cell in cells if cell["trace"] in OPEN]:
        columns = {f"{cell['trace']}{'' if cell['upgrades'] else ', no upgrades'}": cell["ratios"] for cell in on_open}
        rows = [
            {"rule": rule} | {name: ratios[rule] for name, ratios in columns.items()} for rule in default_rules(tariff)
        ]
        print_table(rows, title="open traces: bill / bill without marks")
    rows = [{**cell, "upgrades": "yes" if cell["upgrades"] else "no"} for cell in cells]
    print_table([{name: row[name] for name in row if name != "ratios"} for row in rows], title="all cells")
    print_table(times, title="time of a request")
    print_targets(targets)
    write_result(args.out, "prefix", {"tariff": tariff.name, "targets": targets, "times": times, "cells": cells})
    if args.out:
        draw(cells, args.out / "prefix.png")


def main() -> None:
    parser = options_for(__doc__, "prefix.json and prefix.png")
    option = parser.add_argument
    option("--traces", metavar="LIST", help=f"traces, of {', '.join((*OPEN, *_prefix_traffic.KINDS))} (default: all)")
    option("--random", type=int, metavar="N", default=RANDOM, help=f"number of random mixtures (default: {RANDOM})")
    option("--tariff", metavar="NAME", default="anthropic", help="the provider's tariff (default: anthropic)")
    run_or_show(parser, run, markdown)


if __name__ == "__main__":
    main()
