"""JSON lines with one call each: OpenAI-style logs and bare request logs. calls.py turns a call into a request.

    openai     {"request": {…}, "response": {…}, …}; a body may be a text
    requests   one request body per line, {"model": …, "messages": […], …}, with or without an answer

The body of a bare request is that of the chat, completions, responses, messages or embeddings endpoint. Fields beside
it may be

    response         the answer, as an object or as text
    usage            its token counts, if the answer is not logged
    a time           a field with the usual name of a time
    id, request_id, latency, cost, …   OTHER_FIELDS

They are not part of the key. Without an answer the size is that of the request alone, so capacities are too small by
the size of the answers, and the cost needs `usage`, `--cost` or `--cost-each`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from knapcache.lab.traces.base import TIME_FIELDS, BrokenLineError, ColumnRules, TraceBuilder, plain_name, short
from knapcache.lab.traces.calls import CallReader, LoggedCall, body
from knapcache.lab.traces.json_lines import objects
from knapcache.lab.traces.source import TraceSource

CONTENT = frozenset({"messages", "prompt", "input", "contents"})
"""Fields of a request body, one of which holds what is asked."""
OTHER_FIELDS = frozenset(
    (
        *TIME_FIELDS, "response", "usage", "id", "requestid", "customid", "traceid", "spanid", "sessionid", "status",
        "statuscode", "latency", "latencyms", "duration", "durationms", "seconds", "cost", "usd", "costusd", "endtime",
    )
)  # fmt: skip
"""Fields of a line that are not part of the request body, written as in TIME_FIELDS."""


def is_request(fields: Mapping[str, Any]) -> bool:
    """Return whether a line looks like a request body."""
    return isinstance(fields.get("model"), str) and bool(CONTENT & fields.keys())


def read_openai(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the calls of a file to `builder`."""

    def call_of(row: dict[str, Any]) -> LoggedCall:
        return LoggedCall(line=row, request=required(row, "request"), response=required(row, "response"))

    add_lines(source, CallReader(rules, builder), call_of)


def read_requests(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the requests of a file to `builder`."""
    others = {plain_name(name) for name in (rules.time, rules.cost, rules.size) if name} | OTHER_FIELDS

    def call_of(row: dict[str, Any]) -> LoggedCall:
        if not is_request(row):
            raise BrokenLineError("must be a request body with model and messages, prompt or input")
        request = {name: value for name, value in row.items() if plain_name(name) not in others}
        usage = row.get("usage") if isinstance(row.get("usage"), dict) else None
        return LoggedCall(line=row, request=request, response=body(row, "response"), usage=usage)

    add_lines(source, CallReader(rules, builder, needs_response=False), call_of)


def add_lines(source: TraceSource, reader: CallReader, call_of: Callable[[dict[str, Any]], LoggedCall]) -> None:
    """Add the call of each line. `call_of` raises BrokenLineError."""
    with source.open() as file:
        for line, row in objects(file, reader.builder):
            try:
                call = call_of(row)
            except BrokenLineError as error:
                reader.builder.broken(f"line {line}", str(error))
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
