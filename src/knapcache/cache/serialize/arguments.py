"""Arguments of cached functions as keys: canonical JSON that includes types.

Arguments are typed: 1, 1.0, True and "1" are four arguments, (1, 2) and [1, 2] are two, because a function can tell
them apart. Values that have a kind (`kinds.py`) are represented by what they are taken apart into, and their class by
its name. Sets and dicts have no order. Everything else is Uncacheable.

The forms of None, bool, int, float, str, bytes, list, tuple and dicts with text as names are those of 0.1, so its
entries are found.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from knapcache.cache.serialize.base import is_unicode
from knapcache.cache.serialize.kinds import Kinds
from knapcache.errors import Uncacheable, Unserializable
from knapcache.keys.numbers import MAX_DIGITS

MAX_INT = 10**MAX_DIGITS
"""Integers from here on have more digits than a number in a key may have."""
STANDARD_KINDS = Kinds()


class ArrayWithoutForm(Uncacheable):
    """An array or a data frame of a class that is not registered. In a closure it counts as data, unlike a client."""


def typed(value: Any, kinds: Kinds = STANDARD_KINDS) -> Any:
    """Return a value as JSON that includes its types: JSON's own as they are, others as an object with one name."""
    cls = type(value)
    if value is None or cls is bool:
        return value
    if cls is str:
        return value if is_unicode(value) else {"text": value.encode("utf-8", "surrogatepass").hex()}
    if cls is int:
        return value if -MAX_INT < value < MAX_INT else {"int": f"{value:x}"}
    if cls is float:
        return {"float": repr(value)}
    if cls is list:
        return [typed(inner, kinds) for inner in value]
    if cls is tuple:
        return {"tuple": [typed(inner, kinds) for inner in value]}
    if cls is bytes:
        return {"bytes": value.hex()}
    if cls is set or cls is frozenset:
        return {cls.__name__: sorted((typed(inner, kinds) for inner in value), key=json_text)}
    if cls is dict:
        return typed_dict(value, kinds)
    kind = kinds.of(value)
    if kind is None:
        name = f"{cls.__module__}.{cls.__qualname__}"
        if hasattr(cls, "__array__"):
            raise ArrayWithoutForm(f"a {name} has no form that can be part of a key: TypedSerializer.register adds one")
        raise Uncacheable(f"a {name} has no form that can be part of a key")
    try:
        parts = kind.take(value)
    except Unserializable as error:
        raise Uncacheable(str(error)) from None
    return {kind.tag: typed(parts, kinds)}


def typed_dict(value: dict[Any, Any], kinds: Kinds) -> Any:
    """Return a dict as its items by name."""
    if all(type(name) is str and is_unicode(name) for name in value):
        return {"dict": [[name, typed(inner, kinds)] for name, inner in sorted(value.items())]}
    items = [[typed(name, kinds), typed(inner, kinds)] for name, inner in value.items()]
    return {"items": sorted(items, key=json_text)}


def json_text(form: Any) -> str:
    """Return a typed form as text that depends only on its value."""
    return json.dumps(form, sort_keys=True, separators=(",", ":"))


def typed_arguments(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], kinds: Kinds
) -> dict[str, Any]:
    """Return the arguments by parameter, with defaults; TypeError if the function cannot be called with them."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    found = {}
    for name, value in bound.arguments.items():
        try:
            found[name] = typed(value, kinds)
        except Uncacheable as error:
            raise Uncacheable(error.reason, f"argument {name}") from None
        except RecursionError:
            raise Uncacheable("too many levels of nesting", f"argument {name}") from None
    return found


def closure_digest(function: Callable[..., Any], kinds: Kinds) -> str:
    """Return a digest of the data in a function's closure, or "" when there is none.

    Uncacheable for an array or a data frame without a form: functions over different ones must not share results.
    """
    cells = getattr(function, "__closure__", None) or ()
    found = {}
    for name, cell in zip(function.__code__.co_freevars if cells else (), cells, strict=True):
        try:
            found[name] = typed(cell.cell_contents, kinds)
        except ArrayWithoutForm as error:
            raise Uncacheable(error.reason, f"closure variable {name}") from None
        except (ValueError, Uncacheable, RecursionError):  # not bound yet, or not data
            continue
    try:
        text = orjson.dumps(found, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a number beyond 64 bits
        text = repr(sorted(found.items())).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest() if found else ""
