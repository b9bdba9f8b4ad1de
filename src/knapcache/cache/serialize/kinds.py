"""Kinds of values beside those of JSON: each is taken apart into simpler values, and made again from them.

    take(value) -> simpler value         JSON values, bytes, and other values that have a kind
    make(simpler value, known) -> value  raises an error for anything that `take` cannot have returned

Types are exact: a subclass of `int` or `dict` has no kind, because it would come back as another type.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import pathlib
import uuid
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from knapcache.cache.serialize.classes import KnownClasses, class_name, is_model, is_named_tuple, model_base
from knapcache.errors import InvalidInput, Unserializable

PATHS = {
    cls.__name__: cls
    for cls in (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}


def checked(value: Any, kind: type) -> Any:
    """Return a part of a stored value that must have this type."""
    if type(value) is not kind:
        raise Unserializable(f"a stored value has a {type(value).__name__} instead of a {kind.__name__}")
    return value


class Kind(NamedTuple):
    """How values of one kind are taken apart and made."""

    tag: str
    take: Callable[[Any], Any]
    make: Callable[[Any, KnownClasses], Any]
    names_class: bool = False
    """The first item that `take` returns is the name of the value's class."""


def simple(tag: str, take: Callable[[Any], Any], make: Callable[[Any], Any]) -> Kind:
    """Return a kind whose values need no class by name."""
    return Kind(tag, take, lambda parts, _known: make(parts))


def sequence(cls: type) -> Kind:
    """Return the kind of a collection that is made from a list."""
    return simple(cls.__name__, list, lambda items: cls(checked(items, list)))


# Numbers and others of the standard library.


def make_complex(parts: Any) -> complex:
    real, imaginary = (checked(part, float) for part in checked(parts, list))
    return complex(real, imaginary)


def make_fraction(parts: Any) -> Fraction:
    numerator, denominator = (checked(part, int) for part in checked(parts, list))
    return Fraction(numerator, denominator)


def make_path(parts: Any) -> pathlib.PurePath:
    name, text = checked(parts, list)
    return PATHS[name](checked(text, str))


def make_items(parts: Any) -> dict[Any, Any]:
    return dict(checked(pair, list) for pair in checked(parts, list))


def make_range(parts: Any) -> range:
    return range(*(checked(part, int) for part in checked(parts, list)))


# Dates and times.


def take_zone(zone: dt.tzinfo | None) -> Any:
    """Return a time zone as None, a name of the IANA database, or an offset with its name."""
    if zone is None:
        return None
    if type(zone) is zoneinfo.ZoneInfo and zone.key:
        return zone.key
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        return [take_delta(offset), None if name == dt.timezone(offset).tzname(None) else name]
    raise Unserializable(f"a time zone of type {type(zone).__module__}.{type(zone).__qualname__}")


def make_zone(parts: Any) -> dt.tzinfo | None:
    """Return a time zone that `take_zone` took apart."""
    if parts is None or type(parts) is str:
        return None if parts is None else zoneinfo.ZoneInfo(parts)
    offset, name = checked(parts, list)
    return dt.timezone(make_delta(offset)) if name is None else dt.timezone(make_delta(offset), name)


def take_delta(delta: dt.timedelta) -> list[int]:
    return [delta.days, delta.seconds, delta.microseconds]


def make_delta(parts: Any) -> dt.timedelta:
    days, seconds, microseconds = (checked(part, int) for part in checked(parts, list))
    return dt.timedelta(days, seconds, microseconds)


def take_time(value: dt.datetime | dt.time) -> list[Any]:
    return [value.replace(tzinfo=None).isoformat(), value.fold, take_zone(value.tzinfo)]


def make_time(cls: type[dt.datetime] | type[dt.time], parts: Any) -> Any:
    text, fold, zone = checked(parts, list)
    return cls.fromisoformat(text).replace(fold=fold, tzinfo=make_zone(zone))


# Classes with fields. `KnownClasses.find` gives the class.


def find_class(name: Any, known: KnownClasses, qualifies: Callable[[type], bool]) -> Any:
    """Return a class that a stored value names; Unserializable if this process does not know it."""
    cls = known.find(checked(name, str))
    if cls is None:
        raise Unserializable(
            f"its class {name:.200} is not known in this process: annotate the function's return type with it, or pass "
            "it to TypedSerializer(types=…)"
        )
    if not qualifies(cls):
        raise Unserializable(f"{name:.200} is another kind of class now")
    return cls


