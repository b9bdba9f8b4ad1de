"""Questions that any process of a store asks its owner: to purge, and what it remembers of keys.

A question is a JSON object with `ask` and its arguments, a reply a JSON object with `found` or `error`. A reply that
cannot be read is as none: purging then raises StoreError, and the rest returns nothing.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Protocol

import orjson

from knapcache.cache.key_history import KeyRecord
from knapcache.errors import KnapcacheError, StoreError
from knapcache.store.base import NetworkStore

MAX_SETTLED_BYTES = 512 << 10
"""Bytes of canonical requests in one reply, the newest ones."""


class Answering(Protocol):
    """The owner, as it replies."""

    def purge(self, key: bytes | None, model: str | None, tenant: str | None, older_than: float | None) -> int:
        """Remove the entries that meet every condition given. Return how many."""

    def records(self, key: bytes) -> tuple[list[KeyRecord], float]:
        """Return what became of a key, newest first, and since when that is recorded."""

    def request(self, key: bytes) -> bytes | None:
        """Return the canonical request of a key."""

    def settled(self) -> dict[bytes, tuple[float, bytes]]:
        """Return the times and canonical requests of answers that were admitted lately, by key."""


def ask_purge(
    store: NetworkStore, key: bytes | None, model: str | None, tenant: str | None, older_than: float | None
) -> int:
    """Let the owner purge. Return how many entries it removed; StoreError if it did not."""
    conditions = {"model": model, "tenant": tenant, "older_than": older_than}
    found = _ask(store, "purge", key=None if key is None else key.hex(), **conditions)
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
    """Return the times and canonical requests of answers that were admitted lately, by key."""
    try:
        rows = _ask(store, "settled")
        return {bytes.fromhex(key): (float(time), base64.b64decode(request)) for key, time, request in rows}
    except (StoreError, TypeError, ValueError):
        return {}


def _ask(store: NetworkStore, question: str, **arguments: Any) -> Any:
    try:
        reply = orjson.loads(store.ask(orjson.dumps({"ask": question, **arguments})))
        error = reply.get("error")
    except (ValueError, AttributeError):
        raise StoreError("the owner of the store sent a reply that cannot be read") from None
    if error is not None:
        raise StoreError(f"the owner of the store: {error}")
    return reply.get("found")


def reply_to(owner: Answering, question: bytes) -> bytes:
    """Return the reply to a question."""
    try:
        return orjson.dumps({"found": _found(owner, orjson.loads(question))})
    except KnapcacheError as error:
        return orjson.dumps({"error": str(error)})
    except (ValueError, TypeError, LookupError):
        return orjson.dumps({"error": "the question cannot be read; is another version of knapcache running?"})


def _found(owner: Answering, question: dict[str, Any]) -> Any:
    key = None if question.get("key") is None else bytes.fromhex(question["key"])
    match question["ask"], key:
        case "purge", _:
            return owner.purge(key, question["model"], question["tenant"], question["older_than"])
        case "records", bytes():
            records, since = owner.records(key)
            return {"records": [record._asdict() for record in records], "since": since}
        case "request", bytes():
            request = owner.request(key)
            return None if request is None else base64.b64encode(request).decode()
        case "settled", None:
            return _newest(owner.settled())
    raise LookupError(question["ask"])


def _newest(settled: dict[bytes, tuple[float, bytes]]) -> list[tuple[str, float, str]]:
    rows, size = [], 0
    for key, (time, request) in sorted(settled.items(), key=lambda item: -item[1][0]):
        size += len(request)
        if size > MAX_SETTLED_BYTES:
            break
        rows.append((key.hex(), time, base64.b64encode(request).decode()))
    return rows
