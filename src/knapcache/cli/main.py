"""`knapcache`: reads the command line, runs the command, turns errors into one line and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from knapcache.cli import demo, experiment, inspect, plan, policies, purge, replay, serve
from knapcache.errors import KnapcacheError

DESCRIPTION = "An LLM response cache that learns what is worth keeping."
BAD_INPUT = 2
INTERRUPTED = 130


class CommandLineParser(argparse.ArgumentParser):
    """argparse, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
        self.exit(BAD_INPUT, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for this command line; the experiments are imported for their options only if one is to run."""
    parser = CommandLineParser(prog="knapcache", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"knapcache {version('knapcache')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    policies.add(commands)
    replay.add(commands, with_options="replay" in argv)
    plan.add(commands, with_options="plan" in argv)
    experiment.add(commands, with_options="experiment" in argv)
    inspect.add(commands)
    purge.add(commands)
    serve.add(commands)
    demo.add(commands, with_options="demo" in argv)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        args = build_parser(argv).parse_args(argv)
        args.execute(args)
        sys.stdout.flush()
    except KnapcacheError as error:
        print(f"knapcache: error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("knapcache: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `knapcache … | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk behind `> file`, say
        print(f"knapcache: error: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_INPUT
    return 0


def run() -> NoReturn:
    """Entry point of the installed command."""
    sys.exit(main(sys.argv[1:]))
