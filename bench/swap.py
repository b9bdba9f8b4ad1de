"""Benchmark of swap: how often its certificate is wrong, how soon it ends, and what a cheaper model saves.

    python bench/swap.py [--out DIR] [--parts LIST] [--pairs FILE] [--quick] [--seed N]
    python bench/swap.py --markdown FILE

Parts, all by default:

    certificate   runs that are certified although the true mean loss is the allowed one, and labels until a right
                  certificate. Labels are −1, 0 or 1; the share that differs from 0 is given
    alarm         audits until serving stops after the mean loss has risen from 0 to 0.1 at an allowed loss of 0.05,
                  and false alarms
    pairs         bill, labels and loss on a log of answer pairs (docs/reference/swap-lab.md): model_pairs.jsonl.gz in
                  $KNAPCACHE_TRACES (default ../shared/data), or --pairs. A missing file is reported and skipped
    joint         cost of a cache with swap. Its policy uses one of two costs of a miss: the price of the asked model,
                  or the price of the model that would answer

Prints tables; writes swap.json to DIR. --quick has fewer runs, whose numbers are not exact enough for the targets.
--markdown prints the tables of docs/reference/swap-lab.md from such a file and runs nothing.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _results import Row, options_for, print_targets, run_or_show, target, write_result

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput
from knapcache.features.swap.certificate import LossCertificate
from knapcache.features.swap.frame import START_LABELS
from knapcache.features.swap.lab.joint import framed_trace, joint_costs
from knapcache.features.swap.lab.read import models_of, pairs_of, read_requests
from knapcache.features.swap.lab.replay import SwapOptions, simulate
from knapcache.features.swap.settings import SwapRouteSettings
from knapcache_experiments.measured import traces_directory

PARTS = ("certificate", "alarm", "pairs", "joint")
PAIRS = "model_pairs.jsonl.gz"
LOSS, BUDGET = 0.05, SwapRouteSettings.model_fields["swap_budget"].default
DIFFERING = 0.2
"""Share of labels that are not ties, where it is not varied."""
NULL_DIFFERING = (0.05, 0.2, 0.5, 1.0)
CERTIFY_LOSSES, MAX_LABELS = (0.05, 0.02), 40_000
MEANS: dict[str, Callable[[float], float]] = {
    "better by 0.05": lambda _: -0.05, "equal": lambda _: 0.0, "worse by half the loss": lambda loss: loss / 2.0,
}  # fmt: skip
"""True mean losses, by the allowed loss."""
DROP_FROM, DROP_TO = 0.0, 0.1
QUIET_MEANS = (0.0, -0.05)
MAX_FALSE, MAX_AUDITS, MIN_SAVED = 0.05, 200, 0.08
MAX_BILL = {"qwen2.5-7b-instruct": 0.87, "llama-3.1-8b-instruct": 0.88}
JUDGE_PRICE = 0.1
RATIOS, POLICIES, DEFAULT_POLICY = (4.5, 20.0), ("adaptive", "gdsf-cost", "static"), "adaptive"
FRAMES, CERTIFIED, CAPACITY = 8, 5, 0.1


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is run."""

    null_runs: int
    null_labels: int
    runs: int
    audits: int
    """Audits in each run that looks for false alarms, and before a drop."""
    requests: int
    repeats: int
    keys: int
    cache_requests: int
    traces: int


FULL = Scale(
    null_runs=1000, null_labels=2000, runs=200, audits=2000, requests=20_000, repeats=10, keys=5000,
    cache_requests=200_000, traces=5,
)  # fmt: skip
QUICK = Scale(
    null_runs=20, null_labels=300, runs=5, audits=200, requests=2000, repeats=2, keys=500, cache_requests=10_000,
    traces=1,
)  # fmt: skip


def labels_of(rng: random.Random, mean: float, differing: float) -> Callable[[], float]:
    """Return a source of labels −1, 0 and 1 with this mean, of which this share is not 0."""
    worse, better = (differing + mean) / 2.0, (differing - mean) / 2.0

    def label() -> float:
        drawn = rng.random()
        return 1.0 if drawn < worse else -1.0 if drawn < worse + better else 0.0

    return label


def false_certificates(differing: float, scale: Scale, seed: int) -> Row:
    """Return the share of runs that are ever certified although the true mean loss is the allowed one."""
    label = labels_of(random.Random(f"{seed} null {differing}"), LOSS, differing)
    certified = 0
    for _ in range(scale.null_runs):
        certificate = LossCertificate(LOSS)
        for _ in range(scale.null_labels):
            certificate.add(label())
            if certificate.state != "learning":
                certified += certificate.state == "certified"
                break
    return {
        "differing": differing, "runs": scale.null_runs, "max_labels": scale.null_labels,
        "certified": certified / scale.null_runs,
    }  # fmt: skip