def is_enum(cls: type) -> bool:
    return issubclass(cls, enum.Enum)


def take_enum(value: enum.Enum) -> list[Any]:
    return [class_name(type(value)), value.value if isinstance(value, enum.Flag) else value.name]


def make_enum(parts: Any, known: KnownClasses) -> enum.Enum:
    name, member = checked(parts, list)
    cls = find_class(name, known, is_enum)
    found: enum.Enum = cls(checked(member, int)) if issubclass(cls, enum.Flag) else cls.__members__[member]
    return found


def take_named_tuple(value: Any) -> list[Any]:
    if getattr(value, "__dict__", None):
        raise Unserializable(f"a {class_name(type(value))} has attributes that are not fields")
    return [class_name(type(value)), list(value._fields), list(value)]


def make_named_tuple(parts: Any, known: KnownClasses) -> Any:
    name, fields, items = checked(parts, list)
    cls = find_class(name, known, is_named_tuple)
    check_fields(name, fields, cls._fields)
    if len(checked(items, list)) != len(fields):
        raise Unserializable(f"a stored {name} has {len(items)} items")
    return tuple.__new__(cls, items)


def check_fields(name: str, stored: Any, current: Any) -> None:
    """Raise Unserializable if a class has other fields than when the value was stored."""
    if set(stored) != set(current):
        raise Unserializable(f"{name} has other fields than when the value was stored")


@functools.lru_cache(maxsize=1024)
def field_names(cls: Any) -> frozenset[str]:
    """Return the fields of a dataclass. Unserializable if its objects have a state beside them."""
    names = frozenset(field.name for field in dataclasses.fields(cls))
    slots = {slot for base in cls.__mro__ for slot in slots_of(base)} - {"__dict__", "__weakref__"}
    if not slots <= names:
        raise Unserializable(f"a {class_name(cls)} has slots that are not fields")
    try:
        object.__new__(cls)
    except TypeError:
        raise Unserializable(f"a {class_name(cls)} is derived from a built-in type") from None
    return names


