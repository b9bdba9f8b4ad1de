"""Checks of entries and keys that every store makes before it takes them."""

from __future__ import annotations

import math
from typing import Any

import orjson

from knapcache.errors import InvalidInput
from knapcache.store.base import KEY_BYTES, Entry

Fields = tuple[bytes, bytes, bytes]
"""Tenant, model and meta of an entry as bytes (`encode_fields`)."""


def validate_key(key: Any) -> bytes:
    """Return the key, or raise InvalidInput."""
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise InvalidInput(f"a key must be {KEY_BYTES} bytes, not {_type_and_length(key)}")
    return key


def validate_entry(entry: Entry, size: int) -> Entry:
    """Return the entry with its numbers as floats, or raise InvalidInput. `size` is what the store computed."""
    key, _, _, given, cost, seconds, created, expires, _, _, _ = entry
    validate_key(key)
    if given != size:
        raise InvalidInput(f"size must be {size}, as computed by entry_size(), not {given!r}")
    floats = type(cost) is type(seconds) is type(created) is float
    if expires is None and floats and 0.0 < cost < math.inf and 0.0 < seconds < math.inf and 0.0 < created < math.inf:
        return entry  # as it is: most are, and a copy takes ten times as long
    return entry._replace(
        cost=_number("cost", cost),
        seconds=_number("seconds", seconds),
        created=_number("created", created),
        expires=None if expires is None else _number("expires", expires),
    )


def encode_fields(entry: Entry) -> Fields:
    """Return tenant, model and meta as bytes, or raise InvalidInput."""
    try:
        meta = entry.meta
        return entry.tenant.encode(), entry.model.encode(), orjson.dumps(meta if type(meta) is dict else dict(meta))
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInput(f"tenant and model must be text and meta must be JSON: {error}") from None


def content_size(entry: Entry, fields: Fields | None = None) -> int:
    """Return the bytes of request, payload, tenant, model and meta together, or raise InvalidInput.

    fields   `encode_fields` of the entry, if it is known
    """
    request, payload = entry.request, entry.payload
    if not (isinstance(request, bytes) and isinstance(payload, bytes)):
        types = f"{_type_and_length(request)} and {_type_and_length(payload)}"
        raise InvalidInput(f"request and payload must be bytes, not {types}")
    tenant, model, meta = fields or encode_fields(entry)
    return len(request) + len(payload) + len(tenant) + len(model) + len(meta)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0.0):
        raise InvalidInput(f"{name} must be a finite number and not negative, not {value!r}")
    return number + 0.0  # −0.0 does not survive every format


def _type_and_length(value: Any) -> str:
    """Describe a value without its content: requests and answers do not belong in error messages."""
    size = f" of length {len(value)}" if hasattr(value, "__len__") else ""
    return f"{type(value).__name__}{size}"
