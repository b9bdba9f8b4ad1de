"""Fair shares of a bounded list: when it is full, the scope with the most items loses its oldest one.

So with a limit of n items and k scopes, a scope with at most n/k items loses none of them, whatever the others add.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairShares(Generic[T]):
    """The items of each scope, the oldest first."""

    def __init__(self) -> None:
        self._scopes: dict[str, OrderedDict[T, None]] = {}
        self._where: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._where)

    def add(self, scope: str, item: T) -> None:
        """Add an item as the newest of its scope. It must not be listed yet."""
        self._scopes.setdefault(scope, OrderedDict())[item] = None
        self._where[item] = scope

    def remove(self, item: T) -> None:
        """Remove an item. It must be listed."""
        scope = self._where.pop(item)
        items = self._scopes[scope]
        del items[item]
        if not items:
            del self._scopes[scope]

    def scope(self, item: T) -> str:
        """Return the scope of an item."""
        return self._where[item]

    def excess(self) -> T:
        """Return the item to remove from a full list: the oldest one of the scope that has the most."""
        largest = max(self._scopes.values(), key=len)
        return next(iter(largest))

    def items(self) -> Iterable[T]:
        """Return all items."""
        return self._where.keys()
