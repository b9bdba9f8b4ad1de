r"""From a body, as objects or as JSON text, to plain objects that mean exactly what the body says, or a refusal.

Objects are walked once and copied (`plain`): dict with str keys, list, tuple, str, int, float, Decimal, bool and None;
nothing else has one meaning in JSON, and subclasses may say one thing and print another.

Text has two readers. orjson is quick, and lossy: of two fields of the same name it keeps the last, and numbers that
fit neither 64 bits nor a double are rounded. So it is checked by writing what it read:

    without white space, text = write(read(text))   ⇒   nothing was lost

for white space never divides two tokens of JSON, hence both texts are the same tokens but for blanks within strings: as
many fields, and the same spellings of numbers. Clients write compact or spaced JSON with UTF-8 in it, and pass. So does
what Python's own json writes, which escapes all but ASCII. What does not (1E5, needless escapes, real duplicates) is
read again, exactly, by the standard library with Decimals and a look at every object's names; that takes four times as
long. (Counting quotes instead was considered: it proves that no field was lost, but not that no digit was.)
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import orjson

from knapcache.errors import Uncacheable
from knapcache.keys.numbers import MOST_DIGITS, from_decimal, from_float, from_int

DEEPEST = 200
"""Objects and lists within one another. orjson writes at most 254."""
BLANKS = b" \t\r\n"


class ParsedBody(dict[str, Any]):
    """A body that was read: plain objects, numbers in normal form. Whoever gets it need not read again, nor change it.

    A promise of whoever makes one, as `from_text` does; a copy of it, or a dict with its fields, promises nothing.
    """

    __slots__ = ()


def parse_body(text: bytes) -> ParsedBody:
    """The body that JSON text spells; nothing is lost on the way."""
    return ParsedBody(parse_text(text))


def parse_text(text: bytes) -> dict[str, Any]:
    """The same as a plain dict, for those who hand it to nobody."""
    try:
        body = orjson.loads(text)
        written = orjson.dumps(body)
    except (ValueError, TypeError):  # not JSON, too deep, or more than a double holds: the exact reader knows which
        return parse_text_exactly(text)
    if written != text and not same(written, text, body):
        return parse_text_exactly(text)
    settle(top(body))
    return body  # type: ignore[no-any-return]


def same(written: bytes, text: bytes, body: Any) -> bool:
    """Whether nothing was lost between text and body."""
    return written.translate(None, BLANKS) == text.translate(None, BLANKS) or (
        b"\\u" in text and json.dumps(body).encode() == text
    )


def top(body: Any) -> dict[str, Any]:
    """A body is an object."""
    if type(body) is not dict:
        raise Uncacheable("the body is not a JSON object")
    return body


def settle(node: Any, depth: int = 0) -> None:
    """Normal numbers and bounded depth, in place: for what orjson read, whose types are known."""
    if depth == DEEPEST:
        raise Uncacheable(f"more than {DEEPEST} levels of nesting")
    if type(node) is dict:
        for name, value in node.items():
            kind = type(value)
            if kind is str:  # most are: asked first
                continue
            if kind is dict or kind is list:
                settle(value, depth + 1)
            elif kind is float:
                node[name] = from_float(value)  # an existing name: the dict keeps its shape while we walk
    elif len(node) <= 16 or not set(map(type, node)) <= {int, str}:  # tokens: a look at all at once
        for index, value in enumerate(node):
            kind = type(value)
            if kind is dict or kind is list:
                settle(value, depth + 1)
            elif kind is float:
                node[index] = from_float(value)


def parse_text_exactly(text: bytes) -> dict[str, Any]:
    """The same by the standard library: slower, and it says what is wrong."""
    try:
        spelled = text.decode("utf-8")
        body = json.loads(
            spelled,
            object_pairs_hook=unique,
            parse_float=decimal,
            parse_int=integer,
            parse_constant=no_number,
        )
    except UnicodeDecodeError as error:
        raise Uncacheable(f"not UTF-8: byte {error.start} is 0x{text[error.start]:02x}") from None
    except json.JSONDecodeError as error:
        raise Uncacheable(f"not JSON: {error}") from None
    except RecursionError:
        raise Uncacheable(f"more than {DEEPEST} levels of nesting") from None
    return plain(body)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Uncacheable("a name given twice in one object", step(name))
            seen.add(name)
    return found


def integer(spelled: str) -> int:
    """A whole number; its length is looked at first, for reading takes time n²."""
    return int(bounded(spelled))


def decimal(spelled: str) -> Decimal:
    """Any other number, as it is spelled."""
    return Decimal(bounded(spelled))


def bounded(spelled: str) -> str:
    """The spelling of a number that is not absurdly long."""
    if len(spelled) > MOST_DIGITS:
        raise Uncacheable(f"a number of more than {MOST_DIGITS} characters")
    return spelled


def no_number(spelled: str) -> None:
    """NaN and infinities, which Python reads and JSON does not have."""
    raise Uncacheable(f"{spelled} is no number in JSON")


def plain(body: Any) -> dict[str, Any]:
    """A copy of a body given as objects, with normal numbers; what came in is not touched."""
    where: list[str | int] = []
    try:
        return top(copy(body, 0, where))
    except Uncacheable as error:
        raise Uncacheable(error.reason, error.path or path(where)) from None


def copy(value: Any, depth: int, where: list[str | int]) -> Any:
    """A copy in normal form. On the way out of an error `where` collects the steps that led to it, last step first."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            check_text(value)
        return value
    if kind is dict or kind is list or kind is tuple:
        if depth == DEEPEST:
            raise Uncacheable(f"more than {DEEPEST} levels of nesting")
        return copy_dict(value, depth, where) if kind is dict else copy_list(value, depth, where)
    if value is None or kind is bool:
        return value
    if kind is int:
        return from_int(value)
    if kind is float:
        return from_float(value)
    if kind is Decimal:
        return from_decimal(value)
    raise Uncacheable(f"a {kind.__module__}.{kind.__qualname__}, which is no JSON value")


def copy_dict(value: dict[Any, Any], depth: int, where: list[str | int]) -> dict[str, Any]:
    """A copy of an object."""
    found = {}
    name: Any = None
    try:
        for name, inner in value.items():
            if type(name) is not str:
                raise Uncacheable(f"a name that is no string, {name!r:.40}")
            if not name.isascii():
                check_text(name)
            found[name] = copy(inner, depth + 1, where)
    except Uncacheable:
        where.append(name if type(name) is str else repr(name)[:40])
        raise
    return found


def copy_list(value: list[Any] | tuple[Any, ...], depth: int, where: list[str | int]) -> list[Any]:
    """A copy of a list."""
    found: list[Any] = []
    try:
        for inner in value:
            found.append(copy(inner, depth + 1, where))  # noqa: PERF401 - its length is where it went wrong
    except Uncacheable:
        where.append(len(found))
        raise
    return found


def check_text(text: str) -> None:
    """Half of a surrogate pair is no character: it has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Uncacheable("a lone surrogate, which is no character") from None


def path(where: list[str | int]) -> str:
    """Steps, last first, as in `messages[0].content`; long ones are cut."""
    steps = "".join(f"[{part}]" if type(part) is int else f".{step(str(part))}" for part in reversed(where))
    steps = steps.removeprefix(".")
    return steps if len(steps) <= 200 else f"{steps[:100]}…{steps[-60:]}"


def step(name: str) -> str:
    """A field's name that can be printed."""
    return (name if name.isprintable() else repr(name)[1:-1])[:60]
