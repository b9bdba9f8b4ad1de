"""Requests of any process of a store to its owner: to purge, and for its records and counts of keys.

A request to the owner is a JSON object with `ask` and its arguments, a reply a JSON object with `found` or
`error`. Without a reply that can be read, purging raises StoreError, and the other functions return nothing. Those are
called for pages that people look at, so they wait for a short time only.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import orjson

from knapcache.cache.entry_index import EntryTable
from knapcache.cache.key_history import KeyRecord
from knapcache.cache.purging import PurgeConditions, purge_conditions
from knapcache.errors import KnapcacheError, StoreError
from knapcache.store.base import NetworkStore

PURGE_SECONDS, READ_SECONDS = 30.0, 2.0
"""How long a reply is waited for. The owner purges 100,000 entries in some seconds."""
MAX_SETTLED_BYTES = 512 << 10
"""Bytes of canonical requests in one reply, the newest ones."""
MAX_COUNTS = 50_000
"""Entries whose counts are in one reply, those with the most requests."""
KEY_PREFIX = 8
"""Bytes of a key in a reply with counts."""

_COUNT = struct.Struct(f"<{KEY_PREFIX}sI")


class RequestedOwner(Protocol):
    """The owner's handlers of requests from other processes."""

    def purge(self, conditions: PurgeConditions) -> int:
        """Remove the entries that meet every condition. Return how many."""

    def records(self, key: bytes) -> tuple[list[KeyRecord], float]:
        """Return what became of a key, newest first, and since when that is recorded."""

    def request(self, key: bytes) -> bytes | None:
        """Return the canonical request of a key."""

    def settled(self) -> dict[bytes, tuple[float, bytes]]:
        """Return the times and canonical requests of recently admitted answers, by key."""

    def entries(self) -> EntryTable:
        """Return the metadata of all entries."""


def ask_purge(store: NetworkStore, conditions: PurgeConditions) -> int:
    """Let the owner purge. Return how many entries it removed; StoreError if it did not."""
    # Not "purge", the request of 0.2.0: an owner of that version would ignore conditions that it does not know.
    found = _ask(store, "purge_where", PURGE_SECONDS, conditions=conditions.to_json())
    if not isinstance(found, int):
        raise StoreError("the owner of the store sent no number of purged entries")
    return found


def ask_records(store: NetworkStore, key: bytes) -> tuple[list[KeyRecord], float]:
    """Return what became of a key, newest first, and since when that is recorded."""
    try:
        found = _ask(store, "records", key=key.hex())
        return [KeyRecord(**fields) for fields in found["records"]], float(found["since"])
    except (StoreError, TypeError, LookupError, ValueError):
        return [], math.inf


def ask_request(store: NetworkStore, key: bytes) -> bytes | None:
    """Return the canonical request of a key, or None."""
    try:
        found = _ask(store, "request", key=key.hex())
        return None if found is None else base64.b64decode(found)
    except (StoreError, TypeError, ValueError):
        return None


def ask_settled(store: NetworkStore) -> dict[bytes, tuple[float, bytes]]:
    """Return the times and canonical requests of recently admitted answers, by key."""
    try:
        rows = _ask(store, "settled")
        return {bytes.fromhex(key): (float(time), base64.b64decode(request)) for key, time, request in rows}
    except (StoreError, TypeError, ValueError):
        return {}


def ask_request_counts(store: NetworkStore, keys: Iterable[bytes]) -> dict[bytes, float] | None:
    """Return how often each key was requested, 1 where the reply has no count; None without a reply."""
    try:
        packed = base64.b64decode(_ask(store, "counts"))
        counts = {prefix: float(count) for prefix, count in _COUNT.iter_unpack(packed)}
    except (StoreError, TypeError, ValueError, struct.error):
        return None
    return {key: counts.get(key[:KEY_PREFIX], 1.0) for key in keys}


def _ask(store: NetworkStore, name: str, seconds: float | None = None, **arguments: Any) -> Any:
    try:
        reply = orjson.loads(store.ask(orjson.dumps({"ask": name, **arguments}), seconds or READ_SECONDS))
        error = reply.get("error")
    except (ValueError, AttributeError):
        raise StoreError("the owner of the store sent a reply that cannot be read") from None
    if error is not None:
        raise StoreError(f"the owner of the store: {error}")
    return reply.get("found")


def reply_to(owner: RequestedOwner, content: bytes) -> bytes:
    """Return the reply to a request."""
    try:
        return orjson.dumps({"found": _found(owner, orjson.loads(content))})
    except KnapcacheError as error:
        return orjson.dumps({"error": str(error)})
    except (ValueError, TypeError, LookupError):
        return orjson.dumps({"error": "the request cannot be read; is another version of knapcache running?"})


def _found(owner: RequestedOwner, asked: dict[str, Any]) -> Any:
    key = None if asked.get("key") is None else bytes.fromhex(asked["key"])
    match asked["ask"], key:
        case "purge_where", None:
            return owner.purge(purge_conditions(**asked["conditions"]))
        case "records", bytes():
            records, since = owner.records(key)
            return {"records": [record._asdict() for record in records], "since": since}
        case "request", bytes():
            request = owner.request(key)
            return None if request is None else base64.b64encode(request).decode()
        case "settled", None:
            return _newest(owner.settled())
        case "counts", None:
            return base64.b64encode(_packed_counts(owner.entries())).decode()
    raise LookupError(asked["ask"])


def _packed_counts(table: EntryTable) -> bytes:
    """Return keys and counts of the entries with the most requests. One request is not worth a record."""
    order = np.argsort(-table.requests, kind="stable")[:MAX_COUNTS].tolist()
    counts = np.minimum(table.requests, 2**32 - 1).round().astype(np.int64).tolist()
    return b"".join(_COUNT.pack(table.keys[k][:KEY_PREFIX], counts[k]) for k in order if counts[k] > 1)


def _newest(settled: dict[bytes, tuple[float, bytes]]) -> list[tuple[str, float, str]]:
    rows, size = [], 0
    for key, (time, request) in sorted(settled.items(), key=lambda item: -item[1][0]):
        size += len(request)
        if size > MAX_SETTLED_BYTES:
            break
        rows.append((key.hex(), time, base64.b64encode(request).decode()))
    return rows