def labels_to_certify(loss: float, cheaper: str, scale: Scale, seed: int) -> Row:
    """Return how many labels certify a cheaper model. A run that is never certified counts as infinitely many."""
    label = labels_of(random.Random(f"{seed} {loss} {cheaper}"), MEANS[cheaper](loss), DIFFERING)
    counts: list[float] = []
    for _ in range(scale.runs):
        certificate = LossCertificate(loss)
        while certificate.state == "learning" and certificate.labels < MAX_LABELS:
            certificate.add(label())
        counts.append(certificate.labels if certificate.state == "certified" else math.inf)
    return {
        "loss": loss, "cheaper_model": cheaper, "runs": scale.runs, **quantiles(counts),
        "not_certified": counts.count(math.inf) / scale.runs,
    }  # fmt: skip


def certified_at(loss: float, label: Callable[[], float]) -> LossCertificate:
    """Return a certificate that these labels have certified."""
    certificate = LossCertificate(loss)
    while certificate.state != "certified":
        if certificate.state == "hopeless":
            certificate = LossCertificate(loss)
        certificate.add(label())
    return certificate


def audits_to_stop(scale: Scale, seed: int) -> Row:
    """Return how many audits end the certificate after a drop. A run that is not certified at the drop is replaced."""
    rng = random.Random(f"{seed} drop")
    before, after = labels_of(rng, DROP_FROM, DIFFERING), labels_of(rng, DROP_TO, DIFFERING)
    counts: list[int] = []
    while len(counts) < scale.runs:
        certificate = certified_at(LOSS, before)
        for _ in range(scale.audits):
            certificate.add(before())
        if certificate.state != "certified":
            continue
        audits = 0
        while certificate.state == "certified":
            certificate.add(after())
            audits += 1
        counts.append(audits)
    return {"from": DROP_FROM, "to": DROP_TO, "runs": scale.runs, **quantiles(counts)}


def false_alarms(mean: float, scale: Scale, seed: int) -> Row:
    """Return how many of 1,000 audits raise an alarm although the mean loss is below the allowed one."""
    label = labels_of(random.Random(f"{seed} alarm {mean}"), mean, DIFFERING)
    alarms = 0
    for _ in range(scale.runs):
        certificate = certified_at(LOSS, label)
        for _ in range(scale.audits):
            certificate.add(label())
            if certificate.state != "certified":
                alarms += 1
                certificate = certified_at(LOSS, label)
    audits = scale.runs * scale.audits
    return {"mean_loss": mean, "audits": audits, "alarms": alarms, "alarms_per_1000": 1000.0 * alarms / audits}


