"""Logs of OpenAI-style calls: one call per line, `{"request": {…}, "response": {…}, …}`, bodies as objects or texts.

    key    a digest of the request as canonical JSON (keys sorted, no spaces), without `stream`,
           `stream_options`, `user` and `metadata`, which do not change the answer
    size   bytes of both bodies as compact UTF-8 JSON
    cost   `--prices`: tokens of the response's `usage` (prompt_tokens and completion_tokens, or input_tokens and
           output_tokens), all input at the full price; or `--cost FIELD`: a number in the line, such as `latency`
    time   `--time FIELD`; no times without it

Nested fields are named with dots: `--cost timing.total`. A line whose response is an error is broken, because an error
is never cached.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.sim.traces.base import (
    BrokenLineError,
    ColumnRules,
    Prices,
    TraceBuilder,
    number,
    seconds_of,
    short,
    whole,
)
from knapcache.sim.traces.json_lines import objects, parse
from knapcache.sim.traces.source import TraceSource

RULES = frozenset({"time", "no-time", "cost", "cost-each", "prices"})
NOT_IN_KEY = frozenset({"stream", "stream_options", "user", "metadata"})
USAGE = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))


def read(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the calls of a file to `builder`."""
    if rules.no_cost:
        raise InvalidInput(
            f"{source.path} is a log of calls without costs: use --prices IN,OUT in dollars per million tokens, "
            f"--cost FIELD for a field such as the latency, or --cost-each X"
        )
    with source.open() as file:
        for line, call in objects(file, builder):
            try:
                add(builder, rules, call)
            except BrokenLineError as error:
                builder.broken(f"line {line}", str(error))


def add(builder: TraceBuilder, rules: ColumnRules, call: dict[str, Any]) -> None:
    """Add one call; raises BrokenLineError."""
    request, response = body(call, "request"), body(call, "response")
    if response.get("error") is not None:
        raise BrokenLineError("response is an error")
    if rules.prices is not None:
        cost = usage_cost(response, rules.prices)
    elif rules.cost is not None:
        cost = number(rules.cost, at(call, rules.cost))
    else:
        cost = rules.cost_each or 0.0
    time = None if rules.time is None else seconds_of(rules.time, at(call, rules.time))
    builder.add(key(request), size(request) + size(response), cost, time)


def body(call: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the body of a request or response, given as an object or as JSON text."""
    value = call.get(name)
    if isinstance(value, str):
        try:
            value = parse(value.encode("utf-8", "surrogatepass"))
        except BrokenLineError as error:
            raise BrokenLineError(f"{name} is {error}") from None
    if not isinstance(value, dict) or not value:
        raise BrokenLineError(
            f"{name} is missing" if value is None else f"{name} must be an object, not {short(value)}"
        )
    return value


def key(request: dict[str, Any]) -> str:
    """Return a 128-bit digest that is equal for equal requests."""
    kept = {name: value for name, value in request.items() if name not in NOT_IN_KEY}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))  # ASCII: every text has exactly one encoding
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def size(value: dict[str, Any]) -> int:
    """Return the number of bytes as compact JSON."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def usage_cost(response: dict[str, Any], prices: Prices) -> float:
    """Return the cost of the tokens in the response's `usage`."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        raise BrokenLineError("response.usage is missing")
    for names in USAGE:
        if names[0] in usage:
            counts = [whole(f"response.usage.{name}", usage.get(name)) for name in names]
            if min(counts) < 0 or max(counts) >= 2**62:
                raise BrokenLineError(f"response.usage must contain token counts, not {short(counts)}")
            return prices.cost(*counts)
    raise BrokenLineError("response.usage has neither prompt_tokens nor input_tokens")


def at(call: dict[str, Any], name: str) -> Any:
    """Return a field. Dots in the name select fields of nested objects."""
    value: Any = call
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        raise BrokenLineError(f"{name} is missing")
    return value
