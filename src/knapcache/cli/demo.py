"""`knapcache demo`: send sample traffic to a running proxy."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knapcache.cli import options
from knapcache.cli.output import print_table, print_text
from knapcache.errors import InvalidInput
from knapcache.units import counted

if TYPE_CHECKING:
    from knapcache.demo.traffic import TrafficStats

HELP = "send sample traffic to a running proxy"
DESCRIPTION = """Send chat requests to a running proxy: a few prompts often, most of them rarely, with drifting
popularity and half of the responses streamed. Shows the share of answers from the cache, what they saved and the
latency of hits and misses. Savings are in dollars where the proxy knows the price, and otherwise in seconds and tokens.
Ctrl-C stops it and prints the table so far."""


def add_options(parser: argparse.ArgumentParser) -> None:
    from knapcache.demo.traffic import TrafficOptions

    default = TrafficOptions()
    parser.description = DESCRIPTION
    option = parser.add_argument
    options.add_proxy(parser)
    numbers: tuple[tuple[str, str, Any, float, str], ...] = (
        ("--requests", "N", int, default.requests, "number of requests"),
        ("--rate", "R", float, default.rate, "average requests per second"),
        ("--concurrency", "N", int, default.concurrency, "maximum requests in flight"),
        ("--max-tokens", "N", int, default.max_tokens, "maximum tokens per answer"),
        ("--seed", "N", int, default.seed, "random seed"),
    )
    for name, metavar, kind, number, text in numbers:
        option(name, metavar=metavar, type=kind, default=number, help=f"{text} (default: {number:g})")
    option(
        "--api-key", metavar="KEY", action="append", default=[], help="API key to send; repeat it for several tenants"
    )
    option(
        "--model",
        metavar="NAME",
        action="append",
        help=f"model to request; repeat it for several models (default: {default.models[0]})",
    )
    option(
        "--prompts",
        metavar="FILE",
        type=Path,
        help='prompts, most popular first: JSON lines with "prompt", or one prompt per line (default: built-in)',
    )
    options.add_json(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    """Send the traffic and print the result, also after an interrupt."""
    args.ends_by_interrupt = True
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from knapcache.demo.prompts import demo_prompts
    from knapcache.demo.traffic import TrafficOptions, TrafficStats, read_prompts, send_traffic

    chosen = TrafficOptions(
        url=args.url,
        ca=args.ca,
        requests=args.requests,
        rate=args.rate,
        concurrency=args.concurrency,
        models=tuple(args.model or TrafficOptions().models),
        keys=tuple(args.api_key),
        max_tokens=args.max_tokens,
        seed=args.seed,
    )
    prompts = read_prompts(args.prompts) if args.prompts else demo_prompts(args.seed)
    stats, console = TrafficStats(), Console(stderr=True, highlight=False)
    columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.description}"))

    async def send_with_progress() -> None:
        # Started on the event loop: Ctrl-C is handled by the loop as soon as anything is shown.
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(summary(stats), total=chosen.requests)

            def update(now: TrafficStats) -> None:
                progress.update(task, completed=now.finished, description=summary(now))

            await send_traffic(chosen, prompts, stats, update)

    try:
        asyncio.run(send_with_progress())
    finally:
        if stats.finished > stats.outcomes["failed"]:
            print_json(stats) if args.json else print_report(stats)
    if stats.outcomes["failed"] == stats.finished:
        raise InvalidInput(f"every request to {chosen.url} failed: {stats.last_error}")


def summary(stats: TrafficStats) -> str:
    """Return cached answers, savings, median latencies and failures in one line."""
    from knapcache.demo.traffic import CACHED_OUTCOMES

    parts = [f"{stats.cached:,} from the cache"]
    if stats.usd_saved is not None:
        parts.append(f"${stats.usd_saved:.4f} saved{' at simulated prices' if stats.simulated else ''}")
    if stats.seconds_saved or stats.tokens_saved:
        tokens = counted(stats.tokens_saved, "token")
        parts.append(f"{stats.seconds_saved:,.1f} s of model time (of concurrent calls, summed) and {tokens} saved")
    for name, outcomes in (("hit", CACHED_OUTCOMES), ("miss", ("miss",))):
        median = stats.median_latency(*outcomes)
        if median is not None:
            parts.append(f"{name} {1000 * median:,.0f} ms" if median >= 0.1 else f"{name} {1000 * median:.1f} ms")
    if stats.outcomes["failed"]:
        parts.append(f"{stats.outcomes['failed']} failed")
    return ", ".join(parts)


def print_json(stats: TrafficStats) -> None:
    result = {
        "requests": stats.finished,
        "cached": stats.cached,
        "outcomes": [
            {"outcome": name, "requests": count, "median_seconds": stats.median_latency(name)}
            for name, count in stats.outcomes.most_common()
        ],
        "usd_saved": stats.usd_saved,
        "simulated_prices": stats.simulated,
        "seconds_saved": stats.seconds_saved,
        "tokens_saved": stats.tokens_saved,
        "last_error": stats.last_error or None,
    }
    print(json.dumps(result, indent=2))


def print_report(stats: TrafficStats) -> None:
    print_table(stats.rows())
    print_text(f"{counted(stats.finished, 'request')}, {summary(stats)}")
    if stats.last_error:
        print_text(f"last failure: {stats.last_error}")
    if stats.cached and stats.usd_saved is None:
        print_text("no dollars: the model is free, or the proxy knows no price for it (its setting prices can set one)")
    elif stats.simulated:
        print_text("simulated prices: the embedded model is free; its price is made up, in the proxy's setting prices")
    if stats.outcomes["unknown"]:
        print_text(
            "unknown: responses without an x-knapcache header; the server is not a knapcache proxy or hides the header"
        )
