"""`knapcache log search|export|purge`: the content log of a proxy."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knapcache.cli import options
from knapcache.cli.output import output_width, print_text, printable, printable_json, progress_bar, write_lines
from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.units import ALLOWED_AGES, counted, parse_age

if TYPE_CHECKING:
    from knapcache.features.content_log.file import ContentFile, LogFilter

DESCRIPTION = """The content log has requests and answers with their text, if the setting content_log is on. These
commands use its file in the data directory, also while the proxy runs."""
SEARCH = """Print the newest lines that meet every condition. TEXT are words that must all occur in the system prompt,
the last user text or the answer. "several words" in double quotes are one phrase; word* is the beginning of a word."""
EXPORT = """Write the lines that meet every condition, oldest first. jsonl: what `knapcache replay` and `knapcache plan`
read with --key-fields key --size size --cost cost. evals: samples of OpenAI's evals, each different request once.
parquet: a table for `replay` and `plan`, which needs knapcache[lab]. Lines that a format cannot use are left out and
counted."""
PURGE = """Delete the lines that meet every condition, and overwrite their text in the file. On a terminal you are asked
to confirm. The entries of the cache stay: `knapcache purge` removes those, and no lines of the log."""
EXAMPLES = r"""examples:
  knapcache log search refund policy --outcome miss --since 2d
  knapcache log export --output log.jsonl
  knapcache plan log.jsonl --key-fields key --size size --cost usd
  knapcache log export --format evals --model 'gpt-4o*' > samples.jsonl
  knapcache log purge --tenant acme --before 2026-01-31
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    search = actions.add_parser("search", help="print lines", description=SEARCH)
    search.add_argument("text", metavar="TEXT", nargs="*", help="words that must all occur")
    add_filters(search, "since", "until")
    search.add_argument("--limit", metavar="N", type=int, default=20, help="maximum number of lines (default: 20)")
    search.add_argument("--full", action="store_true", help="print whole requests and answers")
    options.add_json(search, "print JSON lines with whole requests and answers")
    search.set_defaults(execute=execute_search)

    export = actions.add_parser("export", help="write lines to a file", description=EXPORT)
    export.add_argument("--format", choices=("jsonl", "evals", "parquet"), default="jsonl", help="(default: jsonl)")
    options.add_output(export, "file to write (default: standard output; not for parquet)")
    export.add_argument("--text", metavar="TEXT", default="", help="words that must all occur, as in search")
    export.add_argument("--all", action="store_true", help="jsonl and parquet: also lines that a replay cannot use")
    add_filters(export, "since", "until")
    export.set_defaults(execute=execute_export)

    purge = actions.add_parser("purge", help="delete lines", description=PURGE)
    purge.add_argument("--text", metavar="TEXT", default="", help="words that must all occur, as in search")
    add_filters(purge, "before")
    purge.add_argument("--all", action="store_true", help="all lines")
    purge.add_argument("--dry-run", action="store_true", help="print how many lines would be deleted, and delete none")
    purge.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    purge.set_defaults(execute=execute_purge)


def add_filters(parser: argparse.ArgumentParser, *times: str) -> None:
    """Add the place of the log, and the conditions that all actions share."""
    option = parser.add_argument
    option("--path", metavar="DIR", type=Path, help="data directory (default: that of the settings)")
    options.add_config(parser)
    option("--model", metavar="PATTERN", default="", help="lines of these models, such as 'gpt-4o*'")
    option("--tenant", metavar="NAME", help="lines of this tenant")
    option("--outcome", metavar="NAME", default="", help="lines with this outcome, such as hit or miss")
    for name in times:
        option(
            f"--{name}", metavar="TIME", type=moment, help=f"lines {name} this time: 2026-01-31T12:00, or 7d for ago"
        )


def moment(text: str) -> float:
    """Return the Unix time of a date, of a date and time (local, unless it has a zone), or of an age such as 7d."""
    age = parse_age(text)
    if age is not None:
        return time.time() - age
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        message = f"a time is a date such as 2026-01-31, with a time such as T12:00, or an age ({ALLOWED_AGES})"
        raise argparse.ArgumentTypeError(f"{message}, not {text!r}") from None


def opened(args: argparse.Namespace) -> ContentFile:
    from knapcache.features.content_log.file import FILE_NAME, ContentFile
    from knapcache.proxy.settings.loading import load

    folder = args.path if args.path is not None else load(args.config, secrets=False).settings.path
    return ContentFile(folder / FILE_NAME, create=False)


def conditions(args: argparse.Namespace, text: str) -> LogFilter:
    from knapcache.features.content_log.file import LogFilter

    return LogFilter(
        text=text,
        model=args.model,
        tenant=args.tenant,
        outcome=args.outcome,
        since=getattr(args, "since", None),
        until=getattr(args, "until", None) if not hasattr(args, "before") else args.before,
    )


