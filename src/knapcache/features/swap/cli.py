"""`knapcache swap LOG`: simulate a cheaper model on a log with the answers of both models."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from knapcache.cli import options
from knapcache.cli.cache_file import SECRET_NAME, environment_secret, read_secret
from knapcache.cli.output import print_table, print_text, progress_bar
from knapcache.errors import InvalidInput
from knapcache.features.swap.lab.figure import figure_png
from knapcache.features.swap.lab.labels import (
    SelfComparison,
    as_requests,
    is_label_log,
    read_labels,
    self_comparisons,
)
from knapcache.features.swap.lab.read import ScoredRequest, models_of, pairs_of, read_requests
from knapcache.features.swap.lab.replay import SwapOptions, simulate
from knapcache.features.swap.settings import SwapRouteSettings
from knapcache.units import counted

DESCRIPTION = """Simulate traffic in which a cheaper model answers where it is certified, and report what it would have
saved and lost. The log has the score and the cost of the asked model's answer and of each cheaper model's answer to the
same request.

Requests of a frame are drawn from its lines with replacement. The cheaper model answers nothing until labels certify
that its mean loss is at most --loss. A label costs an answer of the cheaper model and a verdict of the judge.

Prints one row per cheaper model: the bill and the cost of labels, both divided by what the asked model alone costs; the
share of requests swapped; the mean loss of score over all requests; and how many runs were certified at the end
although the frame's true loss is above --loss. With one model or --frames, also one row per frame.

LOG has one JSON object per line: {"frame": …, "score": …, "cost": …, "cheap": {MODEL: {"score": …, "cost": …}}}. Scores
are from 0 to 1. A directory means its files, in the order of their names.

Or LOG is swap.sqlite, the labels in the data directory of a proxy. Frames then also have how often the asked model
differs from itself."""
EXAMPLES = r"""examples:
  knapcache swap pairs.jsonl.gz --loss 0.05
  knapcache swap pairs.jsonl --model small --json result.json --plot result.png
  zcat pairs.gz | knapcache swap - --json -
  knapcache swap ~/.local/share/knapcache/swap.sqlite --frames
"""
REQUESTS, REPEATS, JUDGE_PRICE = 20_000, 10, 0.1
LOSS, BUDGET = (SwapRouteSettings.model_fields[name].default for name in ("swap_loss", "swap_budget"))
MODEL_COLUMNS = ("model", "bill", "labels", "swapped", "loss", "wrongly_certified")
FRAME_COLUMNS = (
    "frame", "bill", "labels", "swapped", "loss", "true_loss", "label_count", "certified", "learning", "hopeless",
)  # fmt: skip
TWICE_COLUMNS = ("asked_twice", "floor")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    option = parser.add_argument
    option(
        "log",
        metavar="LOG",
        type=Path,
        help="JSON lines, plain or compressed with gzip or zstd, or a directory of such files; - reads stdin; or the "
        "file swap.sqlite of a proxy",
    )
    option(
        "--loss",
        metavar="SHARE",
        type=float,
        default=LOSS,
        help=f"allowed mean loss of the cheaper model, in units of score (default: {LOSS:g})",
    )
    option(
        "--model",
        metavar="NAME",
        action="append",
        help="a cheaper model of the log; may be given several times (default: all)",
    )
    option(
        "--requests",
        metavar="N",
        type=int,
        default=REQUESTS,
        help=f"requests of a frame in a run (default: {REQUESTS})",
    )
    option("--repeats", metavar="N", type=int, default=REPEATS, help=f"runs of each frame (default: {REPEATS})")
    option("--seed", metavar="N", type=int, default=0, help="seed of all draws (default: 0)")
    option(
        "--judge-price",
        metavar="SHARE",
        type=float,
        default=JUDGE_PRICE,
        help=f"cost of a verdict, as a share of what the asked model's answer costs (default: {JUDGE_PRICE:g})",
    )
    option(
        "--budget",
        metavar="SHARE",
        type=float,
        default=BUDGET,
        help=f"most that labels may cost, as a share of what the asked model costs (default: {BUDGET:g})",
    )
    option("--frames", action="store_true", help="print the frames of each model, also if there are several models")
    option(
        "--secret-file",
        metavar="FILE",
        type=Path,
        help="secret of the proxy that wrote swap.sqlite (default: the file secret beside it, or the environment)",
    )
    options.add_json_file(parser)
    options.add_plot(parser, "the bills and losses")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    # Everything that can be rejected is rejected before the log is read.
    simulation = SwapOptions(
        loss=args.loss,
        budget=args.budget,
        judge_price=args.judge_price,
        requests=args.requests,
        repeats=args.repeats,
        seed=args.seed,
    )
    out = options.ResultOutput(args)
    with progress_bar() as bar:
        task = bar.add_task(f"reading {args.log.name}", total=None)
        itself: dict[str, SelfComparison] = {}
        if is_label_log(args.log):
            labels = read_labels(args.log, secret_of(args.log, args.secret_file))
            requests, itself = as_requests(labels), self_comparisons(labels)
        else:
            report = partial(bar.update, task)
            requests = read_requests(args.log, progress=lambda done, total: report(completed=done, total=total))
        bar.remove_task(task)
        pairs = {model: pairs_of(requests, model) for model in chosen_models(requests, args.model)}
        runs = simulation.repeats * sum(map(len, pairs.values()))
        simulating = bar.add_task(f"simulating {counted(runs, 'run')}", total=runs)
        rows = [
            simulate(model, frames, simulation, progress=lambda: bar.advance(simulating))
            for model, frames in pairs.items()
        ]
    if itself:
        for frame in (frame for row in rows for frame in row["frames"]):
            compared = itself.get(frame["frame"], SelfComparison())
            frame |= {"asked_twice": compared.asked_twice, "floor": compared.floor}
    paths = out.write(rows, lambda: figure_png(rows, simulation.loss))
    if paths is None:
        return
    print_text(facts(requests, simulation))
    print_table([columns(row, MODEL_COLUMNS) for row in rows])
    if args.frames or len(rows) == 1:
        for row in rows:
            names = (*FRAME_COLUMNS, *(TWICE_COLUMNS if itself else ()))
            print_table([columns(frame, names) for frame in row["frames"]], title=row["model"])
    for path in paths:
        print(path)


def secret_of(log: Path, secret_file: Path | None) -> bytes | None:
    """Return the secret with which a proxy has written its labels; None: none is known."""
    beside = log.with_name(SECRET_NAME)
    if secret_file is None and not beside.is_file():
        return environment_secret()
    return read_secret(secret_file or beside)


def chosen_models(requests: Sequence[ScoredRequest], names: Sequence[str] | None) -> list[str]:
    """Return the cheaper models to simulate; raises InvalidInput for one that the log does not have."""
    known = models_of(requests)
    for name in names or ():
        if name not in known:
            raise InvalidInput(f"the log has no cheaper model {name!r}: it has {', '.join(known)}")
    return list(dict.fromkeys(names or known))


def columns(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def facts(requests: Sequence[ScoredRequest], simulation: SwapOptions) -> str:
    """Return a sentence about the log and the simulation."""
    frames = counted(len({request.frame for request in requests}), "frame")
    return (
        f"{counted(len(requests), 'line')} in {frames}. Each frame has {counted(simulation.repeats, 'run')} of "
        f"{counted(simulation.requests, 'request')}; the allowed loss is {simulation.loss:g}. Bills and the cost of "
        "labels are divided by what the asked model alone costs."
    )
