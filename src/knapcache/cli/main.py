"""Entry point of `knapcache`: parse the command line, run the command, report errors in one line with exit code 2."""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any, NoReturn

from knapcache.cli import (
    completion,
    demo,
    doctor,
    experiment,
    export,
    import_entries,
    inspect,
    kv,
    plan,
    policies,
    purge,
    rekey,
    replay,
    route,
    serve,
    warm,
)
from knapcache.cli.options import with_new_names
from knapcache.errors import KnapcacheError, MissingExtra, install_command, suggestion
from knapcache.proxy.feature_list import feature_specs

COMMANDS: dict[str, ModuleType] = {
    "serve": serve,
    "doctor": doctor,
    "demo": demo,
    "inspect": inspect,
    "purge": purge,
    "rekey": rekey,
    "export": export,
    "import": import_entries,
    "route": route,
    "warm": warm,
    "policies": policies,
    "replay": replay,
    "plan": plan,
    "kv": kv,
}
LAST_COMMANDS: dict[str, ModuleType] = {"experiment": experiment, "completion": completion}
"""Commands that the help lists after those of features."""
DESCRIPTION = "An LLM response cache that learns what is worth keeping."
REMOVED = {"migrate": "; `knapcache export FROM | knapcache import - TO` copies a cache"}
"""Commands of older versions, and what to use in their place."""
BAD_INPUT = 2
INTERRUPTED = 130
MIN_ACTION_WIDTH = 15
"""Columns for names of subcommands. argparse ignores their indentation and would break the line after a long name."""


class HelpFormatter(argparse.HelpFormatter):
    """Wrap each paragraph of a description or epilog, and keep its indented lines."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = MIN_ACTION_WIDTH

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = []
        for block in re.split(r"\n\s*\n", text.strip("\n")):
            if re.search(r"^\s", block, re.MULTILINE):
                blocks.append(textwrap.indent(block, indent))
            else:
                blocks.append(textwrap.fill(" ".join(block.split()), width, initial_indent=indent))
        return "\n\n".join(blocks)


class CommandLineParser(argparse.ArgumentParser):
    """ArgumentParser with one-line errors and wrapped help texts. Subcommands use it as well."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments. A subcommand reports what it does not know itself, so that the error names its own help."""
        given = sys.argv[1:] if args is None else args
        found, unknown = super().parse_known_args(
            with_new_names(given, self._option_string_actions, self.prog), namespace
        )
        if unknown:
            option = unknown[0].partition("=")[0]
            names = [name for name in self._option_string_actions if name.startswith("--")]
            hint = suggestion(option, names, "") if option.startswith("--") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown

    def add_subparsers(self, **options: Any) -> Any:
        """Add subcommands. Without one, the help is printed."""
        self.set_defaults(execute=lambda _: self.print_help())
        return super().add_subparsers(**options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError for a value that is not among the choices."""
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        is_command = isinstance(action, argparse._SubParsersAction)
        what = f"unknown {str(action.metavar).lower()}" if is_command else "invalid choice"
        hint = REMOVED.get(value) if is_command else None
        message = f"{what} {value!r}{hint or suggestion(value, names)}"
        raise argparse.ArgumentError(None if is_command else action, message)

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser for this command line. A command gets its options only if it is named: some import slowly."""
    parser = CommandLineParser(prog="knapcache", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"knapcache {version('knapcache')}")
    parser.set_defaults(build_parser=build_parser)  # for `completion`, which needs the options of all commands
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add(name: str, text: str, module: str) -> None:
        added = commands.add_parser(name, help=text)
        if name in argv:
            import_module(module).add_options(added)

    for name, module in COMMANDS.items():
        add(name, module.HELP, module.__name__)
    for command in (command for spec in feature_specs() for command in spec.commands):
        add(command.name, command.help, command.module)
    for name, module in LAST_COMMANDS.items():
        add(name, module.HELP, module.__name__)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command line and return the exit code."""
    args = argparse.Namespace()
    try:
        args = build_parser(argv).parse_args(argv)
        code: int = args.execute(args) or 0
        sys.stdout.flush()
    except KnapcacheError as error:
        print_error(error)
        return BAD_INPUT
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in (*serve.REQUIRED_PACKAGES, "pydantic"):
            raise
        command = install_command("serve")
        print_error(MissingExtra(f"{argv[0]} needs the packages of the proxy: {command}"))
        return BAD_INPUT
    except KeyboardInterrupt:
        if getattr(args, "ends_by_interrupt", False):  # Ctrl-C is the usual end of the command
            return 0
        print("knapcache: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, such as `head`, closed it: not an error
        discard_stdout()
        return 0
    except OSError as error:  # for example a full disk behind `> file`
        print_error(error)
        discard_stdout()
        return BAD_INPUT
    return code


def print_error(error: Exception) -> None:
    """Print why a command failed. Names in files and of files must not change the terminal."""
    from knapcache.cli.output import printable

    text = printable(str(error), keep="\n")
    print(f"knapcache: error: {text}", file=sys.stderr)


def discard_stdout() -> None:
    """Redirect stdout to the null device, so that the flush at exit cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run() -> NoReturn:
    """Entry point of the installed command."""
    sys.exit(main(sys.argv[1:]))
