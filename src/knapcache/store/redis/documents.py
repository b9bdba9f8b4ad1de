"""Small documents that the processes of a store leave for each other: sealed, with a life time, not in the capacity.

    O:d:KIND:NAME   string   seal and content of a document; the server removes it when its time is over
    O:d:KIND        zset     names of the documents of a kind, by the time at which they end

A kind has at most `limit` documents: `put` removes those that end first. The life time is the server's. The times in
the zset are the writer's, and only decide what is removed first and when a name without a document is forgotten.

A document that is too large, or was not sealed by a process of this store, is ignored and counted.
"""

from __future__ import annotations

import re
import time
from collections import Counter

from knapcache.errors import InvalidInput
from knapcache.store.redis.layout import owner_tag
from knapcache.store.redis.membership import Membership

MAX_DOCUMENT = 256 << 10
"""Bytes of a document. docs/reference/redis-store.md says how many bytes those of the proxies take."""
FORGET_SECONDS = 86_400.0
"""How long the name of a document that has ended is listed. It is longer than the clocks of machines differ."""
_SEAL_BYTES = 16
_OVERHEAD = 1024
"""Bytes of the seal and of an encryption, at most."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Documents:
    """The documents of a store. Every method may raise StoreError: the server does not answer, or refuses."""

    def __init__(self, member: Membership, counters: Counter[str]) -> None:
        self._member, self._counters = member, counters
        self._tag = owner_tag(member.address.prefix) + b":d:"

    def put(self, kind: str, name: str, content: bytes, seconds: float, *, limit: int) -> None:
        """Store a document for `seconds`. It replaces one of the same name. InvalidInput if it is too large."""
        if len(content) > MAX_DOCUMENT:
            raise InvalidInput(f"a document must have at most {MAX_DOCUMENT} bytes, not {len(content)}")
        index, key = self._keys(kind, name)
        value = b"".join(self._member.sealer.protect(_context(kind, name), content))
        command = self._member.attached_server().command
        command(key, "SET", key, value, "PX", max(1, int(seconds * 1000)))
        now = time.time()
        if command(index, "ZADD", index, now + seconds, name):  # a new name
            command(index, "ZREMRANGEBYSCORE", index, "-inf", now - FORGET_SECONDS)
            for old in command(index, "ZRANGE", index, 0, -limit - 1):
                self._remove(kind, str(old, "ascii", "replace"))

    def get(self, kind: str, name: str) -> bytes | None:
        """Return a document; None if there is none, or if it is damaged."""
        _, key = self._keys(kind, name)
        # Not GET: a value of another program can be of any size.
        value = self._member.attached_server().command(key, "GETRANGE", key, 0, MAX_DOCUMENT + _OVERHEAD)
        if not value:
            return None
        content = None
        if len(value) <= MAX_DOCUMENT + _OVERHEAD:
            content = self._member.sealer.reveal(_context(kind, name), value[:_SEAL_BYTES], value[_SEAL_BYTES:])
        if content is None or len(content) > MAX_DOCUMENT:
            self._counters["damaged_documents"] += 1
            return None
        return content

    def ends(self, kind: str, limit: int) -> dict[str, float]:
        """Return the time at which each document of a kind ends, by name: at most `limit`, those that end last first.

        `put` changes it. A document may have ended before.
        """
        index, _ = self._keys(kind, "-")
        found = self._member.attached_server().command(
            index, "ZREVRANGE", index, 0, limit - 1, "WITHSCORES", withscores=True
        )
        texts = ((str(name, "ascii", "replace"), float(end)) for name, end in found)
        return {name: end for name, end in texts if _NAME.fullmatch(name)}

    def remove(self, kind: str, name: str) -> None:
        """Remove a document, if there is one."""
        self._keys(kind, name)
        self._remove(kind, name)

    def _remove(self, kind: str, name: str) -> None:
        index, key = self._tag + kind.encode(), self._tag + f"{kind}:{name}".encode()
        self._member.attached_server().command(key, "UNLINK", key)
        self._member.attached_server().command(index, "ZREM", index, name)

    def _keys(self, kind: str, name: str) -> tuple[bytes, bytes]:
        if not _NAME.fullmatch(kind) or not _NAME.fullmatch(name):
            raise InvalidInput("kind and name of a document must be 1 to 64 letters, digits, _ and -")
        return self._tag + kind.encode(), self._tag + f"{kind}:{name}".encode()


def _context(kind: str, name: str) -> bytes:
    return f"document {kind}:{name}".encode()
