"""Tables of the settings, what `--show-settings` shows of them, and which values no message repeats."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, SecretStr
from pydantic.fields import FieldInfo

from knapcache.errors import InvalidInput

NOT_SHOWN = "(not shown)"
MAYBE_SECRET = "maybe secret"
"""Annotates a setting whose value may be or contain a secret, also by mistake: a password in a URL, a key in key_env.
Messages about the value omit it. Settings of the type SecretStr need no annotation."""


class Table(BaseModel):
    """A table of the settings. It is immutable, and unknown names are errors."""

    # Not built here: the schema of `Settings` includes that of every table, and of classes without features' fields no
    # schema is needed.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)

    def shown(self) -> dict[str, Any]:
        """Return the table in JSON types, without secrets."""
        return {name: redacted(getattr(self, name)) for name in type(self).model_fields}


def redacted(value: Any) -> Any:
    """Convert a value to JSON types and replace secrets."""
    if isinstance(value, SecretStr):
        return NOT_SHOWN
    if isinstance(value, Table):
        return value.shown()
    if isinstance(value, BaseModel):
        return {name: redacted(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, tuple):
        return [redacted(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def unique_names(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Reject tables with the same name."""
    names = [item.name for item in items]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput(f"must have different names: {duplicates[0]!r} occurs more than once")
    return items


@functools.cache
def secret_fields(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of the settings whose values no message repeats, also of those in tables."""
    found = {name for name, field in model.model_fields.items() if _may_be_secret(field)}
    for field in model.model_fields.values():
        for table in tables_of(field):
            found |= secret_fields(table)
    return frozenset(found)


@functools.cache
def secret_tables(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of the settings that are tables with such settings: unparsed text may contain them."""
    return frozenset(
        name for name, field in model.model_fields.items() if any(secret_fields(table) for table in tables_of(field))
    )


def tables_of(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the models of the tables in a setting."""
    return [kind for kind in _types_in(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _may_be_secret(field: FieldInfo) -> bool:
    return MAYBE_SECRET in field.metadata or SecretStr in _types_in(field.annotation)


def _types_in(annotation: Any) -> Iterator[Any]:
    """Yield a type and the types in it: of tuple[X, ...], X | None and Annotated[X, …]."""
    yield annotation
    for inner in get_args(annotation):
        yield from _types_in(inner)