def slots_of(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def own_attributes(value: Any, names: Any) -> dict[str, Any]:
    """Return the attributes of an object that are not fields and not computed from them by a cached property."""
    others = {name: inner for name, inner in getattr(value, "__dict__", {}).items() if name not in names}
    cls = type(value)
    return {n: v for n, v in others.items() if not isinstance(getattr(cls, n, None), functools.cached_property)}


def take_dataclass(value: Any) -> list[Any]:
    cls: Any = type(value)
    names = field_names(cls)
    if others := own_attributes(value, names):
        raise Unserializable(f"a {class_name(cls)} has attributes that are not fields: {', '.join(sorted(others))}")
    try:
        return [class_name(cls), {name: getattr(value, name) for name in sorted(names)}]
    except AttributeError as error:
        raise Unserializable(f"a field has no value: {error}") from None


def make_dataclass(parts: Any, known: KnownClasses) -> Any:
    name, fields = checked(parts, list)
    cls = find_class(name, known, dataclasses.is_dataclass)
    check_fields(name, checked(fields, dict), field_names(cls))
    found = object.__new__(cls)
    for field, value in fields.items():
        object.__setattr__(found, field, value)
    return found


def take_model(value: Any) -> list[Any]:
    cls = type(value)
    fields = {name: value.__dict__[name] for name in cls.model_fields if name in value.__dict__}
    others = own_attributes(value, fields)
    if not all(is_free_name(cls, name) for name in others):
        raise Unserializable(f"a {class_name(cls)} has attributes that are not fields: {', '.join(sorted(others))}")
    private = getattr(value, "__pydantic_private__", None)
    return [
        class_name(cls),
        fields,
        [name for name in cls.model_fields if name not in fields],  # not set, or deleted
        getattr(value, "__pydantic_extra__", None),
        sorted(value.__pydantic_fields_set__),
        private if private is None else dict(private),
        others,
    ]


def is_free_name(cls: type, name: str) -> bool:
    """Return whether a model may have an attribute that is not a field, such as `_request_id` of the SDKs."""
    return name.startswith("_") and not name.startswith("__") and not hasattr(cls, name)


def make_model(parts: Any, known: KnownClasses) -> Any:
    name, fields, missing, extra, fields_set, private, others = checked(parts, list)
    cls = find_class(name, known, is_model)
    check_fields(name, [*checked(fields, dict), *checked(missing, list)], cls.model_fields)
    if set(private or ()) - set(cls.__private_attributes__) or not all(is_free_name(cls, other) for other in others):
        raise Unserializable(f"{name} has other private attributes than when the value was stored")
    found = object.__new__(cls)
    state = {"__dict__": {**fields, **others}, "__pydantic_extra__": extra, "__pydantic_private__": private}
    model_base().__setstate__(found, {**state, "__pydantic_fields_set__": set(checked(fields_set, list))})
    return found


def fields_kind(tag: str, take: Callable[[Any], Any], make: Callable[[Any, KnownClasses], Any]) -> Kind:
    return Kind(tag, take, make, names_class=True)


ENUM = fields_kind("enum", take_enum, make_enum)
NAMED_TUPLE = fields_kind("namedtuple", take_named_tuple, make_named_tuple)
DATACLASS = fields_kind("dataclass", take_dataclass, make_dataclass)
MODEL = fields_kind("model", take_model, make_model)
PATH = simple("path", lambda path: [type(path).__name__, str(path)], make_path)
ITEMS = simple("items", lambda value: [[name, inner] for name, inner in value.items()], make_items)
"""Dicts with other names than text."""
STANDARD: dict[type, Kind] = {
    tuple: sequence(tuple),
    set: sequence(set),
    frozenset: sequence(frozenset),
    bytearray: simple("bytearray", bytes, lambda data: bytearray(checked(data, bytes))),
    complex: simple("complex", lambda value: [value.real, value.imag], make_complex),
    range: simple("range", lambda value: [value.start, value.stop, value.step], make_range),
    Decimal: simple("decimal", str, lambda text: Decimal(checked(text, str))),
    Fraction: simple("fraction", lambda value: [value.numerator, value.denominator], make_fraction),
    uuid.UUID: simple("uuid", lambda value: value.hex, lambda text: uuid.UUID(checked(text, str))),
    dt.date: simple("date", dt.date.isoformat, lambda text: dt.date.fromisoformat(checked(text, str))),
    dt.datetime: simple("datetime", take_time, functools.partial(make_time, dt.datetime)),
    dt.time: simple("time", take_time, functools.partial(make_time, dt.time)),
    dt.timedelta: simple("timedelta", take_delta, make_delta),
    **dict.fromkeys(PATHS.values(), PATH),
}
BY_CLASS = (ENUM, NAMED_TUPLE, DATACLASS, MODEL)


class Kinds:
    """The kinds of values that one serializer stores."""

    def __init__(self) -> None:
        self._by_type = dict(STANDARD)
        self._by_tag = {kind.tag: kind for kind in (*STANDARD.values(), *BY_CLASS, ITEMS)}

    def register(self, cls: type, name: str, take: Callable[[Any], Any], make: Callable[[Any], Any]) -> None:
        """Add a kind for exactly this class. `name` is stored with its values, and must stay the same."""
        tag = f"{name}:custom"
        if not isinstance(cls, type) or not isinstance(name, str) or not name:
            raise InvalidInput(f"register takes a class and a name, not {cls!r} and {name!r}")
        if tag in self._by_tag:
            raise InvalidInput(f"the name {name!r} is registered already")
        self._by_type[cls] = self._by_tag[tag] = simple(tag, take, make)

    def with_tag(self, tag: str) -> Kind:
        """Return the kind of a stored value."""
        kind = self._by_tag.get(tag)
        if kind is None:
            raise Unserializable(f"a stored value has the unknown kind {tag:.100}")
        return kind

    def of(self, value: Any) -> Kind | None:
        """Return the kind of a value; None if it has none."""
        cls = type(value)
        found = self._by_type.get(cls)
        if found is not None:
            return found
        if is_enum(cls):
            return ENUM
        if is_named_tuple(cls):
            return NAMED_TUPLE
        if is_model(cls):
            return MODEL
        return DATACLASS if dataclasses.is_dataclass(cls) else None
