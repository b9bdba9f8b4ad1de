"""`knapcache warm`: send the requests of a file through a running proxy, to fill its cache."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knapcache.cli import options
from knapcache.cli.output import print_text
from knapcache.cli.route import read_header
from knapcache.errors import InvalidInput
from knapcache.units import counted

if TYPE_CHECKING:
    from knapcache.demo.warming import WarmFile, WarmResult

HELP = "send the requests of a file through a running proxy, to fill its cache"
DESCRIPTION = """Send the requests of a JSONL file through a running proxy, so that its cache has their answers. A line
is the body of a request, a line of OpenAI's or Anthropic's batch API, or one of the proxy's content log. Shows first
what misses would cost; on a terminal it asks before it sends. Answers that the cache has already cost nothing. Ctrl-C
stops it and prints the summary so far."""
CONCURRENCY = 4


def add(commands: Any) -> None:
    parser = commands.add_parser("warm", help=HELP, description=DESCRIPTION)
    option = parser.add_argument
    option("requests", metavar="FILE", type=Path, help="JSONL file with requests")
    options.add_proxy(parser)
    option("--key-env", metavar="NAME", help="environment variable with the API key that is sent")
    option("--header", metavar="NAME:VALUE", action="append", default=[], help="a header that is sent")
    option("--endpoint", metavar="NAME", help="of lines that do not name theirs (default: the one that fits the body)")
    option("--concurrency", metavar="N", type=int, default=CONCURRENCY,
           help=f"maximum requests in flight (default: {CONCURRENCY})")  # fmt: skip
    option("--max-usd", metavar="USD", type=float, help="stop before more dollars than this are spent")
    options.add_config(parser, "settings file of the proxy, for its prices")
    option("--yes", action="store_true", help="do not ask before sending")
    options.add_json(parser, "print the summary as JSON")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.demo.traffic import TrafficOptions
    from knapcache.demo.warming import Warmer, read_requests
    from knapcache.price.meter import USD_PER_SECOND, Meter

    url = TrafficOptions(url=args.url, ca=args.ca).url.rstrip("/")
    if args.concurrency < 1:
        raise InvalidInput(f"--concurrency must be at least 1, not {args.concurrency}")
    if args.max_usd is not None and not (args.max_usd >= 0 and math.isfinite(args.max_usd)):
        raise InvalidInput(f"--max-usd must be a number of dollars, at least 0, not {args.max_usd}")
    key = None
    if args.key_env is not None:
        key = os.environ.get(args.key_env)
        if not key or not key.isascii() or not key.isprintable():
            raise InvalidInput(f"the environment variable {args.key_env} (--key-env) must have an API key")
    meter = Meter("usd")
    if args.config is not None:
        from knapcache.serve.settings.loading import load

        settings = load(args.config, secrets=False).settings
        meter = Meter("usd", settings.prices, settings.fallback_price or USD_PER_SECOND)
    file = read_requests(args.requests, meter, args.endpoint)
    if file.unpriced and args.max_usd is not None:
        raise InvalidInput(
            f"--max-usd cannot hold, because the model {file.unpriced[0]!r} has no known price; "
            "set one in `prices` of the settings and give them with --config, or leave --max-usd out"
        )
    text = estimate_text(file, args.max_usd)
    if sys.stdin.isatty() and sys.stderr.isatty() and not args.yes:
        print(f"{text} Send them? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was sent", file=sys.stderr)
            return
    else:
        print(text, file=sys.stderr)
    headers = dict(map(read_header, args.header))
    result = WarmResultHolder()

    async def warm() -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True, highlight=False)
        columns = (BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=len(file.requests))

            def update(now: WarmResult) -> None:
                progress.update(task, completed=now.finished, description=result_text(now, file))

            warmer = Warmer(url, meter, key=key, headers=headers, max_usd=args.max_usd, ca=args.ca, on_progress=update)
            result.value = warmer.result
            await warmer.run(file.requests, args.concurrency)

    try:
        asyncio.run(warm())
    except KeyboardInterrupt:
        if result.value is not None:
            result.value.stopped = "interrupted"
            report(result.value, file, as_json=args.json)
        raise
    assert result.value is not None
    report(result.value, file, as_json=args.json)
    if result.value.failed and result.value.failed == result.value.finished:
        raise InvalidInput(f"every request to {url} failed: {result.value.last_error}")


class WarmResultHolder:
    """The result, as soon as there is one."""

    value: WarmResult | None = None


def estimate_text(file: WarmFile, max_usd: float | None) -> str:
    """Return what is about to be sent, and what it may cost."""
    also = [f"{counted(file.duplicates, 'repetition is', 'repetitions are')} left out"] if file.duplicates else []
    also += [f"{counted(file.skipped, 'line has', 'lines have')} no request"] if file.skipped else []
    more = ", ".join(also)
    text = f"{counted(len(file.requests), 'request')}{more and f' ({more})'}"
    if file.priced:
        text += f", at most about ${file.usd:,.4f}{simulated(file)} if none is in the cache"
    if file.unpriced:
        text += f"; the price of {', '.join(file.unpriced[:3])}{' …' if len(file.unpriced) > 3 else ''} is unknown"
    if max_usd is not None:
        text += f"; stops before ${max_usd:,.2f}"
    return f"{text}."


def simulated(file: WarmFile) -> str:
    """Return what is said beside dollars: the embedded model is free, so a price of it is made up."""
    from knapcache.demo.traffic import EMBEDDED_MODEL

    return " at simulated prices" if EMBEDDED_MODEL in file.priced else ""


def result_text(result: WarmResult, file: WarmFile) -> str:
    """Return the result in one line, with dollars if the price of a model is known."""
    parts = [counted(result.hits, "hit"), counted(result.misses, "miss", "misses")]
    parts += [f"{result.not_stored:,} not stored"] if result.not_stored else []
    parts += [f"{result.failed:,} failed"] if result.failed else []
    parts += [f"${result.usd:,.4f} spent{simulated(file)}"] if file.priced else []
    return ", ".join(parts)


def report(result: WarmResult, file: WarmFile, *, as_json: bool) -> None:
    """Print the summary."""
    if as_json:
        counts = {"duplicates": file.duplicates, "skipped": file.skipped, "usd_estimated": round(file.usd, 8)}
        print(json.dumps(result.summary() | counts, indent=2))
        return
    print_text(f"{result.finished:,} of {counted(result.requests, 'request')} sent: {result_text(result, file)}.")
    if result.stopped == "max_usd":
        print_text("Stopped by --max-usd: the next request might have passed it.")
    elif result.stopped:
        print_text(f"Stopped: {result.stopped}.")
    if file.unpriced:
        print_text(f"Not counted in dollars, because the price is unknown: {', '.join(file.unpriced)}.")
    if result.failed:
        print_text(f"Last failure: {result.last_error}")
