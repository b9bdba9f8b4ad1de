"""The queue of decisions on their way to the store.

The admission controller appends a StoreChange for each decision, under its `deciding` lock. `drain` takes the changes
out in that order and applies each, under the `applying` lock. So the store sees decisions in the order in which they
were taken, and Σ sizes never exceeds the capacity in between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from knapcache.errors import StoreError
from knapcache.store.base import Entry, Store

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
        self._store = store
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
            change = self.changes.popleft()
            try:
                applied = self._store.apply(change.put, change.evict, change.snapshot)
            except StoreError as error:  # the store is closed, or another process owns it
                change.error = error
                on_failure(change)
            else:
                applied.add_done_callback(partial(_check_applied, change, on_failure))


def _check_applied(change: StoreChange, on_failure: OnFailure, applied: Future[None]) -> None:
    change.error = applied.exception()
    if change.error is not None:
        on_failure(change)
