"""Tables of the settings, what `--show-settings` shows of them, and messages about wrong values.

A message is one line: the setting, the allowed values, the given value. The given value is omitted if it may be a
secret, such as a key in place of its digest or a password in a URL.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from knapcache.errors import InvalidInput, suggestion

NOT_SHOWN = "(not shown)"
MAYBE_SECRET = "maybe secret"
"""Annotates a setting whose value may be or contain a secret, also by mistake: a password in a URL, a key in key_env.
Messages about the value omit it. Settings of the type SecretStr need no annotation."""

LIST_SETTINGS = "`knapcache serve --show-settings` lists them"
MAX_SHOWN = 60
"""Characters of a value in a message."""


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


def problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Return one line per problem, in the order of the settings."""
    return list(
        dict.fromkeys(_line(detail, model) for detail in error.errors(include_url=False, include_context=False))
    )


def _line(detail: Any, model: type[BaseModel]) -> str:
    where = [step for step in detail["loc"] if not _is_union_branch(step)]
    name = setting_path(where)
    if detail["type"] == "extra_forbidden":
        return unknown_setting(where, model)
    if detail["type"] == "missing":
        return f"{name} is missing"
    text = plain_message(detail["type"], detail["msg"])
    if not name:
        return text
    hidden = (
        not secret_fields(model).isdisjoint(where) or where[-1] in secret_tables(model) or isinstance(where[-1], int)
    )
    plain = isinstance(detail["input"], (str, int, float, bool))
    given = shorten(detail["input"])
    suffix = "" if hidden or not plain or ", not " in text or given in text else f", not {given}"
    return f"{name}: {text}{suffix}"


def plain_message(kind: str, text: str) -> str:
    """Rewrite pydantic's message in the style of the other messages."""
    if kind == "value_error":
        return text.removeprefix("Value error, ")
    text = re.sub(r", unable to .*| or instance of \w+", "", text).replace("Input should be", "must be")
    for old, new in (
        ("a valid tuple", "a list"),
        ("a valid dictionary", "a table"),
        ("a valid ", "a "),
        ("a int", "an int"),
    ):
        text = text.replace(old, new)
    return text[0].lower() + text[1:]


def _is_union_branch(step: str | int) -> bool:
    """Return whether a location step is pydantic's name of a union member: dict[str,float], float, …"""
    return isinstance(step, str) and (step in ("float", "str", "int", "none") or "[" in step)


def setting_path(where: Sequence[str | int]) -> str:
    """Format a location: tenants[0].quota."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where).removeprefix(".")


def shorten(value: Any) -> str:
    """Return the repr of a value, cut to MAX_SHOWN characters."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def known_names(model: type[BaseModel], where: Sequence[str | int]) -> list[str]:
    """Return the setting names that are valid at a location. Positions in lists do not matter."""
    *outer, _ = where
    for step in outer:
        if isinstance(step, int):
            continue
        kinds = tables_of(model.model_fields[step]) if step in model.model_fields else []
        if not kinds:
            return []
        model = kinds[0]
    return list(model.model_fields)


def unknown_setting(where: Sequence[str | int], model: type[BaseModel], shown: str = "") -> str:
    """Return the line for a setting that does not exist. shown: its name, if that is not its location."""
    otherwise = LIST_SETTINGS if len(where) == 1 else None
    hint = suggestion(str(where[-1]), known_names(model, where), otherwise)
    return f"unknown setting {shown or setting_path(where)}{hint}"
