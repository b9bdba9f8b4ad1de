"""Turns validation errors into one line each: the setting, the allowed values, the given value.

The given value is omitted if it may be a secret, such as a key in place of its digest or a password in a URL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from knapcache.errors import suggestion
from knapcache.proxy.settings.tables import secret_fields, secret_tables, tables_of

LIST_SETTINGS = "`knapcache serve --show-settings` lists them"
MAX_SHOWN = 60
"""Characters of a value in a message."""


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
    """Return the setting names that are valid at a location."""
    if len(where) == 1:
        return list(model.model_fields)
    kinds = tables_of(model.model_fields[str(where[0])])
    return list(kinds[0].model_fields) if kinds else []


def unknown_setting(where: Sequence[str | int], model: type[BaseModel], shown: str = "") -> str:
    """Return the line for a setting that does not exist. shown: its name, if that is not its location."""
    otherwise = LIST_SETTINGS if len(where) == 1 else None
    hint = suggestion(str(where[-1]), known_names(model, where), otherwise)
    return f"unknown setting {shown or setting_path(where)}{hint}"
