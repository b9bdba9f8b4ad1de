"""What is wrong with settings, in one line each: the setting, what is allowed, what was given.

What was given is shown only where it cannot be a secret. A key written where its digest belongs, a password in an
address, a token that is too short: such lines say what is allowed and no more.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

HIDDEN = {"admin_token", "keys", "key_env", "headers", "url", "otlp_endpoint", "proxy"}
"""Settings whose values may be secrets, or hold one: passwords get into addresses, keys stand for names of keys."""
WHOLE = {"upstreams", "tenants", "prices"}
"""Text that was meant to be these, and could not be read, may hold all of the above."""
SHOWN = 60
"""Characters of a value that are enough to find it."""


def problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """A line for each, in the order of the settings."""
    return list(dict.fromkeys(_line(each, model) for each in error.errors(include_url=False, include_context=False)))


def _line(each: Any, model: type[BaseModel]) -> str:
    where = [step for step in each["loc"] if not _is_a_branch(step)]
    name = path(where)
    if each["type"] == "extra_forbidden":
        return f"{name} is no setting{near(str(where[-1]), known(model, where))}"
    if each["type"] == "missing":
        return f"{name} is missing"
    text = words(each["type"], each["msg"])
    if not name:
        return text
    hidden = any(step in HIDDEN for step in where) or where[-1] in WHOLE or isinstance(where[-1], int)
    plain = each["input"] is None or isinstance(each["input"], (str, int, float, bool))
    given = "" if hidden or not plain or ", not " in text else f", not {cut(each['input'])}"
    return f"{name}: {text}{given}"


def words(kind: str, text: str) -> str:
    """What is allowed, in our words where pydantic has its own."""
    if kind == "value_error":
        return text.removeprefix("Value error, ")
    text = re.sub(r", unable to .*| or instance of \w+", "", text).replace("Input should be", "must be")
    for theirs, ours in (
        ("a valid tuple", "a list"),
        ("a valid dictionary", "a table"),
        ("a valid ", "a "),
        ("a int", "an int"),
    ):
        text = text.replace(theirs, ours)
    return text[0].lower() + text[1:]


def _is_a_branch(step: str | int) -> bool:
    """A form among several that a value may have, which pydantic puts into the place: dict[str,float], float, …"""
    return isinstance(step, str) and (step in ("float", "str", "int", "none") or "[" in step)


def path(where: Sequence[str | int]) -> str:
    """tenants[0].quota"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where).removeprefix(".")


def cut(value: Any) -> str:
    """A value, short."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def known(model: type[BaseModel], where: Sequence[str | int]) -> list[str]:
    """Names that could stand there."""
    if len(where) == 1:
        return list(model.model_fields)
    inner = model.model_fields[str(where[0])].annotation
    kinds = [kind for kind in getattr(inner, "__args__", ()) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return list(kinds[0].model_fields) if kinds else []


def near(name: str, names: Sequence[str]) -> str:
    """A hint at what was meant."""
    found = difflib.get_close_matches(name, names, 1)
    return f": did you mean {found[0]}?" if found else ""
