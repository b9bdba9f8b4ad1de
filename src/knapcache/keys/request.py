"""Requests with and without keys: the records that cross layers."""

from __future__ import annotations

from typing import NamedTuple

from knapcache.model import Endpoint


class Key(NamedTuple):
    """The key of an entry."""

    digest: bytes
    """32 bytes."""
    canonical: bytes
    """The canonical request, which was digested. Hits compare it."""


class KeyedRequest(NamedTuple):
    """A request with its key."""

    endpoint: Endpoint | None
    """None: the call of a plain function."""
    key: Key
    tenant: str
    model: str
    """The requested model."""
    system: str = ""
    """The digest of the system prompt (`canonical.py`); empty if it has none."""


class UnkeyedRequest(NamedTuple):
    """A request that has no key. It can be sent, but its answer is not stored."""

    endpoint: Endpoint
    tenant: str
    reason: str
