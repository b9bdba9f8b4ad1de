"""`knapcache experiment NAME`: run an experiment, print its table, write NAME.json and NAME.png."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from knapcache.cli import options
from knapcache.cli.output import print_table
from knapcache.errors import ClusterFailed, InvalidInput, KnapcacheError

if TYPE_CHECKING:
    from knapcache_experiments.experiment import Experiment

HELP = "reproduce the paper's figures and tables"
DESCRIPTION = """Reproduce the figures and tables of the paper, and measure what it leaves open. Each experiment prints
a table and writes NAME.json (settings and numbers) and NAME.png (a figure)."""
EXAMPLES = r"""examples:
  knapcache experiment figure-1 --help
  knapcache experiment figure-1 --quick -o out
  knapcache experiment figure-1 --arrivals uniform --sizes uniform:3 -o out
  knapcache experiment cluster --traces log.csv.gz --proxies 10 -o out
  knapcache experiment all -o experiments/results"""


def add_options(parser: argparse.ArgumentParser) -> None:
    from knapcache_experiments.catalogue import EXPERIMENTS

    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    names = parser.add_subparsers(dest="name", metavar="NAME")
    for name, experiment in EXPERIMENTS.items():
        sub = names.add_parser(name, help=experiment.summary, description=experiment.text)
        _add_common_options(sub)
        group = sub.add_argument_group("settings")
        for field in dataclasses.fields(experiment.settings):
            _add_setting(group, field)
        sub.set_defaults(execute=lambda args, experiment=experiment: run_one(experiment, args))
    text = "run every experiment with its default settings"
    everything = names.add_parser("all", help=text, description=f"{text.capitalize()}.")
    _add_common_options(everything)
    everything.set_defaults(execute=lambda args: run_all(EXPERIMENTS.values(), args))


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    options.add_output(parser, "directory for NAME.json and NAME.png; created if missing", metavar="DIR", required=True)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and repeats: a run of seconds")
    options.add_executor(parser)


def _add_setting(group: Any, field: dataclasses.Field[Any]) -> None:
    """Add one field of the experiment's settings as an option of the type of its default."""
    default = field.default
    name = option_name(field)
    if isinstance(default, bool):
        text = f"{field.metadata['help']} (default: {default})"
        group.add_argument(name, dest=field.name, action="store_true", default=argparse.SUPPRESS, help=text)
        return
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    group.add_argument(
        name,
        dest=field.name,
        type=_parser_for(default),
        default=argparse.SUPPRESS,
        metavar="LIST" if isinstance(default, tuple) else type(default).__name__.upper(),
        help=f"{field.metadata['help']} (default: {shown})".replace("%", "%%"),
    )


def option_name(field: dataclasses.Field[Any]) -> str:
    """Return the option of a field of settings: its own name, or the one that other commands have for it."""
    name = f"--{field.name.replace('_', '-')}"
    return options.RENAMED.get(name, (name,))[0]


def _parser_for(default: Any) -> Callable[[str], Any]:
    """Return the function that parses an option: the type of its default, or a comma-separated list for a tuple."""
    if not isinstance(default, tuple):
        return type(default)
    kind = type(default[0])

    def parse_items(text: str) -> tuple[Any, ...]:
        return tuple(kind(part.strip()) for part in text.split(","))

    parse_items.__name__ = f"comma-separated {kind.__name__}"  # argparse shows this name in its errors
    return parse_items


def run_all(experiments: Iterable[Experiment[Any]], args: argparse.Namespace) -> None:
    """Run the experiments in order. An experiment that fails, for example without its data, does not stop the others.

    A failed cluster does stop them: each would wait for it again.
    """
    failures = []
    for experiment in experiments:
        try:
            run_one(experiment, args)
        except ClusterFailed:
            raise
        except KnapcacheError as error:
            failures.append(str(error))
    if failures:
        raise InvalidInput(f"{len(failures)} experiments failed: {'; '.join(failures)}")


def run_one(experiment: Experiment[Any], args: argparse.Namespace) -> None:
    from knapcache.lab.files import OutputDirectory
    from knapcache_experiments.experiment import as_files

    fields = {field.name for field in dataclasses.fields(experiment.settings)}
    settings = experiment.choose({k: v for k, v in vars(args).items() if k in fields}, quick=args.quick)
    out = OutputDirectory(args.output)
    with options.open_executor(args) as jobs:
        result = experiment.run(settings, jobs)
    paths = out.write(as_files(experiment.name, settings, result))  # before the table: stdout may be a closed pipe
    print_table(result.rows, title=f"{experiment.name}: {experiment.summary}")
    print(*paths, sep="\n")
