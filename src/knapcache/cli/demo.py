"""`knapcache demo`: traffic for a proxy, so that its page comes alive."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from knapcache.demo.traffic import TrafficStats

HELP = "send traffic to a running proxy, and show what it saves"
TEXT = """Ask a running proxy as its users would: popular questions often, others rarely, in a popularity that drifts,
half of it streamed. Shows answers from the cache, dollars saved, and how long answers take with the cache and without.
Ctrl-C ends it, with the table so far."""


def add(commands: Any, *, with_options: bool) -> None:
    """Put the command into the parser; its options, whose defaults are those of the traffic, only if it is to run."""
    if not with_options:
        commands.add_parser("demo", help=HELP)
        return
    from knapcache.demo.traffic import TrafficOptions

    usual = TrafficOptions()
    parser = commands.add_parser("demo", help=HELP, description=TEXT)
    option = parser.add_argument
    option("--url", default=usual.url, help=f"the proxy (default: {usual.url})")
    option("--requests", metavar="N", type=int, default=usual.requests, help=f"to send (default: {usual.requests})")
    option(
        "--rate",
        metavar="R",
        type=float,
        default=usual.rate,
        help=f"requests a second, on average (default: {usual.rate:g})",
    )
    option(
        "--clients",
        metavar="N",
        type=int,
        default=usual.clients,
        help=f"requests open at a time (default: {usual.clients})",
    )
    option("--key", metavar="KEY", action="append", default=[], help="API key to ask with; several: as several callers")
    option(
        "--model",
        metavar="NAME",
        action="append",
        help=f"model to ask for; several may be given (default: {usual.models[0]})",
    )
    option(
        "--max-tokens",
        metavar="N",
        type=int,
        default=usual.max_tokens,
        help=f"of an answer (default: {usual.max_tokens})",
    )
    option(
        "--prompts", metavar="FILE", type=Path, help='JSON lines with "prompt", or a prompt a line; popular ones first'
    )
    option("--seed", metavar="N", type=int, default=usual.seed, help=f"of what is asked for (default: {usual.seed})")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    """Ask, show, sum up; the sum also where it was interrupted."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from knapcache.demo.prompts import demo_prompts
    from knapcache.demo.traffic import TrafficOptions, TrafficStats, read_prompts, send_traffic

    models = tuple(args.model or TrafficOptions().models)
    amounts = (args.url, args.requests, args.rate, args.clients, models, tuple(args.key), args.max_tokens, args.seed)
    load = TrafficOptions(*amounts)
    prompts = read_prompts(args.prompts) if args.prompts else demo_prompts(args.seed)
    tally, console = TrafficStats(), Console(stderr=True, highlight=False)
    columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.description}"))
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(line(tally), total=load.requests)
            asyncio.run(
                send_traffic(
                    load, prompts, tally, lambda now: progress.update(task, completed=now.done, description=line(now))
                )
            )
    finally:
        if tally.done > tally.outcome["failed"]:
            report(tally)
    if tally.outcome["failed"] == tally.done:
        raise InvalidInput(f"no answer from {load.url}: {tally.trouble}")


def line(tally: TrafficStats) -> str:
    """All of it in one line, while it goes on."""
    from knapcache.demo.traffic import SAVED

    parts = [f"{tally.saved} from the cache"]
    if tally.usd is not None:
        parts.append(f"{tally.usd:.4f} $ saved")
    for name, middle in (("hit", tally.median(*SAVED)), ("miss", tally.median("miss"))):
        if middle is not None:
            parts.append(f"{name} {1000 * middle:,.0f} ms" if middle >= 0.1 else f"{name} {1000 * middle:.1f} ms")
    if tally.outcome["failed"]:
        parts.append(f"{tally.outcome['failed']} failed")
    return ", ".join(parts)


def report(tally: TrafficStats) -> None:
    """The table at the end, and what it means."""
    print_table(tally.rows())
    print(f"{tally.done:,} requests, {line(tally)}")
    if tally.trouble:
        print(f"last failure: {tally.trouble}")
    if tally.saved and tally.usd is None:
        print("no dollars: the proxy knows no price of this model, and weighs its seconds instead")
    if tally.outcome["unknown"]:
        print("answers without an x-knapcache header: the server is no knapcache proxy, or another one hides it")
