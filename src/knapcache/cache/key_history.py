"""A bounded record of evictions, expiries, purges and rejections by key, to answer "why was this a miss?".

    records    the last MAX_RECORDS removals and rejections, 73 bytes each: 0.6 MB in all, allocated once
    requests   canonical requests of recently settled answers, at most MAX_REQUEST_BYTES together

A record is written where a decision is carried out: when an answer is settled, removed or refused, never on a hit. An
admitted answer takes 1 µs, each eviction and rejection about 10 µs, after the answer was sent. Both are in memory only,
and begin with the process. The caller of every method that writes holds the controller's lock.

The canonical request of an answer that was evicted, or not admitted, is in no store, so it is kept here for some time.
Processes that only read the store hand their answers over to the owner, so the owner has the requests of all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from knapcache.cache.entry_index import EntryIndex, request_count
from knapcache.cache.ids import IdTable
from knapcache.errors import CorruptState
from knapcache.kernel import Records
from knapcache.policy.base import Policy
from knapcache.store.base import Clock, Entry, EntryInfo

MAX_RECORDS = 8192
MAX_REQUEST_BYTES = 4 << 20
MAX_FOUND = 64
MAX_REQUEST = 256 << 10
"""Bytes of one canonical request that is kept."""
CAUSES = (
    "evicted", "over quota", "id reused", "at start", "not admitted", "too large", "store busy", "larger than quota",
    "expired", "lost", "not written", "purged", "replaced",
)  # fmt: skip
"""Why an entry is gone, or why an answer was not stored."""
NUMBERS = {cause: number for number, cause in enumerate(CAUSES)}
REJECTIONS = {
    "rejected_too_large": "too large",
    "rejected_store_busy": "store busy",
    "rejected_over_quota": "larger than quota",
}
"""Causes by the counters of the ledger."""
RECORD = np.dtype(
    [
        ("key", "u8"),  # the first eight bytes of the digest
        ("cause", "u1"),
        *((name, "f8") for name in ("time", "created", "size", "cost", "requests")),
        *((name, "f8") for name in ("rival_size", "rival_cost", "rival_requests")),
    ]
)


class KeyRecord(NamedTuple):
    """One eviction, expiry, purge or rejection of a key."""

    cause: str
    """One of CAUSES."""
    time: float
    """Unix time."""
    created: float
    """When the answer was stored; 0: not known."""
    size: float
    """Bytes; 0: not known."""
    cost: float
    requests: float
    """As the policy counts them."""
    rival_size: float
    """Of the answer that took its place; 0: there was none."""
    rival_cost: float
    rival_requests: float


class KeyHistory:
    """The record of one controller."""

    def __init__(self, policy: Policy, ids: IdTable, index: EntryIndex, clock: Clock) -> None:
        self._policy, self._ids, self._index, self._clock = policy, ids, index, clock
        self._resident = policy.rows["resident"]  # a view: looking it up each time takes longer than reading it
        self._began = clock()
        self.written = 0
        """Records so far; the last MAX_RECORDS are kept."""
        self._records: Records = np.zeros(MAX_RECORDS, RECORD)
        self._requests: OrderedDict[bytes, tuple[float, bytes, bool]] = OrderedDict()
        """A dict would search for its oldest key behind all that were removed."""
        self._request_bytes = 0

    # Writing.

    def note_evicted(self, cause: str, victims: Sequence[int], i: int, entry: Entry) -> None:
        """Record that entries were evicted for the answer of id i."""
        if not victims:
            return
        rival = entry.size, entry.cost, request_count(self._policy, i)
        for victim in victims:
            if victim != i:
                self._add(victim, cause, entry.created, request_count(self._policy, victim), rival)

    def note_settled(self, i: int, entry: Entry, cause: str | None, victims: Sequence[int] = ()) -> None:
        """Keep the request of an answer that was paid for. Record why it was not stored, and what it displaced."""
        self.note_evicted("evicted", victims, i, entry)
        if cause is not None:
            requests = request_count(self._policy, i)
            numbers = (0.0, float(entry.size), entry.cost, requests, 0.0, 0.0, 0.0)
            self._write(entry.key, cause, entry.created, *numbers)
        size = len(entry.request)
        if size > MAX_REQUEST or entry.key in self._requests:
            return
        while self._requests and self._request_bytes + size > MAX_REQUEST_BYTES:
            self._request_bytes -= len(self._requests.popitem(last=False)[1][1])
        self._requests[entry.key] = entry.created, entry.request, cause is None
        self._request_bytes += size

    def note_missing(self, i: int) -> None:
        """Record that the store does not have the entry of id i: it has expired, or it was lost."""
        expires, now = float(self._index.records["expires"][i]), self._clock()
        late = expires <= now
        self._add(i, "expired" if late else "lost", expires if late else now)

    def note_removed(self, cause: str, i: int, key: bytes | None = None) -> None:
        """Record that the entry of id i, if there is one, is removed now. key: if the id is another key's already."""
        if key is not None or self._resident[i]:
            self._add(i, cause, self._clock(), key=key)

    def note_dropped(self, entry: EntryInfo | int, now: float) -> None:
        """Record an entry that was not kept when the store was opened: its metadata, or its id."""
        expires = float(self._index.records["expires"][entry]) if isinstance(entry, int) else entry.expires
        late = expires is not None and expires <= now
        cause, time = ("expired", float(expires or now)) if late else ("at start", now)
        if isinstance(entry, int):
            self._add(entry, cause, time)
        else:
            self._write(entry.key, cause, time, entry.created, float(entry.size), entry.cost, 0.0, 0.0, 0.0, 0.0)

    def _add(
        self,
        i: int,
        cause: str,
        time: float,
        requests: float = 0.0,
        rival: tuple[float, float, float] = (0.0, 0.0, 0.0),
        key: bytes | None = None,
    ) -> None:
        record = self._index.records[i]
        size = float(self._policy.rows["entry_size"][i]) if key is None else 0.0
        created, cost = float(record["created"]), float(record["cost"])
        self._write(self._ids.key(i) if key is None else key, cause, time, created, size, cost, requests, *rival)

    def _write(self, key: bytes, cause: str, *numbers: float) -> None:
        self._records[self.written % MAX_RECORDS] = (prefix_of(key), NUMBERS[cause], *numbers)
        self.written += 1

    # Reading.

    @property
    def since(self) -> float:
        """Unix time from which on all removals are recorded."""
        if self.written <= MAX_RECORDS:
            return self._began
        return float(self._records["time"][self.written % MAX_RECORDS])

    def find(self, key: bytes) -> list[KeyRecord]:
        """Return the last MAX_FOUND records of a key, newest first."""
        positions = np.flatnonzero(self._records["key"][: self.written] == prefix_of(key))
        # The ring starts at the oldest record.
        order = np.argsort((positions - self.written) % MAX_RECORDS, kind="stable")[::-1][:MAX_FOUND]
        rows = [self._records[k].item() for k in positions[order]]
        return [KeyRecord(CAUSES[cause], *numbers) for _, cause, *numbers in rows]

    def request(self, key: bytes) -> bytes | None:
        """Return the canonical request of a recently settled answer, or None."""
        return self._requests.get(key, (0.0, None, False))[1]

    def settled(self) -> dict[bytes, tuple[float, bytes]]:
        """Return the times and canonical requests of recently admitted answers, by key."""
        found = dict(self._requests)  # at once: another thread may settle an answer
        return {key: (created, request) for key, (created, request, admitted) in found.items() if admitted}

    def check(self) -> None:
        """Raise CorruptState unless the requests have the counted bytes, within the limit."""
        derived = sum(len(request) for _, request, _ in self._requests.values())
        if derived != self._request_bytes or derived > MAX_REQUEST_BYTES:
            raise CorruptState(f"kept requests have {derived} bytes; counted were {self._request_bytes}")


def prefix_of(key: bytes) -> int:
    """Return the first eight bytes of a digest as a number. Two keys of a full record collide once in 10^11 records."""
    return int.from_bytes(key[:8], "little")
