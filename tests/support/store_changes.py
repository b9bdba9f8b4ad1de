"""The law of changes to a store: after a crash it holds the result of a prefix of them, in their order.

There is one exception. A change is one transaction, unless it has more evictions than the log can take at once. Then
the first of its evictions precede it, in transactions of their own. A crash in between leaves the prefix before that
change, without the entries that it evicts first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from knapcache.store.sqlite.layout import DiskLayout, operation_frames, snapshot_frames

CLEAR = -1
"""In place of a name: all entries are removed, and nothing is put."""
MAX_CONTENT = 32_000
"""Most bytes of an entry, with its request and its metadata."""

State = tuple[dict[int, int], bytes | None]
"""The versions of the entries by name, and the snapshot."""


class Change(NamedTuple):
    """A put of a version, which is the snapshot, too, and evictions."""

    name: int
    version: int
    evicted: Sequence[int]

    def may_be_split(self, size_limit: int) -> bool:
        """Return whether its evictions may precede it. The previous version of its entry is one more."""
        if self.name == CLEAR:
            return False
        frames = operation_frames() * (len(self.evicted) + 1) + operation_frames(MAX_CONTENT) + snapshot_frames(20)
        return frames > DiskLayout.of(size_limit).frames_per_transaction


def prefixes_to(found: State, before: State, changes: Sequence[Change], size_limit: int) -> list[int]:
    """Return the lengths of the prefixes of the changes that lead from the state before to what was found."""
    entries, snapshot = before
    prefixes = []
    for number in range(len(changes) + 1):
        if found == (entries, snapshot):
            prefixes.append(number)
        if number == len(changes):
            break
        name, version, evicted = changes[number]
        if found[1] == snapshot and changes[number].may_be_split(size_limit):
            rest = dict(entries)
            for other in evicted:
                del rest[other]
                if found[0] == rest:
                    prefixes.append(number)
        if name == CLEAR:
            entries = {}
            continue
        entries = {other: v for other, v in entries.items() if other not in evicted} | {name: version}
        snapshot = b"%d" % version
    return prefixes
