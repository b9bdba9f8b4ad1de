"""What the formats share: JSON that is an object, an error in place of an answer, text in pieces, deltas added up.

    whole = Σ deltas        text and lists are appended, objects added field by field, list items that carry an `index`
                            added to the one with that index; names, roles and numbers are the latest that was said

A null adds nothing, and is what a field is as long as nothing else was said about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from knapcache.errors import Incomplete
from knapcache.wire.sse import Event

PIECE = 24
"""Characters, about: a plain answer that is asked for as a stream comes in pieces of this length, ended at a blank."""
WORDS = re.compile(r"\S*\s*")
SAID_ONCE = frozenset({"role", "type", "id", "format", "finish_reason", "stop_reason", "native_finish_reason"})
"""Texts that are not appended: who says them again says the same again, or leaves them empty."""


def read_object(text: bytes | str) -> dict[str, Any]:
    """A JSON object that is no report of an error, or Incomplete."""
    try:
        found = orjson.loads(text)
    except ValueError as error:
        raise Incomplete(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Incomplete("not a JSON object")
    if found.get("error"):
        raise Incomplete("an error")
    return found


def compact(value: Any) -> bytes:
    """As JSON."""
    return orjson.dumps(value)


def event_of(value: Mapping[str, Any], name: str = "") -> Event:
    """An object as an event."""
    return Event(compact(value).decode(), name)


def cut(text: str) -> Iterable[str]:
    """Text in pieces that, put together, are the text; none for the empty text."""
    piece = ""
    for word in WORDS.findall(text):
        piece += word
        if len(piece) >= PIECE:
            yield piece
            piece = ""
    if piece:
        yield piece


def add(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a delta to what was said so far."""
    for name, value in delta.items():
        before = whole.get(name)
        if value is None or before is None:
            if value is not None or name not in whole:
                whole[name] = started(value)
        elif isinstance(before, str) and isinstance(value, str):
            whole[name] = appended(name, before, value)
        elif isinstance(before, dict) and isinstance(value, dict):
            add(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            extend(before, value)
        else:
            whole[name] = value


def appended(name: str, before: str, value: str) -> str:
    """Text so far and what was said now. A function's name may come whole, again and again, or in pieces."""
    if name in SAID_ONCE:
        return value or before
    return before if name == "name" and value == before else before + value


def started(value: Any) -> Any:
    """The first delta of a field, as something that can be added to without touching the delta."""
    if isinstance(value, dict):
        whole: dict[str, Any] = {}
        add(whole, value)
        return whole
    if isinstance(value, list):
        items: list[Any] = []
        extend(items, value)
        return items
    return value


def extend(items: list[Any], more: Iterable[Any]) -> None:
    """Append to a list; what carries the index of an earlier item is added to that one."""
    for item in more:
        index = item.get("index") if isinstance(item, dict) else None
        same = [i for i in items if isinstance(i, dict) and i.get("index") == index] if isinstance(index, int) else []
        if same:
            add(same[0], item)
        else:
            items.append(started(item))
