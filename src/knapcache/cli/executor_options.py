"""Options that choose where a sweep runs, shared by `replay`, `plan` and `experiment`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from knapcache.lab.executors import Jobs


def add_options(parser: argparse.ArgumentParser) -> None:
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
