"""The queue of decisions on their way to the store.

The admission controller appends a StoreChange for each decision, under its `deciding` lock. `drain` takes the changes
out in that order and applies each, under the `applying` lock. A `BatchStore` gets all that are queued in one call. So
the store sees decisions in the order in which they were taken, and Σ sizes never exceeds the capacity in between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from knapcache.errors import StoreError
from knapcache.store.base import Change, Store, batch_store, clearable_store

BATCH_KEYS = 256
"""Keys that one change evicts at most, where there are many."""


@dataclass(slots=True, eq=False)
class StoreChange(Change):
    """The put and the evictions of one decision, which the store applies together or not at all."""

    i: int = -1
    """Id of the entry to put. With the serial it tells whether the policy still holds that entry."""
    serial: int = 0
    clear: bool = False
    """All entries are removed. Only for a `ClearableStore`."""
    error: BaseException | None = None
    """Why the store could not apply it."""


OnFailure = Callable[[StoreChange], None]


class ApplyQueue:
    """Changes for one store, in decision order."""

    def __init__(self, store: Store) -> None:
        self._store, self._batches, self._clearable = store, batch_store(store), clearable_store(store)
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
        done = partial(_done, on_failure)
        while self.changes:
            changes = self._take()
            try:
                if changes[0].clear and self._clearable is not None:
                    self._clearable.clear().add_done_callback(partial(_done_future, done, changes[0]))
                elif self._batches is None:
                    (change,) = changes
                    applied = self._store.apply(change.put, change.evict, change.snapshot)
                    applied.add_done_callback(partial(_done_future, done, change))
                else:
                    self._batches.apply_all(changes, done)
            except StoreError as error:  # the store is closed, or another process owns it
                for change in changes:
                    done(change, error)

    def _take(self) -> list[StoreChange]:
        """Remove the changes from the queue that the store gets together."""
        changes = [self.changes.popleft()]
        if self._batches is not None and not changes[0].clear:
            while self.changes and not self.changes[0].clear:
                changes.append(self.changes.popleft())
        return changes


def _done_future(done: partial[None], change: StoreChange, applied: Future[None]) -> None:
    done(change, applied.exception())


def _done(on_failure: OnFailure, change: StoreChange, error: BaseException | None) -> None:
    if error is not None:
        change.error = error
        on_failure(change)
