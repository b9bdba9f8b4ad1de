"""Logs of OpenAI-style calls: one call per line, `{"request": {…}, "response": {…}, …}`; a body may be a text.

`calls.py` says what is the key, the size, the cost and the time of a call.
"""

from __future__ import annotations

from typing import Any

from knapcache.lab.traces.base import BrokenLineError, ColumnRules, TraceBuilder, short
from knapcache.lab.traces.calls import RULES, CallReader, LoggedCall, body
from knapcache.lab.traces.json_lines import objects
from knapcache.lab.traces.source import TraceSource

__all__ = ["RULES", "read"]


def read(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the calls of a file to `builder`."""
    reader = CallReader(rules, builder)
    with source.open() as file:
        for line, row in objects(file, builder):
            try:
                call = LoggedCall(line=row, request=required(row, "request"), response=required(row, "response"))
            except BrokenLineError as error:
                builder.broken(f"line {line}", str(error))
            else:
                reader.add(f"line {line}", call)


def required(row: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a body that is not empty; raises BrokenLineError."""
    found = body(row, name)
    if not found:
        raise BrokenLineError(
            f"{name} is missing" if found is None else f"{name} must be an object, not {short(found)}"
        )
    return found
