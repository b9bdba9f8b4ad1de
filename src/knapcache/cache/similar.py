"""Entries and counts for the semantic tier. Nothing here counts as a request, and all of it may block."""

from __future__ import annotations

from collections.abc import Iterable

from knapcache.cache.coordinator import Coordinator
from knapcache.errors import StoreError
from knapcache.store.base import Entry


class SimilarEntries:
    """Entries by key, and the counts of the policy, in the owner process or in a reader."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def entry(self, key: bytes) -> Entry | None:
        """Return an entry; None if there is none, if it has expired, or if the store cannot be read."""
        try:
            return self._coordinator.store.get(key)
        except StoreError:
            return None

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return the keys that have no entry. Raises StoreError if the store cannot be read."""
        stored = {info.key for info in self._coordinator.store.scan()}
        return [key for key in keys if key not in stored]

    def inherit(self, key: bytes, other: bytes) -> None:
        """Let a request that is not stored start with the request count of another one, which means the same."""
        self._coordinator.role.inherit(key, other)
