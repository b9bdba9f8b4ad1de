"""Options and arguments that several commands share. A test compares all commands with them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knapcache.errors import InvalidInput, reason_text

if TYPE_CHECKING:
    from knapcache.lab.executors import Jobs

PROXY_URL = "http://127.0.0.1:8080/v1"
CONFIG_HELP = "settings file of the proxy (default: $KNAPCACHE_CONFIG)"
JSON_FILE_HELP = "print the {what} as JSON instead of the table; with FILE, write them there, too"
RENAMED = {
    "--out": ("--output",),
    "--clients": ("--concurrency",),
    "--key": ("--api-key", "--key-fields"),
    "--key-env": ("--api-key-env",),
    "--capacities": ("--capacity",),
    "--policies": ("--policy",),
}
"""New names of an option by its old name. Until version 2.0 old names work, with a note on stderr, where a command has
one of the new names."""
ENDPOINTS = {
    "messages": ("chat/completions", "messages"),
    "input": ("responses", "embeddings"),
    "prompt": ("completions",),
}
"""Endpoints that a request may be for, by a field that it has."""


def add_output(parser: Any, text: str, *, metavar: str = "FILE", required: bool = False) -> None:
    """Add -o, for a file, or for a directory (metavar DIR)."""
    kind = Path if metavar == "FILE" else directory
    parser.add_argument("-o", "--output", metavar=metavar, type=kind, required=required, help=text)


def add_json(parser: Any, text: str = "print JSON") -> None:
    """Add --json of a command that prints a list or a result."""
    parser.add_argument("--json", action="store_true", help=text)


def add_json_file(parser: Any, what: str = "rows") -> None:
    """Add --json of a command that computes a table: it may have a FILE. The value is - for stdout."""
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-", help=JSON_FILE_HELP.format(what=what))


class JsonOutput:
    """Where the JSON of a command with add_json_file goes: stdout, a file, or nowhere.

    Raises InvalidInput at construction if the file cannot be written.
    """

    def __init__(self, option: str | None) -> None:
        from knapcache.lab.files import OutputFile

        self._to_stdout = option == "-"
        self._file = None if option in (None, "-") else OutputFile(Path(option))

    def write(self, text: str, paths: list[Path]) -> bool:
        """Print the text, or write it to the file and append that to `paths`. Return whether it was printed.

        Call it before anything else is printed: stdout may be a closed pipe.
        """
        if self._to_stdout:
            print(text, end="")
        elif self._file:
            self._file.write(text)
            paths.append(self._file.path)
        return self._to_stdout


def add_plot(parser: Any, text: str) -> None:
    """Add --plot FILE of a command that draws a figure."""
    parser.add_argument("--plot", metavar="FILE", help=f"write {text} as PNG; needs knapcache[lab]")


class ResultOutput:
    """Where the numbers and the figure of a command with add_json_file and add_plot go.

    Raises InvalidInput at construction if a file cannot be written, and MissingExtra if there is a figure to draw and
    no package for it.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        from knapcache.lab.figures import new_figure
        from knapcache.lab.files import OutputFile

        self._plot = None
        if args.plot is not None:
            new_figure()  # raises MissingExtra
            self._plot = OutputFile(Path(args.plot))
        self._json = JsonOutput(args.json)

    def write(self, numbers: Any, draw: Callable[[], bytes]) -> list[Path] | None:
        """Write the figure and the numbers. Return the files, or None if the numbers were printed: the command then
        prints nothing else. draw: return the figure as PNG.
        """
        paths = []
        if self._plot:
            self._plot.write(draw())
            paths.append(self._plot.path)
        printed = self._json.write(json.dumps(numbers, indent=1, allow_nan=False) + "\n", paths)
        return None if printed else paths


def add_config(parser: Any, text: str = CONFIG_HELP) -> None:
    """Add --config FILE."""
    parser.add_argument("--config", metavar="FILE", type=Path, help=text)


def add_proxy(parser: Any) -> None:
    """Add the address of a running proxy, and the certificates to trust."""
    parser.add_argument("--url", default=PROXY_URL, help=f"base URL of the proxy (default: {PROXY_URL})")
    parser.add_argument(
        "--ca", metavar="FILE", type=Path, help="PEM file with certificates to trust (default: the system's)"
    )


def with_new_names(arguments: Sequence[str], known: Collection[str], prog: str) -> list[str]:
    """Return the arguments of a command with the new names of options. Prints a note for each old one.

    known   names of the options that the command has
    """
    found = list(arguments)
    end = found.index("--") if "--" in found else len(found)
    for k, argument in enumerate(found[:end]):
        old, equals, value = argument.partition("=")
        new = next((name for name in RENAMED.get(old, ()) if name in known), None)
        if new is not None and old not in known:
            print(f"{prog}: warning: {old} is deprecated: use {new}", file=sys.stderr)
            found[k] = f"{new}{equals}{value}"
    return found


def directory(text: str) -> Path:
    """Parse the option for an output directory."""
    if not text:
        raise argparse.ArgumentTypeError("directory name must not be empty")
    return Path(text)


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Add where a sweep runs."""
    option = parser.add_mutually_exclusive_group().add_argument
    option("--jobs", type=int, metavar="N", help="number of processes (default: all cores)")
    option("--scheduler", metavar="ADDRESS", help="run on a Dask cluster, such as tcp://host:8786")


@contextmanager
def open_executor(args: argparse.Namespace) -> Iterator[Jobs]:
    """Yield the number of processes, or a cluster that stays connected inside the block."""
    if args.scheduler is None:
        yield args.jobs
        return
    from knapcache.lab.cluster import DaskExecutor

    with DaskExecutor(args.scheduler) as cluster:
        yield cluster


def read_body(source: str) -> dict[str, Any]:
    """Return the body of a request: a JSON object, or the `body` of a line of a batch file."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read the request from {source}: {reason_text(error)}") from None
    body = found.get("body", found) if isinstance(found, dict) else found
    if not isinstance(body, dict):
        raise InvalidInput(f'a request must be a JSON object, such as {{"model": …}}; {source} has none')
    return body
