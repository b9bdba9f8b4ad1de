"""Tags: names that callers give to answers, so that the entries can be purged together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from knapcache.errors import InvalidInput

MAX_TAGS = 16
"""Tags that a request has, and tags that a route has."""
MAX_ENTRY_TAGS = 2 * MAX_TAGS
TAG = re.compile(r"[A-Za-z0-9._:@/-]{1,64}")
ALLOWED_TAGS = f"at most {MAX_TAGS} tags of 1 to 64 letters, digits and . _ : @ / -"


def checked_tags(tags: Any, limit: int = MAX_TAGS) -> tuple[str, ...]:
    """Return one tag, or several, sorted and without repetitions; InvalidInput if one is not allowed."""
    if isinstance(tags, str):
        tags = (tags,)
    if not isinstance(tags, Iterable):
        raise InvalidInput(f"tags must be a list of {ALLOWED_TAGS}, not {type(tags).__name__}")
    found = {tag if isinstance(tag, str) and TAG.fullmatch(tag) else _refused(tag) for tag in tags}
    if len(found) > limit:
        raise InvalidInput(f"{len(found)} tags were given; allowed are {ALLOWED_TAGS}")
    return tuple(sorted(found))


def parse_tags(text: str) -> tuple[str, ...]:
    """Return the tags in the value of a header, which separates them by commas; InvalidInput as of `checked_tags`."""
    return checked_tags([tag for part in text.split(",") if (tag := part.strip())])


def are_tags(text: str) -> bool:
    """Return whether the value of a header is a list of tags, or empty."""
    try:
        parse_tags(text)
    except InvalidInput:
        return False
    return True


def _refused(tag: Any) -> str:
    raise InvalidInput(f"{str(tag)[:80]!r} is not a tag; allowed are {ALLOWED_TAGS}")
