"""LiteLLM's logs: rows of its table LiteLLM_SpendLogs, or its StandardLoggingPayload, as JSON lines, JSON or CSV.

Fields as of LiteLLM 1.106:

    spend logs        proxy_server_request (the request), response, spend (dollars), startTime, model, cache_hit,
                      cache_key
    logging payload   messages and model_parameters (the request), response, response_cost, startTime, model, cache_hit,
                      saved_cache_cost

Spend logs hold requests and answers only with `store_prompts_in_spend_logs`. Without them, the key is LiteLLM's own
`cache_key`, if its cache was on, or `--key-fields`; the size is `--size`, such as total_tokens.

A call that LiteLLM's cache answered cost nothing. A replay needs what a miss would have cost: `saved_cache_cost`, or
the mean of what the log's other calls for the same key cost. Without either, it is left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from knapcache.lab.traces.base import BrokenLineError, ColumnRules, LeftOutError, TraceBuilder, number, whole
from knapcache.lab.traces.calls import FAILED, CallReader, LoggedCall, body
from knapcache.lab.traces.records import records
from knapcache.lab.traces.source import TraceSource

NO_KEY = frozenset({"", "Cache OFF", "None"})
"""Values of `cache_key` without a cache."""
REDACTED = "redacted-by-litellm"
CACHED = "call that LiteLLM's cache answered, whose cost is unknown (--prices auto prices it)"


def is_log(fields: Iterable[str]) -> bool:
    """Return whether these are the fields of a log of LiteLLM."""
    names = set(fields)
    return {"call_type", "startTime", "model"} <= names and bool(names & {"spend", "response_cost"})


def read(sources: Iterable[TraceSource], rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the calls of all files to `builder`. Calls are added at the end, when the costs of all keys are known."""
    reader: CallReader | None = None
    paid: dict[Hashable, tuple[float, int]] = {}  # cost and number of the calls that no cache answered
    waiting: list[tuple[object, str, Hashable, int, float | None, float | None]] = []
    for source in sources:
        reader = reader or CallReader(rules, builder, has_cost=True, default_time="startTime")
        for place, record in records(source, builder):
            try:
                call, cached = call_of(record)
                unknown = cached and rules.no_cost and not call.usd
                key, size, cost, time = reader.entry(call, 0.0 if unknown else None)
            except BrokenLineError as error:
                builder.broken(place, str(error))
                continue
            except LeftOutError as error:
                builder.left_out(place, str(error))
                continue
            if not cached:
                total, calls = paid.get(key, (0.0, 0))
                paid[key] = total + cost, calls + 1
            waiting.append((source.path, place, key, size, None if unknown else cost, time))
    for path, place, key, size, known, time in waiting:
        builder.path = path
        total, calls = paid.get(key, (0.0, 0)) if known is None else (known, 1)
        if not calls:
            builder.left_out(place, CACHED)
            continue
        try:
            builder.add(key, size, total / calls, time)
        except BrokenLineError as error:
            builder.broken(place, str(error))


def call_of(record: Mapping[str, Any]) -> tuple[LoggedCall, bool]:
    """Return the call of a record, and whether LiteLLM's cache answered it; raises BrokenLineError or LeftOutError."""
    if record.get("status") == "failure":
        raise LeftOutError(FAILED)
    cached = str(record.get("cache_hit")).lower() == "true"
    cost = record.get("spend", record.get("response_cost"))
    if cached:
        cost = record.get("saved_cache_cost")
    model, provider = record.get("model"), record.get("custom_llm_provider")
    counts = {name: record[name] for name in ("prompt_tokens", "completion_tokens") if record.get(name) is not None}
    response = answer_of(record)
    usage = (response or {}).get("usage")
    identity = record.get("cache_key")
    call = LoggedCall(
        line=record,
        request=request_of(record),
        response=response,
        models=tuple(f"{prefix}{model}" for prefix in (f"{provider}/" if provider else "", "") if model),
        usage=usage if isinstance(usage, dict) else {name: whole(name, value) for name, value in counts.items()},
        usd=None if cost is None else number("spend", cost),
        identity=identity if isinstance(identity, str) and identity not in NO_KEY else None,
    )
    return call, cached


def request_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the request: that to LiteLLM's proxy, or the messages with the model and its parameters."""
    if sent := body(record, "proxy_server_request"):
        return sent
    messages = record.get("messages")
    if not messages or messages == "{}" or REDACTED in str(messages)[:200]:
        return None
    parameters = record.get("model_parameters")
    return {
        "model": record.get("model"),
        "messages": messages,
        **({"parameters": parameters} if parameters and parameters != "{}" else {}),
    }


def answer_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the answer; None if the log does not have it."""
    if REDACTED in str(record.get("response"))[:400]:
        return None
    return body(record, "response") or None
