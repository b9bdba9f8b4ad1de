"""What goes into the cache and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import orjson

from knapcache.errors import InvalidInput
from knapcache.keys.request import KeyedRequest
from knapcache.price.meter import Bill
from knapcache.price.weights import amount

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reply:
    """What a call brought home."""

    payload: bytes
    model: str = ""
    """Who answered; the model that was asked for, where empty."""
    usage: Mapping[str, Any] | None = None
    """The provider's own usage object."""
    seconds: float | None = None
    """How long it took; None: the cache's own measure, around the call."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Small, JSON, and given back with the payload."""
    cacheable: bool = True
    """False: give it to those who wait, and keep it nowhere (incomplete, an error, no-store)."""
    ttl: float | None = None
    """Seconds until it expires; None: the cache's own."""
    cost: float | None = None
    """What it cost, where the caller knows better than the meter."""
    tier: str | None = None
    """The provider's `service_tier`, which has prices of its own, or "batch"; None: as `usage` says, if it does."""

    def __post_init__(self) -> None:
        if not isinstance(self.payload, bytes) or not isinstance(self.model, str):
            given = f"{type(self.payload).__name__} and {type(self.model).__name__}"
            raise InvalidInput(f"payload must be bytes and model text, not {given}")
        if not isinstance(self.tier, (str, type(None))):
            raise InvalidInput(f"tier must be text, such as 'flex' or 'batch', or None, not {self.tier!r}")
        for what, number in (("seconds", self.seconds), ("cost", self.cost), ("ttl", self.ttl)):
            if number is not None:
                amount(what, number)
        try:
            orjson.dumps(dict(self.meta))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"meta must be a mapping that JSON can say: {error}") from None


class Answer(NamedTuple):
    """What a request gets. A tuple: of a frozen dataclass the making alone took a tenth of a hit."""

    payload: bytes
    meta: Mapping[str, Any]
    outcome: Literal["hit", "miss", "coalesced", "bypass", "stale"]
    """Stored; fetched by this caller; fetched by another caller; without a key. Only `exchange` sets `stale`."""
    key: str
    """The key's digest in hex; empty on a bypass."""
    age: float
    """Seconds since it was paid for."""
    saved_usd: float | None
    """Dollars not spent because it was there; None where nobody knows its price."""
    model: str
    bill: Bill = Bill(None, 0.0, 0.0, "")
    """What it cost when it was paid for."""
    size: int = 0
    """Room it takes in the cache, or would take; 0 where it may not be kept."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A request that was looked up: a hit, or what `settle` needs to know once the answer was paid for."""

    key: str
    """The key's digest in hex; empty where there is none."""
    hit: Answer | None = None
    bypass: str | None = None
    """Why the request has no key; it can be sent, and is not kept."""
    request: KeyedRequest | None = field(default=None, repr=False)
    id: int = field(default=-1, repr=False)
    """Its number in the policy's table."""
    started: float = field(default=0.0, repr=False)
    """By the monotonic clock."""
    ended: int = field(default=-1, repr=False)
    """How many calls had ended by then, of all keys."""
