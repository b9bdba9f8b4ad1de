"""Who decides, and what has to be done now and then."""

from __future__ import annotations

from typing import Any

from knapcache.cache.books import Books
from knapcache.cache.ledger import Ledger
from knapcache.errors import StoreError
from knapcache.store.contract import Entry, Store
from knapcache.store.sqlite import SqliteStore


class Keeper:
    """Holds the store, and the books where this process owns it."""

    def __init__(
        self, store: Store | SqliteStore, policy: str, shadows: tuple[str, ...], ledger: Ledger, ids: int | None
    ) -> None:
        self.store = store
        self.books: Books | None = None
        self._ledger, self._policy = ledger, policy
        if not isinstance(store, SqliteStore) or store.owner:
            self.books = Books(store, policy, shadows, ledger, ids)

    def settle(self, i: int, entry: Entry) -> bool:
        """An answer was paid for. Is it kept, or handed to whoever decides?"""
        if self.books is not None:
            return self.books.settle(i, entry)
        assert isinstance(self.store, SqliteStore)
        try:
            self.store.hand_over(entry)
        except StoreError:
            self._ledger.count("store_faults")
            return False
        self._ledger.count("handed_over")
        return True

    def stats(self) -> dict[str, Any]:
        """What there is now."""
        totals = self.store.totals()
        books = self.books
        return {
            "entries": totals.entries,
            "bytes": totals.size,
            "capacity": self.store.capacity,
            "owner": books is not None,
            "policy": self._policy,
            "oracle_calls": books.policy.oracle_calls if books else 0,
            "shadows": dict(books.shadows.spent) if books else {},
            "store": dict(self.store.counters()),
        }

    def check(self) -> None:
        """Policy, ids and store agree."""
        if self.books is not None:
            self.books.check()
        self.store.check()

    def close(self) -> None:
        """Let go."""
        self.store.close()
