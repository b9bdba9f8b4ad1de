"""Where a command runs: the options that all commands which sweep share."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from knapcache.sim.executors import Jobs


def add_options(parser: argparse.ArgumentParser) -> None:
    """On this machine, or on a cluster."""
    option = parser.add_mutually_exclusive_group().add_argument
    option("--jobs", type=int, metavar="N", help="processes to run on (default: all cores)")
    option("--scheduler", metavar="ADDRESS", help="run on a Dask cluster instead, such as tcp://host:8786")


@contextmanager
def jobs(args: argparse.Namespace) -> Iterator[Jobs]:
    """What the options say; a cluster is connected as long as this is open."""
    if args.scheduler is None:
        yield args.jobs
        return
    from knapcache.sim.cluster import DaskExecutor

    with DaskExecutor(args.scheduler) as cluster:
        yield cluster
