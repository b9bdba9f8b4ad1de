r"""From a body, as objects or as JSON text, to plain objects with numbers in normal form, or Uncacheable.

Objects are walked once and copied (`normalized_copy`): dict with str keys, list, tuple, str, int, float, Decimal, bool
and None. Nothing else has one meaning in JSON; subclasses may compare one way and print another.

Text has two parsers. orjson is fast and lossy: of two fields of the same name it keeps the last, and it rounds numbers
that fit neither 64 bits nor a double. So its result is checked by writing it again:

    without white space, text = write(read(text))   ⇒   nothing was lost

White space never separates two tokens of JSON, so both texts have the same tokens, except for blanks inside strings:
the same number of fields, and the same spellings of numbers. Compact and spaced JSON in UTF-8 passes, and so does text
in which everything but ASCII is escaped, as Python's json module writes it. What does not pass (1E5, needless escapes,
duplicates) is parsed again by the standard library, exactly, with Decimals and a check of every object's names; that
takes many times as long. Rejected: counting quotes, which shows that no field was lost, but not that no digit was.

Texts of more than SHORT bytes are compared in slices, and only if parsing them is cheap enough (`scan.py`). So no call
holds the interpreter's lock for long, and the memory is bounded. The standard library gets MAX_EXACT_VALUES at most.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring_ascii
from typing import Any

import orjson

from knapcache.errors import Uncacheable
from knapcache.keys.numbers import MAX_DIGITS, MAX_EXPONENT, from_decimal, from_float, from_int
from knapcache.keys.scan import BLANKS, check_cost, exact_cost, max_memory, width

LEAVES = frozenset((str, int, bool, type(None)))
"""Types of parsed values that are in normal form as they are."""
MAX_DEPTH = 200
"""Objects and lists within one another. orjson writes at most 254."""
SHORT = 1 << 15
"""Bytes of a text that is parsed in at most about 20 ms, whatever it contains."""
SLICE = 1 << 18
"""Bytes that are compared at a time."""
MAX_EXACT_VALUES = 50_000
"""Values of a text for the standard library, which takes up to 4 µs for each."""
EXACT_LENGTH, EXACT_MIN, EXACT_MAX = 16, 1e-300, 1e300
"""Characters of a literal with at most 15 digits, beside a point or an exponent, and the range of normal doubles: of
all decimals that read back as its double, it is the shortest."""


class ParsedBody(dict[str, Any]):
    """A body that was parsed: plain objects, numbers in normal form. It is not parsed again, and must not be changed.

    Only `parse_body` guarantees this; a copy, or another dict with the same fields, must be parsed.
    """

    __slots__ = ()


def parse_body(text: bytes) -> ParsedBody:
    """Parse JSON text without loss."""
    return ParsedBody(parse_text(text))


def parse_text(text: bytes) -> dict[str, Any]:
    """Parse JSON text without loss, into a plain dict."""
    if len(text) > SHORT:
        check_cost(text)
    try:
        body = orjson.loads(text)
        written = orjson.dumps(body)
    except (ValueError, TypeError):  # not JSON, too deep, or beyond a double: the exact parser says which
        return parse_text_exactly(text)
    if written != text and not is_lossless(written, text):
        del body, written  # before the other parser needs as much
        return parse_text_exactly(text)
    del written
    normalize(checked_object(body))
    return body  # type: ignore[no-any-return]


def is_lossless(written: bytes, text: bytes) -> bool:
    """Return whether a text and what was written again differ in white space or in escapes of Python's json only."""
    if max(len(text), len(written)) <= SLICE:  # most are, and so it takes half as long
        if written.translate(None, BLANKS) == text.translate(None, BLANKS):
            return True
    elif same_pieces(without_blanks(written), without_blanks(text)):
        return True
    return b"\\u" in text and same_pieces(escaped(written), without_blanks(text))


def without_blanks(text: bytes) -> Iterator[bytes]:
    """Yield a text without white space, in pieces."""
    for start in range(0, len(text), SLICE):
        yield text[start : start + SLICE].translate(None, BLANKS)


def escaped(text: bytes) -> Iterator[bytes]:
    """Yield a text without white space, everything but ASCII escaped, in pieces.

    The function of the standard library also escapes quotes and backslashes, which is undone. Every quote has a
    backslash of its own after it, so the order of the replacements makes them exact.
    """
    start = 0
    while start < len(text):
        end = min(start + SLICE, len(text))
        while end < len(text) and text[end] & 0xC0 == 0x80:  # not within a character
            end -= 1
        piece = encode_basestring_ascii(text[start:end].decode())[1:-1].encode()
        yield piece.replace(b'\\"', b'"').replace(b"\\\\", b"\\").translate(None, BLANKS)
        start = end


def same_pieces(one: Iterator[bytes], other: Iterator[bytes]) -> bool:
    """Return whether the pieces of two texts make the same text."""
    a = b = b""
    while True:
        a, b = a or next(filter(None, one), b""), b or next(filter(None, other), b"")
        size = min(len(a), len(b))
        if a[:size] != b[:size] or (not size and (a or b)):
            return False
        if not size:
            return True
        a, b = a[size:], b[size:]


def checked_object(body: Any) -> dict[str, Any]:
    """Return a body that is an object."""
    if type(body) is not dict:
        raise Uncacheable("the body is not a JSON object")
    return body


