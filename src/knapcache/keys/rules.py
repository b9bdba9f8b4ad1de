"""Which fields of a request are part of its key: all, known or not, except those listed here.

A field is listed when, by the provider's contract, the answer does not depend on it: it is about transport, the end
user, price, speed, or caching. Only fields at the top of the body are left out; the same name deeper down (a tool may
have an argument `user`) is part of the key. The exception are marks for the provider's prompt cache, which are left out
at their positions (`cache_marks.py`). When in doubt a field is part of the key: the worst result is a miss.

Some requests depend on the state of a conversation on the server; these have no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from knapcache.errors import InvalidInput
from knapcache.keys.cache_marks import MARK_FIELDS
from knapcache.model import Endpoint

EXCLUDED = {
    "stream": "transport: one entry serves both forms",
    "stream_options": "transport",
    "user": "end-user id, for the provider's abuse monitoring",
    "safety_identifier": "end-user id, newer name",
    "metadata": "labels for the provider's logs",
    "prompt_cache_key": "controls the provider's prompt cache",
    "prompt_cache_retention": "controls the provider's prompt cache",
    "prompt_cache_options": "controls the provider's prompt cache",
    "service_tier": "speed and price of the answer",
    "cache": "LiteLLM's cache control, for this cache",
}
"""Fields left out at every endpoint, and why. `store` is not listed: a response that the provider did not store cannot
be continued from."""

EXCLUDED_AT = {
    Endpoint.MESSAGES: {"cache_control": "controls the provider's prompt cache"},
    Endpoint.CHAT: {"cache_control": "the same, for gateways to Anthropic's models"},
}
"""Fields left out at one endpoint, and why."""

STATEFUL_FIELDS = {Endpoint.RESPONSES: ("conversation",), Endpoint.MESSAGES: ("container",)}
"""Fields that name mutable state on the server. `previous_response_id` is not one: a stored response does not
change."""

CROSS_ITEM_OPTIONS = ("late_chunking",)
"""Options of embeddings that make a vector depend on the other items: such a request has no keys."""

REQUIRED = frozenset({"model", "messages", "prompt", "input", "system", "instructions", "tools"})
"""Fields that cannot be left out."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Which fields of a body are not part of the key.

    include   names of the list above, or of marks, that are part of the key after all: Rules(include={"user"})
    exclude   further names at the top of a body that are not: Rules(exclude={"trace_id"})
    """

    include: Set[str] = frozenset()
    exclude: Set[str] = frozenset()
    _excluded: dict[Endpoint, frozenset[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        include, exclude = checked_names("include", self.include), checked_names("exclude", self.exclude)
        marks = {name for at in Endpoint for name in MARK_FIELDS.get(at, ())}
        known = {*EXCLUDED, *(name for more in EXCLUDED_AT.values() for name in more), *marks}
        if unknown := sorted(include - known):
            raise InvalidInput(
                f"include names {unknown[0]!r}, which is part of the key anyway; left out are {sorted(known)}"
            )
        if required := sorted(exclude & REQUIRED):
            raise InvalidInput(f"exclude names {required[0]!r}, which must be part of the key")
        if both := sorted(include & exclude):
            raise InvalidInput(f"{both[0]!r} is in include and in exclude")
        object.__setattr__(self, "include", include)
        object.__setattr__(self, "exclude", exclude)
        excluded = {at: frozenset({*EXCLUDED, *EXCLUDED_AT.get(at, ()), *exclude}) - include for at in Endpoint}
        object.__setattr__(self, "_excluded", excluded)

    def excluded(self, endpoint: Endpoint) -> frozenset[str]:
        """Return the fields at the top of a body that are not part of the key at an endpoint."""
        return self._excluded[endpoint]

    def excluded_marks(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Return the marks inside a body that are not part of the key at an endpoint."""
        return tuple(name for name in MARK_FIELDS.get(endpoint, ()) if name not in self.include)


def checked_names(what: str, names: Iterable[str]) -> frozenset[str]:
    """Return a set of field names, or raise InvalidInput."""
    found = [] if isinstance(names, str) else list(names)
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in found):
        raise InvalidInput(f"{what} must be a set of field names, not {names!r}")
    return frozenset(found)
