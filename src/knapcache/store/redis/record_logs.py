"""Logs of records that all processes of a store append to and read in the same order. Bounded, not in the capacity.

    O:l:KIND     stream   records, the oldest first: n (name, may be empty) and r (content)
    O:l:KIND.i   hash     NAME → id in the stream, for records with a name
    O:l          string   epoch: identity of the logs. Another one: the engine lost them

A record replaces an older one with the same name. The caller seals the contents (`sealer`). All keys have one hash tag,
so a log is on one node of a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from knapcache.store.redis.engine import Engine
from knapcache.store.redis.layout import owner_tag
from knapcache.store.redis.membership import Membership
from knapcache.store.redis.scripts import APPEND

MAX_APPENDED = 500
"""Records that one script appends. The engine runs no other command meanwhile."""
NO_RECORD = b""


class RecordLogs:
    """The logs of a store. Every method may raise StoreError: the engine does not answer, or refuses."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        self.sealer = member.sealer
        self._epoch = owner_tag(member.address.prefix) + b":l"

    def append(self, kind: str, records: Sequence[tuple[bytes, bytes]], limit: int) -> None:
        """Append names and contents. At most `limit` records of a kind are kept.

        An empty name: the record replaces none. An empty content: the record with this name is only removed.
        """
        stream = self._stream(kind)
        for begin in range(0, len(records), MAX_APPENDED):
            arguments = [part for record in records[begin : begin + MAX_APPENDED] for part in record]
            keys = [stream, stream + b".i", self._epoch]
            self._attached().run(APPEND, keys, os.urandom(8).hex(), limit, *arguments)

    def epoch(self) -> str:
        """Return the identity of the logs; empty if nothing was appended yet."""
        found = self._attached().command(self._epoch, "GET", self._epoch)
        return str(found or b"", "ascii", "replace")

    def read(self, kind: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Return id and content of the records after an id; empty: after none."""
        stream = self._stream(kind)
        begin = f"({after}" if after else "-"
        found: list[Any] = self._attached().command(stream, "XRANGE", stream, begin, "+", "COUNT", limit)
        return [(str(number, "ascii"), fields.get(b"r", b"")) for number, fields in found]

    def count(self, kind: str) -> int:
        """Return how many records a log has."""
        stream = self._stream(kind)
        return int(self._attached().command(stream, "XLEN", stream))

    def _stream(self, kind: str) -> bytes:
        return self._epoch + b":" + kind.encode()

    def _attached(self) -> Engine:
        self._member.attachment()  # StoreError if the store is closed or cannot be used
        return self._member.engine
