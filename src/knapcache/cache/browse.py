"""Entries for people: pages of the table, what a purge would remove, and the nearest entry of a request.

Nothing here counts as a request, and nothing runs on an event loop: it may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from knapcache.cache.async_reads import AsyncReads
from knapcache.cache.breaker import CLOSED
from knapcache.cache.coordinator import Coordinator
from knapcache.cache.entries import columns, page, purge_preview, rows_of
from knapcache.cache.key_history import KeyRecord
from knapcache.cache.options import checked_digest
from knapcache.cache.outlines import Coverage, NearestRequest, OtherRequests, OutlineIndex
from knapcache.cache.purging import PurgeConditions
from knapcache.keys.outline import read_canonical
from knapcache.store.base import Clock, Entry


class Comparison(NamedTuple):
    """The result of a search for the nearest request."""

    nearest: NearestRequest | None
    stored: bool
    """Whether its answer is still stored."""
    coverage: Coverage


class EntryBrowser:
    """Reads the entries of one cache, in the owner process or in a reader."""

    def __init__(self, coordinator: Coordinator, clock: Clock, reads: AsyncReads) -> None:
        self._coordinator, self._clock, self._reads = coordinator, clock, reads
        self.outlines = OutlineIndex()

    def page(self, *, search: str = "", words: bool = False, **conditions: Any) -> dict[str, Any]:
        """Return `entries.page`, with the `endpoint` and the first `words` of the request in every row.

        words: also search for the text in the first words. `searched` is the number of entries whose words were read.
        """
        table = self._coordinator.role.entries()
        matching, searched = None, len(table.keys)
        if words and search:
            searched = self.outlines.read(table, self._peek).read
            matching = self.outlines.containing(table, search.lower())
        found = page(table, self._clock(), search=search, matching=matching, **conditions)
        self._add_names(found["rows"])
        return {**found, "entries": len(table.keys), "searched": searched}

    def entry(self, key: str | bytes) -> dict[str, Any] | None:
        """Return one row, with `created`, `request` and `payload` as bytes, and `meta`; None if there is no entry."""
        found = self._coordinator.role.entry(checked_digest(key) or b"")
        if found is None:
            return None
        table, entry = found
        (row,) = rows_of(table, columns(table, self._clock()), [0])
        stored = {"created": entry.created, "request": entry.request, "payload": entry.payload}
        return {**row, **stored, "meta": entry.meta.get("meta", {})}

    def purge_preview(self, conditions: PurgeConditions) -> dict[str, Any]:
        """Return `entries.purge_preview`, with names in its rows."""
        self._coordinator.maintain(sweep=False)  # collects what other processes have handed over
        found = purge_preview(self._coordinator.role.entries(), self._clock(), conditions)
        self._add_names(found["rows"])
        return found

    def records(self, key: bytes) -> tuple[list[KeyRecord], float]:
        """Return what became of a key, newest first, and the Unix time since when that is recorded."""
        return self._coordinator.role.records(key)

    def request(self, key: bytes) -> bytes | None:
        """Return the canonical request of a key, if its answer is stored or was paid for recently."""
        return self._coordinator.role.request(key)

    def compare(self, canonical: bytes, before: float, tenant: str | None = None) -> Comparison:
        """Return the request nearest to another one, among those whose answers were fetched before some time.

        Compared are the entries, and requests of recently settled answers: the nearest one may have been evicted since.
        tenant: requests of this one only.
        """
        table = self._coordinator.role.entries()
        coverage = self.outlines.read(table, self._peek)
        request = read_canonical(canonical)
        if request is None:
            return Comparison(None, False, coverage)
        allowed = table.records["created"] < before
        if tenant is not None:
            allowed &= table.records["tenant"] == (table.tenants.index(tenant) if tenant in table.tenants else -1)
        stored = set(table.keys)
        settled = {key: found for key, found in self._settled(before, tenant) if key not in stored}
        others = OtherRequests(
            keys=[table.keys[k] for k in np.flatnonzero(allowed).tolist()] + list(settled),
            created=np.append(table.records["created"][allowed], [created for created, _ in settled.values()]),
            canonical=lambda key: settled[key][1] if key in settled else self._stored_request(key),
        )
        nearest = self.outlines.nearest(request, others)
        return Comparison(nearest, nearest is not None and nearest.key in stored, coverage)

    def _settled(self, before: float, tenant: str | None) -> Iterator[tuple[bytes, tuple[float, bytes]]]:
        """Yield key, time and canonical request of recently settled answers, those before some time."""
        for key, (created, canonical) in self._coordinator.role.settled().items():
            parts = read_canonical(canonical) if tenant is not None and created < before else None
            if created < before and (tenant is None or (parts is not None and parts.namespace == tenant)):
                self.outlines.add(key, canonical)
                yield key, (created, canonical)

    def _stored_request(self, key: bytes) -> bytes | None:
        entry = self._peek(key)
        return None if entry is None else entry.request

    def _add_names(self, rows: list[dict[str, Any]]) -> None:
        found = self.outlines.get((bytes.fromhex(row["key"]) for row in rows), self._peek)
        for row in rows:
            outline = found.get(bytes.fromhex(row["key"]))
            row["endpoint"], row["words"] = (outline.kind, outline.words) if outline else ("", "")

    def _peek(self, key: bytes) -> Entry | None:
        """Read an entry, unless reads of the disk fail at the moment: then names are missing, and the table is not."""
        return self._coordinator.store.peek(key) if self._reads.breaker.state == CLOSED else None
