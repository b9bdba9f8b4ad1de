"""Serializers: how the results of cached functions become bytes.

`TypedSerializer`, the default, writes what JSON returns exactly as JSON, types included, and other values as

    typed = 1 (1 byte), length of the JSON text (4 bytes, little-endian), the text, buffers
    text  = [tree, lengths of the buffers]

A tree is JSON in which every object has one name, that of a kind (`kinds.py`): {"tuple": [1, 2]}, {"dict": {"a": 1}}.
Bytes are in buffers: {"bytes": 0} is the first. Nothing in a stored value is code, and none is run for it.

Other serializers write what they like. Their results are stored with the name of their class (`functions.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import math
import pickle
import struct
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import orjson

from knapcache.cache.serialize.classes import KnownClasses, has_fields
from knapcache.cache.serialize.kinds import ITEMS, Kinds
from knapcache.errors import InvalidInput, Unserializable

MAX_DEPTH = 200
"""Values within one another."""
MIN_INT, MAX_INT = -(2**63), 2**64 - 1  # what orjson reads and writes as an int
TYPED = 1
JSON_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
"""orjson would write these as text or as objects, and JSON would not return them."""
MIN_SECRET, MAX_SECRET = 16, 64
_START = struct.Struct("<BI")
_MAC_BYTES = 32


@runtime_checkable
class Serializer(Protocol):
    """Turns results into bytes and back.

    An exception in `dumps` means that the result is returned and not stored. One in `loads` means that the function is
    called. Both are logged once for each function.
    """

    def dumps(self, value: Any, /) -> bytes:
        """Return a result as bytes."""

    def loads(self, data: bytes, /) -> Any:
        """Return a result that is equal to the one that was stored, in a new object."""


class TypedSerializer:
    """The default: values come back with their types, and no stored value can run code.

    types   classes whose objects may be read though this process has stored none, and no cached function names them
    """

    def __init__(self, types: Iterable[type] = ()) -> None:
        types = tuple(types)
        for cls in types:
            if not has_fields(cls):
                raise InvalidInput(f"types must be dataclasses, pydantic models, named tuples or enums, not {cls!r}")
        self.kinds = Kinds()
        self.known = KnownClasses(types)

    def register(self, cls: type, name: str, take: Callable[[Any], Any], make: Callable[[Any], Any]) -> None:
        """Store objects of another class, in results and in arguments.

        take   returns values that can be stored, from an object of exactly this class
        make   returns the object again; it gets whatever the file contains, so it must check it
        name   is stored; another process must register the class under the same name
        """
        self.kinds.register(cls, name, take, make)

    def dumps(self, value: Any, /) -> bytes:
        """Return a value as bytes, or raise Unserializable."""
        try:
            text = orjson.dumps(value, option=JSON_OPTIONS)
            if equal_with_types(orjson.loads(text), value):
                return text
        except (TypeError, ValueError, RecursionError):  # not a JSON value
            pass
        return TreeWriter(self.kinds, self.known).write(value)

    def loads(self, data: bytes, /) -> Any:
        """Return the value; Unserializable if it is damaged or names a class that is not known."""
        try:
            return TreeReader(self.kinds, self.known, data).read() if data[:1] == b"\x01" else orjson.loads(data)
        except Unserializable:
            raise
        except Exception as error:  # whatever classes raise for parts that do not fit
            raise Unserializable(f"a stored value is damaged: {type(error).__name__}: {error}") from error


class TreeWriter:
    """Writes one value in the typed form."""

    def __init__(self, kinds: Kinds, known: KnownClasses) -> None:
        self._kinds, self._known = kinds, known
        self._buffers: list[bytes] = []

    def write(self, value: Any) -> bytes:
        tree = self._tree(value, 0)
        try:
            text = orjson.dumps([tree, [len(buffer) for buffer in self._buffers]])
        except (TypeError, ValueError, RecursionError) as error:
            raise Unserializable(str(error)) from None
        return b"".join((_START.pack(TYPED, len(text)), text, *self._buffers))

    def _tree(self, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise Unserializable(f"more than {MAX_DEPTH} levels of nesting")
        cls = type(value)
        if value is None or cls is bool:
            return value
        if cls is str:
            return value if is_unicode(value) else {"text": self._buffer(value.encode("utf-8", "surrogatepass"))}
        if cls is int:
            return value if MIN_INT <= value <= MAX_INT else {"int": f"{value:x}"}
        if cls is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if cls is bytes:
            return {"bytes": self._buffer(value)}
        if cls is list:
            return [self._tree(inner, depth + 1) for inner in value]
        if cls is dict and all(type(name) is str and is_unicode(name) for name in value):
            return {"dict": {name: self._tree(inner, depth + 1) for name, inner in value.items()}}
        kind = ITEMS if cls is dict else self._kinds.of(value)
        if kind is None:
            raise Unserializable(
                f"a {cls.__module__}.{cls.__qualname__} has no serializer: pass one that stores it, "
                "cached(serializer=…), or add the class with TypedSerializer.register"
            )
        parts = kind.take(value)
        if kind.names_class:
            self._known.add(cls)
        return {kind.tag: self._tree(parts, depth + 1)}

    def _buffer(self, data: bytes) -> int:
        self._buffers.append(data)
        return len(self._buffers) - 1


class TreeReader:
    """Reads one value in the typed form."""

    def __init__(self, kinds: Kinds, known: KnownClasses, data: bytes) -> None:
        self._kinds, self._known, self._data = kinds, known, data
        self._spans: list[tuple[int, int]] = []

    def read(self) -> Any:
        layout, length = _START.unpack_from(self._data)
        at = _START.size + length
        tree, lengths = orjson.loads(self._data[_START.size : at])
        for size in lengths:
            if type(size) is not int or size < 0:
                raise Unserializable("a buffer of a stored value has no valid length")
            self._spans.append((at, at + size))
            at += size
        if layout != TYPED or at != len(self._data):
            raise Unserializable("a stored value has another length than it states")
        return self._value(tree, 0)

    def _value(self, node: Any, depth: int) -> Any:
        if depth > 2 * MAX_DEPTH:
            raise Unserializable("too many levels of nesting")
        if type(node) is list:
            return [self._value(inner, depth + 1) for inner in node]
        if type(node) is not dict:
            return node
        if len(node) != 1:
            raise Unserializable("a stored value without a kind")
        ((tag, parts),) = node.items()
        if tag == "dict":
            return {name: self._value(inner, depth + 1) for name, inner in parts.items()}
        if tag == "bytes":
            return self._buffer(parts)
        if tag == "text":
            return self._buffer(parts).decode("utf-8", "surrogatepass")
        if tag == "int":
            return int(parts, 16)
        if tag == "float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[parts]
        kind = self._kinds.with_tag(tag)
        return kind.make(self._value(parts, depth + 1), self._known)

    def _buffer(self, number: Any) -> bytes:
        if type(number) is not int or number < 0:
            raise Unserializable("a stored value names no buffer")
        start, end = self._spans[number]
        return self._data[start:end]


class PickleSerializer:
    """Stores any result that `pickle` can write. Reading a pickle runs the code that it names.

    Each result is signed, and only a valid signature is read. Access to the file is not enough to run code. A person
    who also knows the secret can run code in every process that uses it.

    secret   16 to 64 random bytes, kept apart from the file
    """

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or not MIN_SECRET <= len(secret) <= MAX_SECRET:
            size = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
            raise InvalidInput(f"the secret must be {MIN_SECRET} to {MAX_SECRET} bytes, not {size}")
        self._secret = secret

    def _mac(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._secret, digest_size=_MAC_BYTES, person=b"knapcache pickle").digest()

    def dumps(self, value: Any, /) -> bytes:
        """Return a value as a signed pickle."""
        data = pickle.dumps(value, protocol=5)
        return self._mac(data) + data

    def loads(self, data: bytes, /) -> Any:
        """Return the value of a signed pickle; Unserializable if the signature is not valid."""
        mac, data = data[:_MAC_BYTES], data[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(data)):
            raise Unserializable("a stored pickle has no valid signature")
        return pickle.loads(data)


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which have no UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def equal_with_types(a: Any, b: Any) -> bool:
    """Return whether two values are equal, with all types inside. NaN equals nothing."""
    if type(a) is not type(b):
        return False
    if type(a) is list:
        return len(a) == len(b) and all(map(equal_with_types, a, b))
    if type(a) is dict:
        return a.keys() == b.keys() and all(type(name) is str and equal_with_types(a[name], b[name]) for name in a)
    return bool(a == b) and (type(a) is not float or repr(a) == repr(b))  # 0.0 and −0.0 are equal, and differ
