"""Options that several commands share: the same names, the same meaning. A test compares all commands with them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

PROXY_URL = "http://127.0.0.1:8080/v1"
CONFIG_HELP = "settings file of the proxy (default: $KNAPCACHE_CONFIG)"
JSON_FILE_HELP = "write the {what} as JSON; - writes them to stdout instead of the table"


def add_output(parser: Any, text: str, *, metavar: str = "FILE", required: bool = False) -> None:
    """Add -o, for a file, or for a directory (metavar DIR), which older scripts name --out."""
    names = ("-o", "--output") if metavar == "FILE" else ("-o", "--output", "--out")
    kind = Path if metavar == "FILE" else directory
    parser.add_argument(*names, dest="output", metavar=metavar, type=kind, required=required, help=text)


def add_json(parser: Any, text: str = "print JSON") -> None:
    """Add --json of a command that prints a list or a result."""
    parser.add_argument("--json", action="store_true", help=text)


def add_json_file(parser: Any, what: str = "rows") -> None:
    """Add --json FILE of a command that computes a table."""
    parser.add_argument("--json", metavar="FILE", help=JSON_FILE_HELP.format(what=what))


def add_config(parser: Any, text: str = CONFIG_HELP) -> None:
    """Add --config FILE."""
    parser.add_argument("--config", metavar="FILE", type=Path, help=text)


def add_proxy(parser: Any) -> None:
    """Add the address of a running proxy, and the certificates to trust."""
    parser.add_argument("--url", default=PROXY_URL, help=f"base URL of the proxy (default: {PROXY_URL})")
    parser.add_argument(
        "--ca", metavar="FILE", type=Path, help="PEM file with certificates to trust (default: the system's)"
    )


def directory(text: str) -> Path:
    """Parse the option for an output directory."""
    if not text:
        raise argparse.ArgumentTypeError("directory name must not be empty")
    return Path(text)
