"""Helicone's exports: JSON lines, JSON or CSV, as written by `@helicone/export` 1.0, or rows of its requests API.

    request_body, response_body     the bodies, with the exporter's option --include-body; its CSV has no response_body
    request_created_at              the time
    request_model, response_model, model, request_path, response_status
    prompt_tokens, completion_tokens
    costUSD, cost_usd, cost         dollars: by default the cost of a call

The exporter writes the newest call first; the trace is sorted by time. In its CSV, the quotes inside a body are
doubled twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from knapcache.lab.traces.base import BrokenLineError, ColumnRules, LeftOutError, TraceBuilder, number, whole
from knapcache.lab.traces.calls import FAILED, CallReader, LoggedCall, body
from knapcache.lab.traces.records import records
from knapcache.lab.traces.source import TraceSource

COSTS = ("costUSD", "cost_usd", "cost")
MODELS = ("response_model", "model", "request_model")


def is_export(fields: Iterable[str]) -> bool:
    """Return whether these are the fields of an export."""
    return {"request_created_at", "response_status"} <= set(fields)


def read(sources: Iterable[TraceSource], rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the calls of all files to `builder`."""
    reader: CallReader | None = None
    for source in sources:
        reader = reader or CallReader(
            rules, builder, has_cost=True, needs_response=False, default_time="request_created_at"
        )
        for place, record in records(source, builder):
            try:
                call = call_of(record)
            except BrokenLineError as error:
                builder.broken(place, str(error))
            except LeftOutError as error:
                builder.left_out(place, str(error))
            else:
                reader.add(place, call)


def call_of(record: Mapping[str, Any]) -> LoggedCall:
    """Return the call of a record; raises BrokenLineError or LeftOutError."""
    status = record.get("response_status")
    if status is not None and not 200 <= whole("response_status", status) < 300:
        raise LeftOutError(FAILED)
    response = plain_body(record, "response_body")
    usage = (response or {}).get("usage")
    if not isinstance(usage, dict) and record.get("prompt_tokens") is not None:
        counts = (("prompt_tokens", record["prompt_tokens"]), ("completion_tokens", record.get("completion_tokens", 0)))
        usage = {name: whole(name, value or 0) for name, value in counts}
    costs = [number(name, record[name]) for name in COSTS if record.get(name) is not None]
    path = record.get("request_path")
    return LoggedCall(
        line=record,
        request=plain_body(record, "request_body"),
        response=response,
        models=tuple(str(record[name]) for name in MODELS if record.get(name)),
        usage=usage if isinstance(usage, dict) else None,
        usd=costs[0] if costs else None,
        path=path if isinstance(path, str) else "",
    )


def plain_body(record: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return a body. In CSV its quotes may be doubled once more than CSV needs."""
    text = record.get(name)
    if isinstance(text, str) and text.lstrip().startswith('{""'):
        return body({name: text.replace('""', '"')}, name)
    return body(record, name)
