"""Logs of records that all processes of a store append to and read in the same order. Bounded, not in the capacity.

    O:l:KIND     stream   records, the oldest first: n (name, may be empty), r (content) and s (scope, if it has one)
    O:l:KIND.i   hash     NAME → id in the stream, for records with a name
    O:l:KIND.s   zset     SCOPE:PLACE:ID of the records with a scope; all with the score 0, so in the order of the text
    O:l:KIND.c   hash     SCOPE → number of its records
    O:l          string   epoch: identity of the logs. Another one: the server lost them

A record replaces an older one with the same name. Beyond the limit, records without a scope are removed first, then the
oldest one of the scope that has the most. So no scope displaces another's records within its share. The caller seals
the contents (`sealer`). All keys have one hash tag, so a log is on one node of a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from knapcache.store.redis.layout import owner_tag
from knapcache.store.redis.membership import Membership
from knapcache.store.redis.scripts import APPEND

MAX_APPENDED = 500
"""Records that one script appends. The server runs no other command meanwhile."""
NO_RECORD = b""


class LogChange(NamedTuple):
    """A record to append."""

    name: bytes
    """Empty: the record replaces none."""
    record: bytes
    """Its content; empty: the record with this name is only removed."""
    scope: bytes = b""
    """ASCII, without a colon. Empty: it has none."""


class RecordLogs:
    """The logs of a store. Every method may raise StoreError: the server does not answer, or refuses."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        self.sealer = member.sealer
        self._epoch = owner_tag(member.address.prefix) + b":l"

    def append(self, kind: str, changes: Sequence[LogChange], limit: int) -> None:
        """Append records. At most `limit` records of a kind are kept."""
        stream = self._stream(kind)
        for begin in range(0, len(changes), MAX_APPENDED):
            arguments = [part for change in changes[begin : begin + MAX_APPENDED] for part in change]
            keys = [stream, stream + b".i", self._epoch, stream + b".s", stream + b".c"]
            self._member.attached_server().run(APPEND, keys, os.urandom(8).hex(), limit, *arguments)

    def epoch(self) -> str:
        """Return the identity of the logs; empty if nothing was appended yet."""
        found = self._member.attached_server().command(self._epoch, "GET", self._epoch)
        return str(found or b"", "ascii", "replace")

    def read(self, kind: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Return id and content of the records after an id; empty: after none."""
        stream = self._stream(kind)
        begin = f"({after}" if after else "-"
        found: list[Any] = self._member.attached_server().command(stream, "XRANGE", stream, begin, "+", "COUNT", limit)
        return [(str(number, "ascii"), fields.get(b"r", b"")) for number, fields in found]

    def count(self, kind: str) -> int:
        """Return how many records a log has."""
        stream = self._stream(kind)
        return int(self._member.attached_server().command(stream, "XLEN", stream))

    def _stream(self, kind: str) -> bytes:
        return self._epoch + b":" + kind.encode()
