"""The conditions of a purge. They go from the caller to the owner of the store as one value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from knapcache.cache.options import checked_digest
from knapcache.errors import InvalidInput
from knapcache.price.weights import amount
from knapcache.store.base import EntryInfo
from knapcache.tags import checked_tags

DIGEST_PREFIX = re.compile(r"[0-9a-f]{1,16}")
VERSION = r"-(?:\d{4}-\d\d-\d\d|\d{8}|\d{4})"
"""What providers append to the name of a model for a version of it, such as -2024-08-06, -20250929 or -0613."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeConditions:
    """Which entries are removed: those that meet every condition. Without conditions all."""

    key: bytes | None = None
    model: str | None = None
    """The model that answered, or its name without the date of a version."""
    tenant: str | None = None
    """A namespace."""
    older_than: float | None = None
    """Seconds since the answer was fetched."""
    tags: tuple[str, ...] | None = None
    """An entry needs one of them."""
    system: str | None = None
    """The first hex digits of the system prompt's digest (`keys/canonical.py`)."""

    def filter(self, now: float) -> Callable[[EntryInfo], bool]:
        """Return the conditions as a function of an entry's metadata. now: Unix time."""
        before = None if self.older_than is None else now - self.older_than
        tags = None if self.tags is None else frozenset(self.tags)
        is_model = None if self.model is None else model_filter(self.model)

        def matches(info: EntryInfo) -> bool:
            return (
                (self.key is None or info.key == self.key)
                and (self.tenant is None or info.tenant == self.tenant)
                and (is_model is None or is_model(info.model))
                and (before is None or info.created < before)
                and (tags is None or not tags.isdisjoint(info.meta.get("tags", ())))
                and (self.system is None or info.meta.get("system", "").startswith(self.system))
            )

        return matches

    def to_json(self) -> dict[str, Any]:
        """Return the conditions that are given, as JSON values. `purge_conditions` reads them."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.key is not None:
            given["key"] = self.key.hex()
        return {name: value for name, value in given.items() if value is not None}


ALL = PurgeConditions()


def model_filter(wanted: str) -> Callable[[str], bool]:
    """Return a function that says whether a model is the wanted one or a dated version of it.

    An entry has the name in the answer: a request for gpt-4o is answered by gpt-4o-2024-08-06.
    """
    pattern = re.compile(f"{re.escape(wanted)}(?:{VERSION})?")
    return lambda name: pattern.fullmatch(name) is not None


def purge_conditions(
    *,
    key: str | bytes | None = None,
    model: str | None = None,
    tenant: str | None = None,
    older_than: float | None = None,
    tags: Any = None,
    system: str | None = None,
) -> PurgeConditions:
    """Return checked conditions. InvalidInput for an empty list of tags, too: it must not mean all entries."""
    if tags is not None and not (tags := checked_tags(tags)):
        raise InvalidInput("no tag is given; a purge by tag needs at least one")
    if system is not None and not DIGEST_PREFIX.fullmatch(system := str(system).strip().lower()):
        raise InvalidInput(f"a digest of a system prompt is 16 hex digits, or the first ones of them, not {system!r}")
    return PurgeConditions(
        key=checked_digest(key),
        model=model,
        tenant=tenant,
        older_than=None if older_than is None else amount("older_than", older_than),
        tags=tags,
        system=system,
    )