def execute_search(args: argparse.Namespace) -> None:
    if args.limit < 1:
        raise InvalidInput(f"--limit must be at least 1, not {args.limit}")
    wanted = conditions(args, " ".join(args.text))
    with contextlib.closing(opened(args)) as file:
        rows = file.search(wanted, args.limit)
        for row in rows:
            if args.json:
                print(printable_json(json.dumps(file.line(row["id"]), ensure_ascii=False)))
            elif args.full:
                print_line(file.line(row["id"]) or row)
            else:
                print_row(row)
    if not rows and not args.json:
        print_text("No line meets every condition.")


def print_row(row: dict[str, Any]) -> None:
    """Print the facts of a line, and its excerpt with the words that were found in bold on a terminal."""
    bold = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    excerpt = printable(
        " ".join(row["excerpt"].replace("\x02", "\x00").replace("\x03", "\x01").split()), keep="\x00\x01"
    )
    excerpt = excerpt[: max(200, output_width())].replace("\x00", bold[0]).replace("\x01", bold[1])
    print(f"{wrapped(facts(row))}\n    {excerpt}{bold[1]}")


def print_line(line: dict[str, Any]) -> None:
    print(wrapped(facts(line)))
    for name in ("request", "response"):
        if line.get(name):
            print(printable(json.dumps(line[name], indent=2, ensure_ascii=False), keep="\n"))
    print()


def wrapped(text: str) -> str:
    """Return facts in lines of the width of the output."""
    return textwrap.fill(text, output_width(), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def facts(row: dict[str, Any]) -> str:
    when = datetime.datetime.fromtimestamp(row["time"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    found = [f"#{row['id']}", when, row["outcome"], str(row["status"]), row["model"] or "(no model)", row["tenant"]]
    found += [f"route {row['route']}" if row["route"] else "", dollar_text(row)]
    found += [counted(row["tokens"], "token") if row["tokens"] else "", f"{row['seconds']:.3f} s", row["key"][:12]]
    return printable("  ".join(filter(None, found)))


def dollar_text(row: dict[str, Any]) -> str:
    """Return what an answer cost, and whether that was saved or spent; empty: the price is unknown."""
    from knapcache.proxy.events.events import SAVED

    return "" if row["usd"] is None else f"${row['usd']:.6f} {'saved' if row['outcome'] in SAVED else 'spent'}"


def execute_export(args: argparse.Namespace) -> None:
    from knapcache.features.content_log.export import evals_lines, jsonl_lines, parquet_rows, replayable

    if args.format == "parquet" and args.output is None:
        raise InvalidInput("--format parquet needs --output FILE")
    if args.format == "parquet":
        polars()
    wanted = conditions(args, args.text)
    left_out: dict[str, int] = {}
    with contextlib.closing(opened(args)) as file:
        lines = with_progress(file, wanted)
        if args.format == "evals":
            content: Iterable[bytes] = evals_lines(lines, left_out)
        else:
            form = parquet_rows if args.format == "parquet" else jsonl_lines
            content = form(replayable(lines, left_out, every=args.all))
        written = write_lines(content, args.output, to_parquet if args.format == "parquet" else None)
    more = "".join(f"; {count:,} left out: {reason}" for reason, count in left_out.items())
    print(f"{counted(written, 'line')} written{more}", file=sys.stderr)


def with_progress(file: ContentFile, wanted: LogFilter) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log, with a progress bar."""
    with progress_bar() as bar:
        task = bar.add_task(f"reading {file.path.name}", total=file.count(wanted))
        for line in file.lines(wanted):
            yield line
            bar.advance(task)


def polars() -> Any:
    """Return Polars, or raise MissingExtra."""
    try:
        import polars
    except ImportError:
        raise MissingExtra(f"--format parquet needs Polars: {install_command('lab')}") from None
    return polars


def to_parquet(lines: Path, target: Path) -> None:
    """Convert JSON lines to a Parquet file, in bounded memory."""
    from knapcache.features.content_log.export import COLUMNS

    found = polars()
    schema = {name: getattr(found, kind) for name, kind in COLUMNS.items()}
    if lines.stat().st_size:
        found.scan_ndjson(lines, schema=schema).sink_parquet(target)
    else:
        found.DataFrame(schema=schema).write_parquet(target)


def execute_purge(args: argparse.Namespace) -> None:
    wanted = conditions(args, args.text)
    if args.all != wanted.empty:
        raise InvalidInput("give --all, or at least one of --text, --model, --tenant, --outcome, --before")
    with contextlib.closing(opened(args)) as file:
        if args.dry_run:
            print(f"{counted(file.count(wanted), 'line')} would be deleted")
            return
        if sys.stdin.isatty() and sys.stdout.isatty() and not args.yes:
            print(f"{counted(file.count(wanted), 'line')} would be deleted")
            if input("Delete them? [y/N] ").strip().lower() not in ("y", "yes"):
                print("nothing deleted")
                return
        print(f"{counted(file.purge(wanted), 'line')} deleted")
