"""The values that go into the cache and come out of it."""

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
from knapcache.tags import MAX_ENTRY_TAGS, checked_tags

EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a call."""

    payload: bytes
    model: str = ""
    """The model that answered; empty: the requested one."""
    usage: Mapping[str, Any] | None = None
    """The provider's usage object."""
    seconds: float | None = None
    """How long the call took; None: as measured by the cache."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """A small JSON object, returned with the payload."""
    cacheable: bool = True
    """False: return it to the waiters, but do not store it (incomplete, an error, no-store)."""
    ttl: float | None = None
    """Seconds until it expires; None: the cache's default."""
    cost: float | None = None
    """The cost, if the caller knows it better than the meter."""
    tier: str | None = None
    """The provider's `service_tier`, which has its own prices, or "batch"; None: as `usage` says, if it does."""

    tags: tuple[str, ...] = ()
    """Names by which entries are purged; they are not part of the key (`tags.py`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.payload, bytes) or not isinstance(self.model, str):
            kinds = f"{type(self.payload).__name__} and {type(self.model).__name__}"
            raise InvalidInput(f"payload must be bytes and model must be str, not {kinds}")
        if not isinstance(self.tier, (str, type(None))):
            raise InvalidInput(f"tier must be a str such as 'flex' or 'batch', or None, not {self.tier!r}")
        if self.seconds is not None:
            amount("seconds", self.seconds)
        if self.cost is not None:
            amount("cost", self.cost)
        if self.ttl is not None:
            amount("ttl", self.ttl)
        if self.tags:
            object.__setattr__(self, "tags", checked_tags(self.tags, MAX_ENTRY_TAGS))
        try:
            orjson.dumps(dict(self.meta))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"meta must be a mapping of JSON values: {error}") from None


class SimilarMatch(NamedTuple):
    """The entry that answered a request in another wording."""

    key: bytes
    """The entry's digest."""
    similarity: float
    """Cosine of the two questions."""
    bound: float
    """The certified share of wrong answers among those served so."""
    match_id: str
    """Identifies the match, for feedback."""


class Answer(NamedTuple):
    """The result of a request. A tuple, because creating a frozen dataclass took a tenth of a hit."""

    payload: bytes
    meta: Mapping[str, Any]
    outcome: Literal["hit", "miss", "coalesced", "bypass", "stale", "similar"]
    """hit: from the cache · miss: paid for · coalesced: paid for by a concurrent request · bypass: has no key ·
    stale: past its age, set by `exchange` only · similar: the answer to a question in another wording."""
    key: str
    """The key's digest in hex; empty on a bypass."""
    age: float
    """Seconds since it was paid for."""
    saved_usd: float | None
    """US dollars not spent because the answer came from the cache; None: its price is unknown."""
    model: str
    bill: Bill = Bill(None, 0.0, 0.0, "")
    """The cost when it was paid for."""
    size: int = 0
    """Bytes that its entry takes, or would take; 0: it may not be stored."""
    similar: SimilarMatch | None = None
    """Which entry answered, for the outcome "similar"."""


class Lookup(NamedTuple):
    """A request that was looked up: a hit, or what `settle` needs when the answer was paid for."""

    key: str
    """The key's digest in hex; empty: the request has no key."""
    hit: Answer | None = None
    bypass: str | None = None
    """Why the request has no key. It can be sent, but its answer is not stored."""
    request: KeyedRequest | None = None
    id: int = -1
    """Its id in the policy's table."""
    serial: int = -1
    """Serial of the entry that may be on disk; −1: there is none to read."""
    started: float = 0.0
    """Monotonic time."""
    arrived: float = 0.0
    """Unix time of the request."""
    completed: int = -1
    """Calls that single flight had completed when the lookup began."""

    def __repr__(self) -> str:
        return f"Lookup(key={self.key!r}, hit={self.hit!r}, bypass={self.bypass!r})"


class FetchOptions(NamedTuple):
    """How a request is served."""

    refresh: bool = False
    """Call in any case."""
    store: bool = True
    """Store the answer."""
    only_cached: bool = False
    """Do not call."""
    max_age: float | None = None
    """Seconds: older answers are not served."""


DEFAULT_OPTIONS = FetchOptions()
