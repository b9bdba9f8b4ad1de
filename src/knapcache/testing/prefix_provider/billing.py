"""The provider and its bills: caches per credential and model, usage in its answers, and a ledger of all requests."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from knapcache.testing.prefix_provider.caches import (
    ANTHROPIC_PRICES,
    AUTOMATIC_PRICES,
    BREAKPOINT_PRICES,
    AnthropicCache,
    AutomaticCache,
    BreakpointCache,
    PendingWrite,
    PrefixCacheModel,
    PrefixCharge,
    PrefixPrices,
    anthropic_minimum,
)
from knapcache.testing.prefix_provider.prompt import (
    Body,
    CountTokens,
    PromptBlock,
    PromptRejected,
    anthropic_prompt,
    openai_prompt,
    tokens_by_length,
)
from knapcache.testing.upstream import FakeUpstream, InputCharge, UpstreamCall

OPENAI_ENDPOINTS = ("/chat/completions", "/responses")


class VirtualClock:
    """A clock that only tests move."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class BilledRequest(NamedTuple):
    """One request and its bill."""

    time: float
    endpoint: str
    credential: str
    model: str
    status: int
    charge: PrefixCharge
    cost: float
    """Of the input, in plain tokens."""
    marks: tuple[tuple[int, float], ...]
    """Length in tokens and TTL of each mark."""


def has_breakpoints(model: str) -> bool:
    """Return whether a model of OpenAI supports breakpoints: GPT-5.6 and later."""
    found = re.search(r"gpt-(\d+)(?:\.(\d+))?", model)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= (5, 6)


def contains_field(value: Any, field: str) -> bool:
    """Return whether JSON has this field at any depth."""
    if isinstance(value, dict):
        return field in value or any(contains_field(item, field) for item in value.values())
    return isinstance(value, list) and any(contains_field(item, field) for item in value)


class PrefixBilling:
    """Charges requests for their input. Endpoints other than messages, chat and responses have no cache.

    clock               seconds; a `VirtualClock` makes time a part of the test
    count_tokens        tokens of a text; `tokens_by_length` lets small bodies stand for long ones
    minimum             shortest cached prefix; None: Anthropic's by model, and 1,024 for OpenAI
    upgrades            see `AnthropicCache`
    automatic_ttl       see `AutomaticCache`
    reads_history       see `BreakpointCache`

    `upgrades` and `refused_fields` can be changed at any time. A request with a refused field, at any depth, gets 400.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        count_tokens: CountTokens | None = None,
        minimum: int | None = None,
        upgrades: bool = True,
        automatic_ttl: float = 600.0,
        reads_history: bool = True,
    ) -> None:
        self.clock = clock
        self.ledger: list[BilledRequest] = []
        """Requests that were accepted or refused. Those that a fault answers with an error status cost nothing."""
        self.refused_fields: set[str] = set()
        self.upgrades = upgrades
        self._count_tokens = count_tokens or tokens_by_length()
        self._minimum, self._automatic_ttl, self._reads_history = minimum, automatic_ttl, reads_history
        self._caches: dict[tuple[str, str, str], PrefixCacheModel] = {}
        self._forget_at: list[float] = []
        self._charging = threading.RLock()

    def forget(self) -> None:
        """Drop all entries of all caches."""
        with self._charging:
            for cache in self._caches.values():
                cache.forget()

    def forget_at(self, when: float) -> None:
        """Drop all entries that exist at this time of the clock."""
        self._forget_at.append(when)

    def cost(self) -> float:
        return sum(row.cost for row in self.ledger)

    def check(self) -> None:
        """Recompute the ledger's costs."""
        for row in self.ledger:
            assert min(row.charge) >= 0, row
            assert row.cost == row.charge.cost(self._prices(row.endpoint, row.model)), row

    def charge(self, endpoint: str, call: UpstreamCall) -> InputCharge:
        """Bill a request that arrives now."""
        if endpoint != "/messages" and endpoint not in OPENAI_ENDPOINTS:
            return InputCharge()
        with self._charging:
            now = self.clock()
            if any(when <= now for when in self._forget_at):
                self._forget_at = [when for when in self._forget_at if when > now]
                self.forget()
            credential = call.headers.get("x-api-key") or call.headers.get("authorization", "")
            try:
                blocks = self._prompt(endpoint, call.body)
            except (PromptRejected, KeyError, TypeError, AttributeError) as error:
                self._record(endpoint, credential, call.body, 400, PrefixCharge(), [])
                return _Refusal(endpoint, error)
            cache = self._cache(endpoint, credential, call.body)
            charge, pending = cache.charge(blocks, now)
            self._record(endpoint, credential, call.body, 200, charge, blocks)
            return _Charged(self, endpoint, charge, cache, pending)

    def write(self, cache: PrefixCacheModel, pending: list[PendingWrite]) -> None:
        with self._charging:
            cache.write(pending)

    def _prompt(self, endpoint: str, body: Body) -> list[PromptBlock]:
        for field in sorted(self.refused_fields):
            if contains_field(body, field):
                raise PromptRejected(f"{field}: Extra inputs are not permitted")
        if endpoint == "/messages":
            return anthropic_prompt(body, self._count_tokens)
        if not has_breakpoints(body["model"]):
            for field in ("prompt_cache_options", "prompt_cache_breakpoint"):
                if contains_field(body, field):
                    raise PromptRejected(f"{field} is not supported with this model")
        return openai_prompt(body, self._count_tokens)

    def _cache(self, endpoint: str, credential: str, body: Body) -> PrefixCacheModel:
        """Return the cache of a credential and a model. At OpenAI a `prompt_cache_key` has a machine of its own."""
        model = str(body["model"])
        machine = "" if endpoint == "/messages" else str(body.get("prompt_cache_key") or "")
        key = (credential, model, machine)
        cache = self._caches.get(key)
        if cache is None:
            if endpoint == "/messages":
                minimum = anthropic_minimum(model) if self._minimum is None else self._minimum
                cache = AnthropicCache(minimum)
            elif has_breakpoints(model):
                cache = BreakpointCache(self._minimum or 1024, self._reads_history)
            else:
                cache = AutomaticCache(self._count_tokens, self._automatic_ttl)
            self._caches[key] = cache
        if isinstance(cache, AnthropicCache):
            cache.upgrades = self.upgrades
        return cache

    @staticmethod
    def _prices(endpoint: str, model: str) -> PrefixPrices:
        if endpoint == "/messages":
            return ANTHROPIC_PRICES
        return BREAKPOINT_PRICES if has_breakpoints(model) else AUTOMATIC_PRICES

    def _record(
        self, endpoint: str, credential: str, body: Body, status: int, charge: PrefixCharge, blocks: list[PromptBlock]
    ) -> None:
        model = str(body["model"])
        self.ledger.append(
            BilledRequest(
                time=self.clock(),
                endpoint=endpoint,
                credential=credential,
                model=model,
                status=status,
                charge=charge,
                cost=charge.cost(self._prices(endpoint, model)),
                marks=tuple((block.tokens, block.ttl) for block in blocks if block.ttl),
            )
        )


