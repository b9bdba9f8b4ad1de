"""Text in chunks, and merging deltas: what formats with streams share.

    answer = Σ deltas       strings and lists are appended, objects merged field by field, list items that have an
                            `index` merged into the item with that index; of roles, names and numbers the last one wins

A null adds nothing. It is the value of a field until a delta has another.

Appended texts are collected in lists and joined once, by `join_texts`: repeated concatenation takes quadratic time,
which is seconds for the longest answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

CHUNK_LENGTH = 24
"""Characters, about, in one delta of a stream that is made from a plain answer. A chunk ends after white space."""
WORDS = re.compile(r"\S*\s*")
NOT_APPENDED = frozenset({"role", "type", "id", "format", "finish_reason", "stop_reason", "native_finish_reason"})
"""Strings that later deltas repeat or leave empty. They are replaced, not appended to."""
SPECIAL_TEXTS = NOT_APPENDED | {"name"}
"""Strings that are not simply appended."""


def split_text(text: str) -> Iterable[str]:
    """Yield the text in chunks of about CHUNK_LENGTH characters; nothing for the empty text."""
    chunk = ""
    for match in WORDS.finditer(text):  # not findall: for a long text it is one call, and a list of all words
        chunk += match.group()
        if len(chunk) >= CHUNK_LENGTH:
            yield chunk
            chunk = ""
    if chunk:
        yield chunk


class TextParts(list[str]):
    """A text under construction."""

    __slots__ = ()


def join_texts(node: Any) -> Any:
    """Return a merged value with its texts joined. Objects and lists are changed in place."""
    if isinstance(node, TextParts):
        return "".join(node)
    if isinstance(node, dict):
        for name, value in node.items():
            if isinstance(value, (dict, list)):
                node[name] = join_texts(value)
    elif isinstance(node, list):
        for k, value in enumerate(node):
            if isinstance(value, (dict, list)):
                node[k] = join_texts(value)
    return node


def merge_delta(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Merge a delta into `whole`, in place. The delta is neither changed nor referenced. Call `join_texts` at last."""
    for name, value in delta.items():
        if value is None:
            whole.setdefault(name)
            continue
        before, kind = whole.get(name), type(value)
        if kind is str and type(before) is TextParts and name not in SPECIAL_TEXTS:  # most deltas
            before.append(value)
        elif before is None:
            whole[name] = copy_delta(value)
        elif kind is dict and isinstance(before, dict):
            merge_delta(before, value)
        elif kind is str and isinstance(before, (str, TextParts)):
            whole[name] = merge_text(name, before, value)
        elif kind is list and isinstance(before, list) and not isinstance(before, TextParts):
            merge_list(before, value)
        else:
            whole[name] = value


def merge_text(name: str, before: str | TextParts, value: str) -> str | TextParts:
    """Append a string, or replace it. Providers send a function's name whole in every delta, or in pieces."""
    if name in NOT_APPENDED:
        return value or before
    if name == "name" and value == "".join(before):
        return before
    parts = before if isinstance(before, TextParts) else TextParts([before])
    parts.append(value)
    return parts


def copy_delta(value: Any) -> Any:
    """Return a copy of a field's first delta, into which later ones can be merged."""
    if isinstance(value, dict):
        whole: dict[str, Any] = {}
        merge_delta(whole, value)
        return whole
    if isinstance(value, list):
        items: list[Any] = []
        merge_list(items, value)
        return items
    return value


def merge_list(items: list[Any], more: Iterable[Any]) -> None:
    """Append items. An item with the `index` of an earlier one is merged into that one."""
    for item in more:
        index = item.get("index") if isinstance(item, dict) else None
        same = [i for i in items if isinstance(i, dict) and i.get("index") == index] if isinstance(index, int) else []
        if same:
            merge_delta(same[0], item)
        else:
            items.append(copy_delta(item))