def quantiles(counts: Sequence[float]) -> Row:
    """Return the median and the 90th percentile. One that is infinite is None."""
    ordered = sorted(counts)
    found = {"median": statistics.median(ordered), "p90": ordered[len(ordered) * 9 // 10]}
    return {name: value if value < math.inf else None for name, value in found.items()}


def measure_pairs(path: Path, scale: Scale, seed: int) -> list[Row]:
    """Return the row of each cheaper model of a log."""
    requests = read_requests(path)
    options = SwapOptions(
        loss=LOSS, budget=BUDGET, judge_price=JUDGE_PRICE, requests=scale.requests, repeats=scale.repeats, seed=seed
    )
    return [simulate(model, pairs_of(requests, model), options) for model in models_of(requests)]


def measure_joint(scale: Scale, seed: int) -> list[Row]:
    """Return the costs of cache and swap by price ratio and policy: means over several traces."""
    rows = []
    for price_ratio in RATIOS:
        traces = [
            framed_trace(
                keys=scale.keys, requests=scale.cache_requests, frames=FRAMES, certified=CERTIFIED,
                price_ratio=price_ratio, seed=seed + number,
            )
            for number in range(scale.traces)
        ]  # fmt: skip
        for policy in POLICIES:
            found = [joint_costs(trace, routed, policy, capacity=CAPACITY, seed=seed) for trace, routed in traces]
            means = {name: statistics.fmean(costs[name] for costs in found) for name in found[0]}
            saved = [1.0 - costs["routed"] / costs["asked"] for costs in found]
            rows.append(
                {"price_ratio": price_ratio, "policy": policy, **means}
                | {"saved": 1.0 - means["routed"] / means["asked"], "least_saved": min(saved)}
            )
    return rows


def check_targets(record: Row) -> list[Row]:
    """Return the measured targets of the parts that ran."""
    targets = []
    for row in record.get("null", ()):
        metric = f"false certificates, {row['differing']:.0%} of labels differ, {row['runs']:,} runs"
        targets.append(target(metric, row["certified"], at_most=MAX_FALSE))
    if drop := record.get("drop"):
        metric = f"audits until a rise of the loss from {drop['from']:g} to {drop['to']:g} stops serving, median"
        targets.append(target(metric, drop["median"], at_most=MAX_AUDITS, worst=drop["p90"]))
    for row in record.get("pairs", ()):
        if (most := MAX_BILL.get(row["model"])) is not None:
            targets.append(target(f"{row['model']}: bill", row["bill"], at_most=most))
        targets.append(target(f"{row['model']}: mean loss of all requests", row["loss"], at_most=0.0))
        beyond = max(frame["beyond_budget"] for frame in row["frames"])
        targets.append(target(f"{row['model']}: labels beyond the budget, worst run", beyond, at_most=START_LABELS))
        wrong = row["wrongly_certified"] / row["runs"]
        targets.append(target(f"{row['model']}: wrongly certified runs", wrong, at_most=MAX_FALSE))
    for row in record.get("joint", ()):
        if row["policy"] == DEFAULT_POLICY:
            metric = f"{row['policy']}, price ratio {row['price_ratio']:g}: saved by the routed price"
            targets.append(target(metric, row["saved"], at_least=MIN_SAVED, worst=row["least_saved"]))
    return targets


def markdown(record: Row) -> str:
    """Return the tables of the documentation."""
    text = ["| metric | measured | target | met |", "|---|---|---|---|"]
    text += [
        f"| {row['metric']} | {row['measured']:.4g} | {row['target']} | {'yes' if row['met'] else 'no'} |"
        for row in record["targets"]
    ]
    if rows := record.get("certify"):
        text += [
            "",
            "| allowed loss | cheaper model | labels, median | 90 % | not certified |",
            "|---|---|---|---|---|",
        ]
        for row in rows:
            counts = " | ".join("–" if row[name] is None else f"{row[name]:,.0f}" for name in ("median", "p90"))
            text.append(f"| {row['loss']:g} | {row['cheaper_model']} | {counts} | {row['not_certified']:.0%} |")
    if rows := record.get("alarms"):
        text += ["", "| mean loss | false alarms per 1,000 audits |", "|---|---|"]
        text += [f"| {row['mean_loss']:g} | {row['alarms_per_1000']:.2g} |" for row in rows]
    if rows := record.get("pairs"):
        text += [
            "",
            "| cheaper model | bill | labels | swapped | loss | wrongly certified |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            numbers = f"{row['bill']:.3f} | {row['labels']:.3f} | {row['swapped']:.3f} | {row['loss']:+.4f}"
            text.append(f"| {row['model']} | {numbers} | {row['wrongly_certified']} of {row['runs']} |")
    if rows := record.get("joint"):
        text += ["", "| price ratio | policy | cache | swap | both, asked price | both, routed price | saved |"]
        text.append("|---" * 7 + "|")
        for row in rows:
            costs = " | ".join(f"{row[name]:.3f}" for name in ("cache", "swap", "asked", "routed"))
            text.append(f"| {row['price_ratio']:g} | {row['policy']} | {costs} | {row['saved']:.1%} |")
    return "\n".join(text)


def run(args: argparse.Namespace) -> None:
    parts = args.parts.split(",") if args.parts else list(PARTS)
    for part in parts:
        if part not in PARTS:
            raise InvalidInput(f"{part!r} is not one of {', '.join(PARTS)}")
    scale = QUICK if args.quick else FULL
    record: dict[str, Any] = {"seed": args.seed, "quick": args.quick}
    if "certificate" in parts:
        record["null"] = [false_certificates(differing, scale, args.seed) for differing in NULL_DIFFERING]
        print_table(record["null"], title=f"false certificates: true mean loss = allowed loss = {LOSS:g}")
        record["certify"] = [
            labels_to_certify(loss, cheaper, scale, args.seed) for loss in CERTIFY_LOSSES for cheaper in MEANS
        ]
        print_table(record["certify"], title=f"labels until a certificate, {DIFFERING:.0%} of labels differ")
    if "alarm" in parts:
        record["drop"] = audits_to_stop(scale, args.seed)
        print_table([record["drop"]], title="audits until a rise of the mean loss stops serving")
        record["alarms"] = [false_alarms(mean, scale, args.seed) for mean in QUIET_MEANS]
        print_table(record["alarms"], title=f"false alarms, allowed loss {LOSS:g}")
    if "pairs" in parts:
        path = args.pairs or traces_directory() / PAIRS
        if path.exists():
            record["pairs"] = measure_pairs(path, scale, args.seed)
            shown = ("model", "bill", "labels", "swapped", "loss", "loss_of_swapped", "wrongly_certified", "runs")
            print_table([{name: row[name] for name in shown} for row in record["pairs"]], title="answer pairs")
        else:
            print(f"pairs: skipped, {path} does not exist; --pairs names another file", file=sys.stderr)
    if "joint" in parts:
        record["joint"] = measure_joint(scale, args.seed)
        print_table(record["joint"], title="cost of cache and swap ÷ cost of the asked model without a cache")
    record["targets"] = check_targets(record)
    print_targets(record["targets"])
    write_result(args.out, "swap", record)


def main() -> None:
    parser = options_for(__doc__, "swap.json")
    option = parser.add_argument
    option("--parts", metavar="LIST", help=f"parts, of {', '.join(PARTS)} (default: all)")
    option("--pairs", type=Path, metavar="FILE", help=f"log of answer pairs (default: {PAIRS} among the public traces)")
    option("--quick", action="store_true", help="few runs, to see that everything works")
    option("--seed", type=int, metavar="N", default=1, help="seed of all draws (default: 1)")
    run_or_show(parser, run, markdown)


if __name__ == "__main__":
    main()