class _Refusal(InputCharge):
    """An answer with status 400, in the provider's form."""

    def __init__(self, endpoint: str, error: Exception) -> None:
        reason: Body = {"type": "invalid_request_error", "message": str(error)}
        if endpoint == "/messages":
            self.refusal = 400, {"type": "error", "error": reason, "request_id": "req_1"}
        else:
            self.refusal = 400, {"error": {**reason, "param": None, "code": None}}


@dataclass
class _Charged(InputCharge):
    """Usage of an accepted request."""

    billing: PrefixBilling
    endpoint: str
    charge: PrefixCharge
    cache: PrefixCacheModel
    pending: list[PendingWrite]

    def begin(self) -> None:
        self.billing.write(self.cache, self.pending)

    def set_usage(self, data: Body) -> None:
        """Set the usage in an answer or event, where it has one."""
        if self.endpoint == "/messages":
            self._set_anthropic(data)
        else:
            usage = (data.get("response") or data).get("usage")
            if usage:
                self._set_openai(usage)

    def _set_anthropic(self, data: Body) -> None:
        charge = self.charge
        usage = (data.get("message") or data).get("usage")
        if usage is None:
            return
        written = charge.short_written + charge.long_written
        usage["input_tokens"] = charge.plain
        usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"] = charge.read, written
        if data.get("type") != "message_delta":  # as in Anthropic's streams
            by_ttl = {"ephemeral_5m_input_tokens": charge.short_written}
            usage["cache_creation"] = by_ttl | {"ephemeral_1h_input_tokens": charge.long_written}

    def _set_openai(self, usage: Body) -> None:
        charge = self.charge
        chat = "prompt_tokens" in usage
        usage["prompt_tokens" if chat else "input_tokens"] = charge.tokens
        usage["total_tokens"] = charge.tokens + usage["completion_tokens" if chat else "output_tokens"]
        details = {"cached_tokens": charge.read, "cache_write_tokens": charge.short_written}
        usage["prompt_tokens_details" if chat else "input_tokens_details"] = details


class PrefixProvider(PrefixBilling, FakeUpstream):
    """`FakeUpstream` with the caches and the options of `PrefixBilling`."""

    def __init__(self, *, delay: float = 0.0, pace: float = 0.0, **billing: Any) -> None:
        FakeUpstream.__init__(self, delay=delay, pace=pace)
        PrefixBilling.__init__(self, **billing)
