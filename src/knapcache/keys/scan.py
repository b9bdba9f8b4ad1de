"""The cost of parsing a JSON text, bounded before a parser sees it.

A parser is one C call that holds the interpreter's lock, so no other thread runs until it returns, the event loop's
included. And what it builds can be far larger than the text: `[[],[],…]` takes 30 times its length. So the work is
measured first, with calls that are short (slices of SLICE bytes) and build nothing:

    values       commas, colons and opening brackets: no text has more values and names than these
    containers   opening brackets: an object or a list takes about 0.3 µs, ten times as long as a number
    escapes      backslashes: writing an escaped character takes about 10 ns, ten times as long as another
    memory       the text, the parser's own copy of it, the objects, and their text when it is written again

The memory may be 4 times the text, or MEMORY_FLOOR. A Python string takes 1, 2 or 4 bytes for every character, as its
widest one needs, so one emoji can make a long string four times as large.

The first count includes characters inside strings, which is quick and an upper bound. If it exceeds a limit, a second
count leaves out the strings (`strings`), which takes longer and is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import orjson

from knapcache.errors import InvalidInput, Uncacheable

SLICE = 1 << 20
"""Bytes that one call looks at: less than 2 ms."""
MAX_VALUES = 400_000
"""Values and names. The largest array of tokens that OpenAI accepts has 300,000."""
MAX_CONTAINERS = 50_000
MAX_ESCAPES = 1_000_000
MEMORY_FACTOR = 4
MEMORY_FLOOR = 24 << 20
"""Bytes that any text may take: those of 300,000 tokens, whose text is only 2 MB long."""
VALUE_BYTES, CONTAINER_BYTES = 64, 240
"""Bytes of a value with its place in a list and in the parser's table, and of an object with its table."""
MAX_TOKENS = 500_000
"""Strings and escaped quotes that `strings` passes: about a second."""
MAX_BLANKS = 1 << 16
"""Blanks between a name and its value that `find_model` skips."""
MAX_MODEL_LENGTH = 1024
"""Characters of a model's name. The longest ones are resource names of clouds."""

BELOW_LATIN_END, BELOW_ASTRAL = bytes(range(0xC4)), bytes(range(0xF0))
"""Bytes of UTF-8 that occur where every character fits into one byte, and into two."""
CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 after the first one of a character."""
SHORT_STRING = 256
"""Bytes of a string that is taken to be as large as any of its length."""
MAX_GAPS = 4096
"""Texts between two strings that are counted together."""
SEPARATORS = (b",", b":")
OPENING, CLOSING = (b"{", b"["), (b"}", b"]")
BLANKS = b" \t\r\n"
BACKSLASH = 0x5C


class TextCost(NamedTuple):
    """Upper bounds of what a text contains."""

    values: int
    containers: int
    text: int
    """Bytes of its strings as Python objects."""
    encoded: int
    """Bytes of its strings that are not ASCII, which keep a copy in UTF-8 once they are written."""


def check_cost(text: bytes) -> None:
    """Raise Uncacheable if parsing the text takes too much time or memory."""
    if count(text, (b"\\",)) > MAX_ESCAPES:
        raise Uncacheable(f"more than {MAX_ESCAPES} escaped characters")
    cost = quick_cost(text)
    if cost.values <= MAX_VALUES and cost.containers <= MAX_CONTAINERS and memory(text, cost) <= max_memory(text):
        return
    cost = exact_cost(text)
    if cost.containers > MAX_CONTAINERS:
        raise Uncacheable(f"more than {MAX_CONTAINERS} objects and lists")
    if cost.values > MAX_VALUES:
        raise Uncacheable(f"more than {MAX_VALUES} values")
    if memory(text, cost) > max_memory(text):
        raise Uncacheable(f"parsing takes more than {MEMORY_FACTOR} times the {len(text)} bytes of the body")


def max_memory(text: bytes) -> int:
    """Return the bytes that parsing a text may take, with the text itself."""
    return max(MEMORY_FLOOR, MEMORY_FACTOR * len(text))


def memory(text: bytes, cost: TextCost) -> int:
    """Return the bytes that parsing a text takes at most: the text, a copy, the objects, the written strings."""
    objects = VALUE_BYTES * cost.values + CONTAINER_BYTES * cost.containers
    return 2 * len(text) + cost.text + cost.encoded + objects


def quick_cost(text: bytes) -> TextCost:
    """Return upper bounds that count the characters inside strings as well."""
    containers = count(text, OPENING)
    size, encoded = string_size(text, 0, len(text))
    return TextCost(count(text, SEPARATORS) + containers, containers, size, encoded)


def exact_cost(text: bytes) -> TextCost:
    """Return the counts outside strings, and the size of each string. Stops when there are too many values."""
    values = containers = size = encoded = at = 0
    gaps: list[bytes] = []
    for start, end in strings(text):
        if start - at > SLICE:
            values, containers = (
                values + count(text, SEPARATORS, at, start),
                containers + count(text, OPENING, at, start),
            )
        else:
            gaps.append(text[at:start])
        at = end
        if end - start < SHORT_STRING:
            size, encoded = size + 4 * (end - start), encoded + end - start
        else:
            more = string_size(text, start, end)
            size, encoded = size + more[0], encoded + more[1]
        if len(gaps) == MAX_GAPS:
            outside = b"".join(gaps)
            values, containers = values + count(outside, SEPARATORS), containers + count(outside, OPENING)
            gaps.clear()
            if values > MAX_VALUES:
                break
    outside = b"".join(gaps)
    containers += count(outside, OPENING) + count(text, OPENING, at)
    values += count(outside, SEPARATORS) + count(text, SEPARATORS, at) + containers
    return TextCost(values, containers, size, encoded)


def string_size(text: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the bytes of a string as a Python object, and those of its UTF-8 if it is not ASCII."""
    wide = characters = 0
    for k in range(start, end, SLICE):
        piece = text[k : min(end, k + SLICE)]
        wide = max(wide, width(piece))
        characters += len(piece) if piece.isascii() else len(piece.translate(None, CONTINUATION))
    return (wide * characters, end - start) if wide else (characters, 0)


