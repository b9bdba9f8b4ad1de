"""Parts of stored values: a check of their types, and dates and times taken apart."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

from knapcache.errors import Unserializable


def checked(value: Any, kind: type) -> Any:
    """Return a part of a stored value that must have this type."""
    if type(value) is not kind:
        raise Unserializable(f"a stored value has a {type(value).__name__} instead of a {kind.__name__}")
    return value


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
