"""The thread behind the event loop: nothing waits for it, nothing is lost unseen."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from knapcache.serve.observe.batch_worker import BatchWorker


def test_everything_arrives_in_its_order() -> None:
    got: list[int] = []
    behind = BatchWorker("test", got.extend)
    for k in range(0, 1000, 10):
        behind.offer(range(k, k + 10))
    assert behind.close()
    assert got == [*range(1000)]
    assert behind.lost == 0


def test_a_hanging_one_loses_the_newest_and_counts_them() -> None:
    got: list[int] = []
    at_work, go = threading.Event(), threading.Event()

    def work(batch: Sequence[int]) -> None:
        at_work.set()
        assert go.wait(10)
        got.extend(batch)

    behind = BatchWorker("test", work, most=25)
    behind.offer(range(10))
    assert at_work.wait(10)
    behind.offer(range(10, 20))
    behind.offer(range(20, 30))
    behind.offer(range(30, 40))
    assert behind.lost == 15
    assert not behind.close(0.01)
    assert behind.lost == 40, "what still waits is lost: nobody knows whether it will be done"
    go.set()
    assert behind.close()
    assert got == [*range(25)]


def test_one_that_fails_goes_on_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    got: list[int] = []

    def work(batch: Sequence[int]) -> None:
        if batch[0] < 3:
            raise ZeroDivisionError
        got.extend(batch)

    behind = BatchWorker("test", work)
    for k in range(5):
        behind.offer([k])
    assert behind.close()
    behind.offer([9])  # closed
    assert (got, behind.lost) == ([3, 4], 4)
    assert [record.getMessage() for record in caplog.records] == ["test: some of it is lost"]
