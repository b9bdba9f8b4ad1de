"""Logs of calls: from one call, with its request and answer, to a request of the trace. Common part of several formats.

    key    a digest of the request as canonical JSON (keys sorted, no spaces), without `stream`, `stream_options`,
           `user` and `metadata`, which do not change the answer; or the fields of `--key-fields`
    size   bytes of request and answer as compact UTF-8 JSON; or the field of `--size`
    cost   `--prices IN,OUT`: the tokens of the answer's `usage`, all input at the full price;
           `--prices auto`: the same usage at the prices of the call's own model (genai-prices, current prices);
           `--cost FIELD`: a number in the line, such as `latency`; otherwise the dollars that the log has itself
    time   `--time FIELD`, or a field with the usual name of a time in the first line, or the answer's `created`

Nested fields are named with dots: `--cost timing.total`. A failed call is left out, because an error is never cached.
So is a call whose model has no known price: a cost of 0 would say that a cache need not keep its answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.lab.trace import USD
from knapcache.lab.traces.base import (
    AUTO,
    BrokenLineError,
    ColumnRules,
    LeftOutError,
    Prices,
    TraceBuilder,
    find_time,
    key_of,
    number,
    seconds_of,
    short,
    whole,
)
from knapcache.lab.traces.json_lines import parse
from knapcache.model import Endpoint
from knapcache.price.meter import Meter
from knapcache.wire.registry import endpoint_of

RULES = frozenset({"time", "no-time", "key", "size", "cost", "cost-each", "prices"})
NOT_IN_KEY = frozenset({"stream", "stream_options", "user", "metadata"})
USAGE = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))
FAILED = "failed call"
NO_ANSWER = "without an answer: the size is that of the request alone (--size names another field)"
OBJECTS = {
    "chat.completion": Endpoint.CHAT,
    "text_completion": Endpoint.COMPLETIONS,
    "response": Endpoint.RESPONSES,
    "list": Endpoint.EMBEDDINGS,
    "message": Endpoint.MESSAGES,
}
"""Endpoints by the `object`, or the `type`, of their answers."""


@dataclass(frozen=True, kw_only=True)
class LoggedCall:
    """One call, as far as its log has it."""

    line: Mapping[str, Any]
    """The fields that `--time`, `--key-fields`, `--size` and `--cost` name."""
    request: Mapping[str, Any] | None
    response: Mapping[str, Any] | None
    models: tuple[str, ...] = ()
    """Names of the model, the best one for a price first. Default: those in the answer and in the request."""
    usage: Mapping[str, Any] | None = None
    """Token counts. Default: those in the answer."""
    usd: float | None = None
    """Dollars, where the log has them."""
    path: str = ""
    """The path of the endpoint, where the log has it."""
    batch: bool = False
    """The call was made through the provider's batch API."""
    identity: str | None = None
    """What is equal for equal requests, where the log has it and no request."""


class QuietMeter(Meter):
    """A meter that logs nothing: the reader reports models without a price."""

    def _warn(self, model: str, problem: str) -> None:
        pass


@dataclass
class CallReader:
    """Adds calls to a trace under the user's rules."""

    rules: ColumnRules
    builder: TraceBuilder
    has_cost: bool = False
    """Whether the log has costs of its own."""
    needs_response: bool = True
    """Whether a call without an answer has no size."""
    default_time: str | None = None
    """The log's field for the time of a call. None: find it in the first line."""
    meter: Meter | None = None
    time: str | None = field(default=None, init=False)
    seen: bool = field(default=False, init=False)
    """Whether the first call was read, which decides the field of the time."""
    in_response: bool = field(default=False, init=False)
    """Whether the time is a field of the answer."""

    def __post_init__(self) -> None:
        if self.rules.no_cost and not self.has_cost:
            raise InvalidInput(
                f"{self.builder.path} has no costs: use --prices auto for each model's own price, "
                "--prices IN,OUT in dollars per million tokens, --cost FIELD for a field such as the latency, or "
                "--cost-each X"
            )
        if self.rules.prices == AUTO:
            self.meter = QuietMeter("usd")
        self.builder.units.add(USD if self.rules.no_cost else self.rules.unit)

    def add(self, place: str, call: LoggedCall) -> None:
        """Add one call. Reports a broken line, or one that is left out, to the builder."""
        try:
            self.builder.add(*self.entry(call))
        except BrokenLineError as error:
            self.builder.broken(place, str(error))
        except LeftOutError as error:
            self.builder.left_out(place, str(error))

    def entry(self, call: LoggedCall, cost: float | None = None) -> tuple[Hashable, int, float, float | None]:
        """Return key, size, cost and time of a call; raises BrokenLineError or LeftOutError."""
        response = call.response
        if response is not None and response.get("error") is not None:
            raise LeftOutError(FAILED)
        key, size = self.key(call), self.size(call)
        return key, size, self.cost(call) if cost is None else cost, self.when(call)

    def key(self, call: LoggedCall) -> Hashable:
        if self.rules.key is not None:
            return key_of([at(call.line, name) for name in self.rules.key])
        if call.request:
            return digest(call.request)
        if call.identity:
            return call.identity
        raise BrokenLineError(
            "the request is missing; --key-fields FIELD names a field that is equal for equal requests"
        )

    def size(self, call: LoggedCall) -> int:
        if self.rules.size is not None:
            return whole(self.rules.size, at(call.line, self.rules.size))
        if call.response is None and self.needs_response:
            raise BrokenLineError("the answer is missing; --size FIELD names a field with its size")
        if call.response is None:
            self.builder.notice(NO_ANSWER)
        return sum(json_size(body) for body in (call.request, call.response) if body)

    def cost(self, call: LoggedCall) -> float:
        rules = self.rules
        if isinstance(rules.prices, Prices):
            return usage_cost(usage_of(call), rules.prices)
        if self.meter is not None:
            return self.price(call, self.meter)
        if rules.cost is not None:
            return number(rules.cost, at(call.line, rules.cost))
        if rules.cost_each is not None:
            return rules.cost_each
        if call.usd is None:
            raise LeftOutError(f"call of {names_of(call)} without a cost in the log (--prices auto prices it)")
        return call.usd

    def price(self, call: LoggedCall, meter: Meter) -> float:
        """Return the dollars of a call by the price of its own model; raises LeftOutError if there is none."""
        usage = usage_of(call)
        token_counts(usage)  # a clear message about a usage that no provider sends
        endpoint = endpoint_of_call(call, usage)
        for model in models_of(call):
            usd = meter.bill(endpoint, model, usage, 0.0, batch=call.batch).usd
            if usd is not None:
                return usd
        raise LeftOutError(f"call of {names_of(call)}, which has no known price")

    def when(self, call: LoggedCall) -> float | None:
        """Return the time of a call. The first call decides where to find it."""
        if self.rules.no_time:
            return None
        if not self.seen:
            self.seen = True
            self.time = self.rules.time or self.default_time or find_time(call.line)
            self.in_response = self.time is None
            self.time = self.time or time_of_response(call.response)
        if self.time is None:
            return None
        if not self.in_response:
            return seconds_of(self.time, at(call.line, self.time))
        value = (call.response or {}).get(self.time)
        if value is None:  # not every endpoint has this field: then the trace has no times
            self.time = None
            return None
        return seconds_of(f"response.{self.time}", value)


