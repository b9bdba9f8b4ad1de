"""`knapcache experiment NAME`: run an experiment, print its table, write NAME.json and NAME.png."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from knapcache.cli import executor_options
from knapcache.cli.output import directory, print_table
from knapcache.errors import ClusterFailed, InvalidInput, KnapcacheError

if TYPE_CHECKING:
    from knapcache_experiments.experiment import Experiment

TEXT = """Reproduce the paper's figure and tables, and measure what it leaves open.
Each experiment prints its table and writes NAME.json (settings and numbers) and NAME.png (a figure) into DIR."""
EXAMPLES = """examples:
  knapcache experiment figure-1 --quick --out out
  knapcache experiment figure-1 --arrivals uniform --sizes uniform:3 --out out
  knapcache experiment figure-1 --help       (the options of one experiment)
  knapcache experiment all --out experiments/results"""


def add(commands: Any, *, with_options: bool) -> None:
    """Put the command into the parser; the experiments and their options only if they are about to be used."""
    parser = commands.add_parser(
        "experiment",
        help="reproduce the paper's figure and tables",
        description=TEXT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if not with_options:
        return
    from knapcache_experiments.catalogue import EXPERIMENTS

    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, experiment in EXPERIMENTS.items():
        sub = names.add_parser(
            name,
            help=experiment.summary,
            description=experiment.text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_common(sub)
        chosen = sub.add_argument_group("settings")
        for field in dataclasses.fields(experiment.settings):
            _add_option(chosen, field)
        sub.set_defaults(execute=lambda args, experiment=experiment: run_one(experiment, args))
    everything = names.add_parser(
        "all", help="every experiment, with its default settings", description="Run every experiment."
    )
    _add_common(everything)
    everything.set_defaults(execute=lambda args: run_all(EXPERIMENTS.values(), args))


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=directory,
        required=True,
        help="directory for NAME.json and NAME.png; made if missing",
    )
    parser.add_argument("--quick", action="store_true", help="a run of seconds: fewer rounds and repeats")
    executor_options.add_options(parser)


def _add_option(group: Any, field: dataclasses.Field[Any]) -> None:
    default = field.default
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    name = f"--{field.name.replace('_', '-')}"
    if isinstance(default, bool):
        text = f"{field.metadata['help']} (default: {default})"
        group.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=text)
        return
    group.add_argument(
        name,
        type=_reader(default),
        default=argparse.SUPPRESS,
        metavar="LIST" if isinstance(default, tuple) else type(default).__name__.upper(),
        help=f"{field.metadata['help']} (default: {shown})",
    )


def _reader(default: Any) -> Callable[[str], Any]:
    """How to read an option: as its default's type; a tuple as a list with commas."""
    if not isinstance(default, tuple):
        return type(default)
    kind = type(default[0])

    def items(text: str) -> tuple[Any, ...]:
        return tuple(kind(part.strip()) for part in text.split(","))

    items.__name__ = f"comma-separated {kind.__name__}"  # argparse names the reader in its errors
    return items


def run_all(experiments: Iterable[Experiment[Any]], args: argparse.Namespace) -> None:
    """One after the other; one that fails, for want of data say, does not keep the others from executor_options.

    A cluster that fails does: they would all wait for it in vain.
    """
    failed = []
    for experiment in experiments:
        try:
            run_one(experiment, args)
        except ClusterFailed:
            raise
        except KnapcacheError as error:
            failed.append(str(error))
    if failed:
        raise InvalidInput(f"{len(failed)} experiments could not run: {'; '.join(failed)}")


def run_one(experiment: Experiment[Any], args: argparse.Namespace) -> None:
    """Run, print, write."""
    from knapcache.sim.files import OutputDirectory
    from knapcache_experiments.experiment import as_files

    fields = {field.name for field in dataclasses.fields(experiment.settings)}
    settings = experiment.choose({k: v for k, v in vars(args).items() if k in fields}, quick=args.quick)
    out = OutputDirectory(args.out)
    with executor_options.jobs(args) as jobs:
        outcome = experiment.run(settings, jobs)
    paths = out.write(as_files(experiment.name, settings, outcome))  # first: whoever reads the table may have gone
    print_table(outcome.rows, title=f"{experiment.name}: {experiment.summary}")
    print(*paths, sep="\n")
