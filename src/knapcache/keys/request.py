"""Requests with and without keys: the records that cross layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from knapcache.keys.system_prompt import system_digest
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
    body: Mapping[str, Any] | None = None
    """The parsed body, which must not be changed; None for an input of embeddings and for a function call."""

    @property
    def system(self) -> str:
        """The digest of the system prompt; empty if it has none. Computed when it is read: a hit does not need it."""
        return "" if self.body is None else system_digest(self.body)


class UnkeyedRequest(NamedTuple):
    """A request that has no key. It can be sent, but its answer is not stored."""

    endpoint: Endpoint
    tenant: str
    reason: str