def time_of_response(response: Mapping[str, Any] | None) -> str | None:
    """Return the field of an answer that says when it was created."""
    names = [name for name in ("created", "created_at") if response and response.get(name) is not None]
    return names[0] if names else None


def body(line: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the body of a request or answer, given as an object or as JSON text; None if there is none."""
    value = line.get(name)
    if isinstance(value, str) and value:
        try:
            value = parse(value.encode("utf-8", "surrogatepass"))
        except BrokenLineError as error:
            raise BrokenLineError(f"{name} is {error}") from None
    if value is None or value == "":
        return None
    if not isinstance(value, dict):
        raise BrokenLineError(f"{name} must be an object, not {short(value)}")
    return value


def digest(request: Mapping[str, Any]) -> str:
    """Return a 128-bit digest that is equal for equal requests."""
    kept = {name: value for name, value in request.items() if name not in NOT_IN_KEY}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))  # ASCII: every text has exactly one encoding
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def json_size(value: Mapping[str, Any]) -> int:
    """Return the number of bytes as compact JSON."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def usage_of(call: LoggedCall) -> Mapping[str, Any]:
    """Return the token counts of a call; raises BrokenLineError."""
    usage = call.usage if call.usage is not None else (call.response or {}).get("usage")
    if not isinstance(usage, Mapping):
        raise BrokenLineError("response.usage is missing")
    return usage


def token_counts(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Return input and output tokens; raises BrokenLineError. An embedding has no output."""
    for names in USAGE:
        if names[0] in usage:
            counts = whole(f"response.usage.{names[0]}", usage[names[0]]), 0
            if names[1] in usage or "total_tokens" not in usage:
                counts = counts[0], whole(f"response.usage.{names[1]}", usage.get(names[1]))
            if min(counts) < 0 or max(counts) >= 2**62:
                raise BrokenLineError(f"response.usage must contain token counts, not {short(counts)}")
            return counts
    raise BrokenLineError("response.usage has neither prompt_tokens nor input_tokens")


def usage_cost(usage: Mapping[str, Any], prices: Prices) -> float:
    """Return the cost of the tokens at these prices."""
    return prices.cost(*token_counts(usage))


def models_of(call: LoggedCall) -> list[str]:
    """Return the names that the call's model has in its log."""
    bodies = (body.get("model") for body in (call.response, call.request) if body)
    return [name for name in dict.fromkeys((*call.models, *bodies)) if isinstance(name, str) and name]


def names_of(call: LoggedCall) -> str:
    """Return the call's model for a message."""
    return next((f"model {short(name)}" for name in reversed(models_of(call))), "an unnamed model")


def endpoint_of_call(call: LoggedCall, usage: Mapping[str, Any]) -> Endpoint:
    """Return the endpoint of a call, which decides how its usage is read: by path, by answer, or by usage."""
    response = call.response or {}
    kind = response.get("object") or response.get("type")
    found = endpoint_of(call.path) if call.path else None
    found = found or (OBJECTS.get(kind) if isinstance(kind, str) else None)
    if found:
        return found
    if "input_tokens" not in usage:
        return Endpoint.CHAT
    anthropic = "cache_read_input_tokens" in usage or any("claude" in name for name in models_of(call))
    return Endpoint.MESSAGES if anthropic else Endpoint.RESPONSES


def at(line: Mapping[str, Any], name: str) -> Any:
    """Return a field. Dots in the name select fields of nested objects."""
    value: Any = line.get(name)
    if value is None:
        value = line
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None or value == "":
        raise BrokenLineError(f"{name} is missing")
    return value