def width(text: bytes) -> int:
    """Return the bytes of a character of this string: 1, 2 or 4 at most; 0 if it is ASCII."""
    if text.isascii():
        return 0 if b"\\u" not in text else 4 if b"\\ud" in text or b"\\uD" in text else 2
    if text.translate(None, BELOW_ASTRAL) or b"\\ud" in text or b"\\uD" in text:
        return 4
    return 2 if text.translate(None, BELOW_LATIN_END) or b"\\u" in text else 1


def count(text: bytes, characters: tuple[bytes, ...], start: int = 0, end: int | None = None) -> int:
    """Return how often these characters occur, slice by slice."""
    last = len(text) if end is None else end
    return sum(text.count(c, k, min(last, k + SLICE)) for k in range(start, last, SLICE) for c in characters)


def strings(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each string of a JSON text starts and ends, quotes included. Raises Uncacheable after MAX_TOKENS."""
    at, tokens = 0, 0
    while (start := text.find(b'"', at)) >= 0:
        end = text.find(b'"', start + 1)
        while end > 0 and text[end - 1] == BACKSLASH and backslashes(text, end) % 2:
            end = text.find(b'"', end + 1)
            tokens += 1
            if tokens > MAX_TOKENS:
                break
        if end < 0:  # not JSON: the rest is one string
            end = len(text) - 1
        at, tokens = end + 1, tokens + 1
        if tokens > MAX_TOKENS:
            raise Uncacheable(f"more than {MAX_TOKENS} strings and escaped quotes")
        yield start, at


def backslashes(text: bytes, end: int) -> int:
    """Return how many backslashes precede a position."""
    start = end
    while start > 0:
        before = text[max(0, start - 1024) : start]
        kept = len(before.rstrip(b"\\"))
        start -= len(before) - kept
        if kept:
            break
    return end - start


def find_model(text: bytes) -> str:
    """Return the `model` at the top of a JSON object, or "" if there is none. Nothing else is parsed.

    Raises Uncacheable if it is not found within MAX_TOKENS strings, and InvalidInput if there is a second one within
    them: most providers read the last one, some the first. A text that is not JSON may have one or not.
    """
    depth = at = 0
    after_name = -1
    model: str | None = None
    try:
        for start, end in strings(text):
            depth += count(text, OPENING, at, start) - count(text, CLOSING, at, start)
            at = end
            if after_name >= 0:
                is_value = text[after_name:start].strip(BLANKS) == b":"
                model, after_name = string_value(text[start:end]) if is_value else "", -1
                if is_value:
                    continue
            is_model = depth == 1 and end - start <= 6 * len("model") + 2 and string_value(text[start:end]) == "model"
            if is_model and text[end : end + MAX_BLANKS].lstrip(BLANKS).startswith(b":"):
                if model is not None:
                    raise InvalidInput("the body has the field model twice")
                after_name = end
    except Uncacheable:
        if model is None:
            raise
    return model or ""


def string_value(literal: bytes) -> str:
    """Return the value of a string; "" if it is not valid, or longer than a model's name."""
    if len(literal) > 6 * MAX_MODEL_LENGTH + 2:
        return ""
    try:
        value = orjson.loads(literal)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
