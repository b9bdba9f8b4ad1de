"""What of a request is part of its key: every field, known to us or not, but for those listed here.

A field is listed when, by the provider's contract, the answer does not depend on it: it says how the answer travels,
who asks, what it costs or how fast it comes, or it speaks to a cache. Only fields at the top of the body are left out;
the same name deeper down (a tool may well have an argument `user`) counts. When in doubt a field counts: the worst that
can happen then is a miss.

Some requests depend on what they do not say, the state of a conversation on the server; these have no key at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from knapcache.errors import InvalidInput
from knapcache.model import Endpoint

EXCLUDED = {
    "stream": "how the answer travels: one entry serves both forms",
    "stream_options": "how the answer travels",
    "user": "who asks, for the provider's abuse monitoring",
    "safety_identifier": "who asks, the newer name",
    "metadata": "labels for the provider's own logs",
    "prompt_cache_key": "speaks to the provider's prompt cache",
    "prompt_cache_retention": "speaks to the provider's prompt cache",
    "service_tier": "how fast the answer comes and what it costs",
    "cache": "LiteLLM's cache control, which speaks to us",
}
"""Left out at every endpoint, and why. `store` is not here: an answer that was not stored cannot be continued from."""

EXCLUDED_AT = {Endpoint.MESSAGES: {"cache_control": "speaks to the provider's prompt cache"}}
"""Left out at one endpoint, and why."""

STATEFUL_FIELDS = {Endpoint.RESPONSES: ("conversation",), Endpoint.MESSAGES: ("container",)}
"""Names of things on the server that change from call to call. `previous_response_id` is none: what it names stays."""

CROSS_ITEM_OPTIONS = ("late_chunking",)
"""Options of embeddings that make a vector depend on the other items: such a request has no key per item."""

ALWAYS = frozenset({"model", "messages", "prompt", "input", "system", "instructions", "tools"})
"""The question itself."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Which fields at the top of a body do not count.

    include   names of the list above that shall count after all: Rules(include={"user"})
    exclude   further names that shall not: Rules(exclude={"trace_id"})
    """

    include: Set[str] = frozenset()
    exclude: Set[str] = frozenset()
    _excluded: dict[Endpoint, frozenset[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        include, exclude = names("include", self.include), names("exclude", self.exclude)
        known = {*EXCLUDED, *(name for more in EXCLUDED_AT.values() for name in more)}
        if unknown := sorted(include - known):
            raise InvalidInput(f"include names {unknown[0]!r}, which counts anyway; left out are {sorted(known)}")
        if question := sorted(exclude & ALWAYS):
            raise InvalidInput(f"exclude names {question[0]!r}, which is the question itself")
        if both := sorted(include & exclude):
            raise InvalidInput(f"{both[0]!r} is in include and in exclude")
        object.__setattr__(self, "include", include)
        object.__setattr__(self, "exclude", exclude)
        excluded = {at: frozenset({*EXCLUDED, *EXCLUDED_AT.get(at, ()), *exclude}) - include for at in Endpoint}
        object.__setattr__(self, "_excluded", excluded)

    def excluded(self, endpoint: Endpoint) -> frozenset[str]:
        """Fields that do not count at this endpoint."""
        return self._excluded[endpoint]


def names(what: str, given: Iterable[str]) -> frozenset[str]:
    """A set of field names, checked."""
    found = [given] if isinstance(given, str) else list(given)
    if isinstance(given, str) or not all(isinstance(name, str) and name for name in found):
        raise InvalidInput(f"{what} must be a set of field names, not {given!r}")
    return frozenset(found)
