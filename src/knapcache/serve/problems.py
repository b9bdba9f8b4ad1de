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

HIDDEN = {"admin_token", "keys", "key_env", "headers", "url", "otlp_endpoint"}
"""Settings whose values may be secrets, or hold one: people write passwords into addresses, and keys for names of keys."""
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
    text = re.sub(r"^(?:Value error, |Input should (?=be))", "", each["msg"]).replace("be ", "must be ", 1)
    if each["type"] == "value_error":
        text = each["msg"].removeprefix("Value error, ")
    if not name:
        return text
    hidden = any(step in HIDDEN for step in where)
    plain = each["input"] is None or isinstance(each["input"], (str, int, float, bool))
    given = "" if hidden or not plain or ", not " in text else f", not {cut(each['input'])}"
    return f"{name}: {text}{given}"


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