def normalize(node: Any, depth: int = 0) -> None:
    """Normalise numbers in place, and bound the depth, of what orjson parsed."""
    if depth == MAX_DEPTH:
        raise Uncacheable(f"more than {MAX_DEPTH} levels of nesting")
    if type(node) is dict:
        if LEAVES.issuperset(map(type, node.values())):  # most are, and this is a single step
            return
        for name, value in node.items():
            kind = type(value)
            if kind is dict or kind is list:
                normalize(value, depth + 1)
            elif kind is float:
                node[name] = from_float(value)  # an existing name: the dict may be iterated meanwhile
    elif not LEAVES.issuperset(map(type, node)):
        for index, value in enumerate(node):
            kind = type(value)
            if kind is dict or kind is list:
                normalize(value, depth + 1)
            elif kind is float:
                node[index] = from_float(value)


def parse_text_exactly(text: bytes) -> dict[str, Any]:
    """Parse with the standard library: slower, exact, and it reports what is wrong."""
    if len(text) > SHORT:
        check_exact_cost(text)
    try:
        body = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=unique_names,
            parse_float=to_decimal,
            parse_int=to_int,
            parse_constant=reject_constant,
        )
    except UnicodeDecodeError as error:
        raise Uncacheable(f"not UTF-8: byte {error.start} is 0x{text[error.start]:02x}") from None
    except json.JSONDecodeError as error:
        raise Uncacheable(f"not JSON: {error}") from None
    except RecursionError:
        raise Uncacheable(f"more than {MAX_DEPTH} levels of nesting") from None
    return normalized_copy(body)


def check_exact_cost(text: bytes) -> None:
    """Raise Uncacheable if a text is too large for the standard library, which decodes it as one string first."""
    cost = exact_cost(text)
    if cost.values > MAX_EXACT_VALUES:
        raise Uncacheable(f"more than {MAX_EXACT_VALUES} values, and unusual numbers, escapes or names")
    wide = max(width(text[k : k + SLICE]) for k in range(0, len(text), SLICE)) if not text.isascii() else 1
    if len(text) * (1 + (wide or 1)) + cost.text > max_memory(text):
        raise Uncacheable("too long for its unusual numbers, escapes or names")


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, or raise Uncacheable if a name occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Uncacheable("duplicate name in one object", printable(name))
            seen.add(name)
    return found


def to_int(literal: str) -> int:
    """Parse a whole number. Its length is checked first, because parsing takes time n²."""
    return int(checked_length(literal))


def to_decimal(literal: str) -> float | Decimal:
    """Parse any other number, exactly: as a float if its shortest decimal is the literal, because that is faster."""
    if len(literal) <= EXACT_LENGTH and EXACT_MIN < abs(value := float(literal)) < EXACT_MAX:
        return value
    try:
        return Decimal(checked_length(literal))
    except InvalidOperation:  # an exponent of 19 digits and more
        raise Uncacheable(f"a number beyond 10^±{MAX_EXPONENT}") from None


def checked_length(literal: str) -> str:
    """Return the literal of a number that is not too long."""
    if len(literal) > MAX_DIGITS:
        raise Uncacheable(f"a number of more than {MAX_DIGITS} characters")
    return literal


def reject_constant(literal: str) -> None:
    """Raise Uncacheable for NaN and infinities, which Python parses and JSON does not have."""
    raise Uncacheable(f"{literal} is not a JSON number")


def normalized_copy(body: Any) -> dict[str, Any]:
    """Return a copy of a body given as objects, with numbers in normal form."""
    steps: list[str | int] = []
    try:
        return checked_object(copy(body, 0, steps))
    except Uncacheable as error:
        raise Uncacheable(error.reason, error.path or path(steps)) from None


def copy(value: Any, depth: int, steps: list[str | int]) -> Any:
    """Return a copy in normal form. On an error, `steps` collects the path to it, last step first."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            check_text(value)
        return value
    if kind is dict or kind is list or kind is tuple:
        if depth == MAX_DEPTH:
            raise Uncacheable(f"more than {MAX_DEPTH} levels of nesting")
        return copy_dict(value, depth, steps) if kind is dict else copy_list(value, depth, steps)
    if value is None or kind is bool:
        return value
    if kind is int:
        return from_int(value)
    if kind is float:
        return from_float(value)
    if kind is Decimal:
        return from_decimal(value)
    raise Uncacheable(f"a {kind.__module__}.{kind.__qualname__} is not a JSON value")


def copy_dict(value: dict[Any, Any], depth: int, steps: list[str | int]) -> dict[str, Any]:
    found = {}
    name: Any = None
    try:
        for name, inner in value.items():
            if type(name) is not str:
                raise Uncacheable(f"a name must be a string, not {name!r:.40}")
            if not name.isascii():
                check_text(name)
            found[name] = copy(inner, depth + 1, steps)
    except Uncacheable:
        steps.append(name if type(name) is str else repr(name)[:40])
        raise
    return found


def copy_list(value: list[Any] | tuple[Any, ...], depth: int, steps: list[str | int]) -> list[Any]:
    found: list[Any] = []
    try:
        for inner in value:
            found.append(copy(inner, depth + 1, steps))  # noqa: PERF401 - its length is the step to an error
    except Uncacheable:
        steps.append(len(found))
        raise
    return found


def check_text(text: str) -> None:
    """Raise Uncacheable for a lone surrogate, which has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Uncacheable("a lone surrogate is not a character") from None


def path(steps: list[str | int]) -> str:
    """Return steps, last first, as `messages[0].content`; a long path is shortened."""
    text = "".join(f"[{step}]" if type(step) is int else f".{printable(str(step))}" for step in reversed(steps))
    text = text.removeprefix(".")
    return text if len(text) <= 200 else f"{text[:100]}…{text[-60:]}"


def printable(name: str) -> str:
    """Return a field's name without control characters, at most 60 characters."""
    return (name if name.isprintable() else repr(name)[1:-1])[:60]
