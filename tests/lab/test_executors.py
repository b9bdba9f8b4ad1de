"""Sweeps in processes equal sequential ones; shared values are read back unchanged; an executor that is closed early
leaves no process or file.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from knapcache.errors import InvalidInput
from knapcache.lab.executors import (
    ALIGNED,
    Executor,
    LocalExecutor,
    TaskBatch,
    executor,
    map_shared,
    sweep,
    write_shared,
)
from knapcache.lab.trace import Trace

SHAPES = arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=20)
ARRAYS = arrays.arrays(st.sampled_from([np.int64, np.float64, np.uint8]), SHAPES)


@given(st.lists(ARRAYS, max_size=5), st.integers())
def test_shared_values_are_read_back(drawn: list[np.ndarray[Any, Any]], number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_shared((drawn, number), Path(folder))
        again, same = map_shared(Path(folder))
        assert same == number
        assert len(again) == len(drawn)
        for one, two in zip(drawn, again, strict=True):
            assert (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
            assert two.flags.writeable  # kernels are compiled for such arrays
            assert two.size == 0 or two.ctypes.data % ALIGNED == 0
            two[...] = 7
        for one, two in zip(drawn, map_shared(Path(folder))[0], strict=True):  # writes are private to a process
            assert one.tobytes() == two.tobytes()


def test_a_trace_is_read_back(tmp_path: Path) -> None:
    trace = Trace(np.arange(5), np.arange(5) + 1, np.ones(5), 5)
    write_shared(trace, tmp_path)
    again = map_shared(tmp_path)
    for name in ("keys", "sizes", "costs"):
        assert np.array_equal(getattr(again, name), getattr(trace, name))
    assert again.ids == 5


def sum_and_pid(shared: Sequence[int], k: int) -> tuple[int, int]:
    time.sleep(0.05)
    return sum(shared) + k, os.getpid()


def idle(seconds: float) -> None:
    time.sleep(seconds)


def test_an_executor_closed_early_stops_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = multiprocessing.get_context("spawn").Process(target=idle, args=(60,))
    own.start()
    try:
        results = LocalExecutor(2).run(TaskBatch(sum_and_pid, ([1, 2],), tuple(range(500))))
        assert next(results)[0] == 3
        results.close()
        assert multiprocessing.active_children() == [own]  # the caller's own process is left alone
        assert own.is_alive()
        assert list(tmp_path.iterdir()) == []
    finally:
        own.terminate()
        own.join()


def test_the_executor_of_jobs() -> None:
    cores = os.cpu_count() or 1
    assert [made.jobs for made in map(executor, (None, 3)) if isinstance(made, LocalExecutor)] == [cores, 3]
    local: Executor = LocalExecutor(1)
    assert executor(local) is local
    with pytest.raises(InvalidInput, match="jobs must be at least 1, not 0"):
        LocalExecutor(0)


def slowest_first(k: int) -> tuple[int, int]:
    """Finish later items first."""
    time.sleep(0.02 * (5 - k))
    return k * k, os.getpid()


def fails_on_3(path: Path) -> str:
    """Raise InvalidInput for one item."""
    if path.name == "3":
        raise InvalidInput(f"cannot use {path}")
    return path.name


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_items(jobs: int, capfd: pytest.CaptureFixture[str]) -> None:
    results = sweep(slowest_first, range(6), jobs=jobs, title="counting")
    assert [square for square, _ in results] == [0, 1, 4, 9, 16, 25]
    processes = {pid for _, pid in results}
    assert (processes == {os.getpid()}) == (jobs == 1)
    assert len(processes) <= jobs
    assert capfd.readouterr() == ("", ""), "without a terminal there is no progress bar"
    assert sweep(abs, [], jobs=jobs) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_exception_in_a_worker_reaches_the_caller(jobs: int) -> None:
    with pytest.raises(InvalidInput, match=r"cannot use 3"):
        sweep(fails_on_3, [Path(str(k)) for k in range(6)], jobs=jobs)
