"""The queue of decisions on their way to the store.

The admission controller appends a StoreChange for each decision, under its `deciding` lock. `drain` takes the changes
out in that order and applies each, under the `applying` lock. A `BatchStore` gets all that are queued in one call. So
the store sees decisions in the order in which they were taken, and Σ sizes never exceeds the capacity in between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from knapcache.errors import StoreError
from knapcache.store.base import Change, Entry, Store, batch_store

BATCH_KEYS = 256
"""Keys that one change evicts at most, where there are many."""


@dataclass(slots=True, eq=False)
class StoreChange:
    """The put and the evictions of one decision, which the store applies together or not at all."""

    put: Entry | None = None
    evict: Sequence[bytes] = ()
    snapshot: bytes | None = None
    i: int = -1
    """Id of the entry to put. With the serial it tells whether the policy still holds that entry."""
    serial: int = 0
    error: BaseException | None = None
    """Why the store could not apply it."""


OnFailure = Callable[[StoreChange], None]


class ApplyQueue:
    """Changes for one store, in decision order."""

    def __init__(self, store: Store) -> None:
        self._store, self._batches = store, batch_store(store)
        self.changes: deque[StoreChange] = deque()
        self.applying = threading.Lock()

    def append(self, change: StoreChange) -> None:
        """Queue a change. The caller holds the `deciding` lock."""
        self.changes.append(change)

    def drain(self, on_failure: OnFailure) -> None:
        """Apply what is queued. After this, the store has every change that was queued before the call.

        `on_failure` is called with each change that failed, `error` set: at once or later, from the store's thread.
        """
        with self.applying:
            self.drain_locked(on_failure)

    def drain_locked(self, on_failure: OnFailure) -> None:
        """The same, for a caller that holds `applying`."""
        while self.changes:
            changes = [self.changes.popleft() for _ in range(1 if self._batches is None else len(self.changes))]
            try:
                if self._batches is None:
                    (change,) = changes
                    applied = self._store.apply(change.put, change.evict, change.snapshot)
                    applied.add_done_callback(partial(_check_one, change, on_failure))
                else:
                    batch = [Change(each.put, each.evict, each.snapshot) for each in changes]
                    self._batches.apply_all(batch).add_done_callback(partial(_check_all, changes, on_failure))
            except StoreError as error:  # the store is closed, or another process owns it
                _report(changes, [error] * len(changes), on_failure)


def _check_one(change: StoreChange, on_failure: OnFailure, applied: Future[None]) -> None:
    _report([change], [applied.exception()], on_failure)


def _check_all(changes: list[StoreChange], on_failure: OnFailure, applied: Future[Sequence[StoreError | None]]) -> None:
    _report(changes, applied.result(), on_failure)


def _report(changes: list[StoreChange], errors: Sequence[BaseException | None], on_failure: OnFailure) -> None:
    for change, error in zip(changes, errors, strict=True):
        if error is not None:
            change.error = error
            on_failure(change)
