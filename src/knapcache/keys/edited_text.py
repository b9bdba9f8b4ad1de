"""Write an edited body as the caller's own text with the differences spliced in.

    text     {"model": "m", "seed": 1.0, "messages": [{"role": "user", "content": "Hi\u0021"}]}
    before   what `parse_body` made of it
    after    another body that shares with `before` everything that did not change

    edited_text(text, before, after)   the text with the parts that differ written anew

Everything else stays byte for byte: white space, escapes, the order of fields, and the spelling of numbers. A number
that is written again changes for the provider: 18446744073709551616 is no longer an integer, and 1.0 becomes 1.

A part did not change if it is the same object in both bodies. So `after` must be made by copying what is on the path
to the difference, and only that. The n-th field of an object in the text is the n-th in `before`, because parsing
refuses objects that have a name twice.

Rejected: to write the whole body again with numbers kept as text. It loses white space and escapes, which providers
may count as tokens of a tool's schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from knapcache.keys.scan import BACKSLASH

BLANKS = re.compile(rb"[ \t\r\n]*+")
SHORT_VALUES = re.compile(rb'(?:"[^"\\]{0,200}+"|[^"\[\]{}]++)*+')
"""Short strings, numbers and separators, up to the next bracket or long string. `find` is faster in long ones."""
PIECE = re.compile(rb'(?:[^"\\]{1,1024}+|\\.){1,64}+', re.DOTALL)
"""A piece of a string that has escapes. It is bounded, because a match holds the interpreter's lock."""
SCALAR = re.compile(rb'[^\s,\[\]{}":]++')
OPENING, QUOTE = b"{[", ord('"')

Edit = tuple[int, int, bytes]
"""Start and end of a part of the text, and what takes its place. Edits are in the order of the text."""


def edited_text(text: bytes, before: Mapping[str, Any], after: Mapping[str, Any]) -> bytes:
    """Return the text of a body with the differences between `before`, which was parsed from it, and `after`."""
    return apply_edits(text, object_edits(text, skip_blanks(text, 0), before, after))


def with_field(text: bytes, name: str, value: Any) -> bytes:
    """Return a JSON object with one field at the top set, at each place where it has that name.

    The rest of the text is not parsed. Raises ValueError if it is not an object.
    """
    start = skip_blanks(text, 0)
    if text[start : start + 1] != b"{":
        raise ValueError("not a JSON object")
    written, edits, last_end = orjson.dumps(value), list[Edit](), 0
    for named, at, last_end in fields(text, start):
        if orjson.loads(text[named : value_end(text, named)]) == name:
            edits.append((at, last_end, written))
    if not edits:
        end = last_end or start + 1
        edits.append((end, end, b"," * bool(last_end) + orjson.dumps(name) + b":" + written))
    return apply_edits(text, edits)


def apply_edits(text: bytes, edits: Iterable[Edit]) -> bytes:
    """Return the text with its edits."""
    pieces, at = list[bytes](), 0
    for start, end, written in edits:
        pieces += (text[at:start], written)
        at = end
    return b"".join((*pieces, text[at:]))


