"""Who decides, and what has to be done now and then."""

from __future__ import annotations

from typing import Any

from knapcache.cache.books import Books
from knapcache.cache.ledger import Ledger
from knapcache.errors import NotOwner, StoreError
from knapcache.price.weights import amount
from knapcache.store.contract import Clock, Entry, Store, matcher
from knapcache.store.sqlite import SqliteStore

AT_ONCE = 256
"""Keys that one change removes: a transaction of the store's."""


class Keeper:
    """Holds the store, and the books where this process owns it."""

    def __init__(
        self,
        store: Store | SqliteStore,
        policy: str,
        shadows: tuple[str, ...],
        ledger: Ledger,
        ids: int | None,
        clock: Clock,
    ) -> None:
        self.store = store
        self.books: Books | None = None
        self._ledger, self._policy, self._clock = ledger, policy, clock
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

    def purge(self, key: bytes | None, model: str | None, tenant: str | None, older_than: float | None) -> int:
        """Remove what meets every condition given."""
        if self.books is None:
            raise NotOwner("another process owns the file: purge there")
        before = None if older_than is None else self._clock() - amount("older_than", older_than)
        meets = matcher(tenant, model, before)
        keys = [head.key for head in self.store.heads() if (key is None or head.key == key) and meets(head)]
        for k in range(0, len(keys), AT_ONCE):
            self.books.forget(keys[k : k + AT_ONCE])
        return len(keys)

    def tend(self) -> None:
        """What has to be done now and then."""
        if self.books is not None:
            self.books.expire()

    def close(self) -> None:
        """Let go."""
        self.store.close()
