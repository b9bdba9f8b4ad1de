"""Commands of the program, and logs to replay with them."""

from __future__ import annotations

import csv
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from knapcache.cli.main import main
from knapcache.lab.synthetic import Workload

COMMAND = [sys.executable, "-c", "from knapcache.cli.main import run; run()"]
"""The program in a process of its own."""


def allow_interrupts() -> None:
    """End by SIGINT, in a child process: a background job of a script ignores it, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def error_of(*arguments: object, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail, and return its one line on stderr."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:  # from argparse
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("knapcache")
    assert ": error: " in err
    return err


def write_log(
    path: Path,
    workload: Workload,
    times: npt.NDArray[np.floating[Any]],
    *,
    header: str = "time,key,size,cost",
    size: int = 1,
    cost: float = 1.0,
) -> Path:
    """Write requests of a workload as CSV. size, cost: factors of all sizes and costs."""
    _, drawn = workload.draw(np.random.default_rng(3))
    columns = (times, drawn.keys, drawn.sizes * size, drawn.costs * cost)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    return path