def value_edits(text: bytes, start: int, end: int, old: Any, new: Any) -> Iterator[Edit]:
    """Yield the edits of a value from `start` to `end` of the text."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from object_edits(text, start, old, new)
    elif type(old) is list and type(new) is list:
        yield from list_edits(text, start, old, new)
    else:
        yield start, end, written_with(new, old, text[start:end])


def object_edits(text: bytes, start: int, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Edit]:
    """Yield the edits of an object: fields that are removed, changed and, after the last one, added."""
    last_end, first_removed, kept = start + 1, 0, False  # 0: no field is removed
    for (named, at, end), (name, value) in zip(fields(text, start), old.items(), strict=True):
        if name in new:
            if not kept and first_removed:  # the text between the brace and the first field stays
                yield first_removed, named, b""
            kept = True
            if new[name] is not value:
                yield from value_edits(text, at, end, value, new[name])
        elif kept:
            yield last_end, end, b""  # with the comma before it
        elif not first_removed:
            first_removed = named
        last_end = end
    if not kept and first_removed:
        yield first_removed, last_end, b""
    added = [orjson.dumps(name) + b":" + orjson.dumps(new[name]) for name in new if name not in old]
    if added:
        yield last_end, last_end, b"," * kept + b",".join(added)


def list_edits(text: bytes, start: int, old: list[Any], new: list[Any]) -> Iterator[Edit]:
    """Yield the edits of a list. Of lists with different lengths, items that are in both keep their text."""
    spans = list(items(text, start))
    if len(new) == len(old):
        for (at, end), value, changed in zip(spans, old, new, strict=True):
            if changed is not value:
                yield from value_edits(text, at, end, value, changed)
        return
    literals = {id(value): text[at:end] for (at, end), value in zip(spans, old, strict=True)}
    written = [literals.get(id(value)) or orjson.dumps(value) for value in new]
    yield (spans[0][0] if spans else start + 1), (spans[-1][1] if spans else start + 1), b",".join(written)


def written_with(new: Any, old: Any, literal: bytes) -> bytes:
    """Return a new value as JSON. `old` inside it is written as its literal."""
    if new is old:
        return literal
    if type(new) is dict:
        inner = (orjson.dumps(name) + b":" + written_with(value, old, literal) for name, value in new.items())
        return b"{" + b",".join(inner) + b"}"
    if type(new) is list:
        return b"[" + b",".join(written_with(value, old, literal) for value in new) + b"]"
    return orjson.dumps(new)


def fields(text: bytes, start: int) -> Iterator[tuple[int, int, int]]:
    """Yield where each field of an object begins, and where its value begins and ends."""
    at = skip_blanks(text, start + 1)
    while text[at : at + 1] != b"}":
        name_end = skip_blanks(text, value_end(text, at))
        if text[name_end : name_end + 1] != b":":
            raise ValueError("not a JSON object")
        value = skip_blanks(text, name_end + 1)
        end = value_end(text, value)
        yield at, value, end
        at = next_item(text, end)


def items(text: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield where each item of a list begins and ends."""
    at = skip_blanks(text, start + 1)
    while text[at : at + 1] != b"]":
        end = value_end(text, at)
        yield at, end
        at = next_item(text, end)


def next_item(text: bytes, end: int) -> int:
    """Return where the next item or field begins, or the closing bracket is."""
    at = skip_blanks(text, end)
    return skip_blanks(text, at + 1) if text[at : at + 1] == b"," else at


def value_end(text: bytes, at: int) -> int:
    """Return where the value ends that begins at a position. Raises ValueError if there is none."""
    if text[at : at + 1] == b'"':
        return string_end(text, at)
    if found := SCALAR.match(text, at):
        return found.end()
    depth = 0
    while at < len(text):
        if text[at] == QUOTE:
            at = string_end(text, at)
        else:
            depth += 1 if text[at] in OPENING else -1
            at += 1
            if not depth:
                return at
        found = SHORT_VALUES.match(text, at)
        assert found is not None
        at = found.end()
    raise ValueError("not JSON")


def string_end(text: bytes, at: int) -> int:
    """Return where the string ends that begins at a position. Raises ValueError if it has no end."""
    end = text.find(b'"', at + 1)
    if end > 0 and text[end - 1] == BACKSLASH:
        end = at + 1
        while found := PIECE.match(text, end):
            end = found.end()
        end = end if text[end : end + 1] == b'"' else -1
    if end < 0:
        raise ValueError("not JSON")
    return end + 1


def skip_blanks(text: bytes, at: int) -> int:
    """Return where the next character is that is not white space."""
    found = BLANKS.match(text, at)
    assert found is not None
    return found.end()
