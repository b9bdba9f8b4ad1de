"""Estimates what a call will cost, before it is made.

    known    the running mean of the last calls of this tenant with this model, or of all tenants with it
    unknown  the price of the input, and of as many output tokens as the request allows, or of DEFAULT_OUTPUT
    at least the price of the input, by its length

A model of unknown price costs no dollars, only tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from knapcache.model import Endpoint
from knapcache.price.meter import PLAIN_NAMES, Meter

BYTES_PER_TOKEN = 4
OUTPUT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
ALL = "*"
"""All callers together, among the tenants."""
MAX_INPUT = 200_000
"""Tokens of an input, at most: images are long in bytes and short in tokens."""
MAX_OUTPUT = 200_000
"""Tokens of an output, at most. A request may claim any number, and must not reserve the whole limit of others."""
DEFAULT_OUTPUT = 1000
MEAN_OF = 20
"""Calls in a running mean: the newest has at least 1/20 of the weight."""
MAX_MEANS = 4096
"""Means that are kept, oldest removed first. Callers choose the names of models."""


class CostEstimate(NamedTuple):
    """What a call will cost, about."""

    usd: float
    tokens: float


class CostEstimator:
    """The running means of one process."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._means: dict[tuple[str, str], tuple[int, float, float]] = {}
        """Number of calls, mean dollars and mean tokens, by tenant and model."""

    def estimate(self, tenant: str, endpoint: Endpoint, model: str, size: int, max_output: int | None) -> CostEstimate:
        """Return the estimate for a call. size: bytes of the request; max_output: tokens that the request allows."""
        mean = self._means.get((tenant, model)) or self._means.get((ALL, model))
        tokens = min(MAX_INPUT, size // BYTES_PER_TOKEN)
        if mean is None:
            output = 0 if endpoint is Endpoint.EMBEDDINGS else DEFAULT_OUTPUT if max_output is None else max_output
            return CostEstimate(self._price(endpoint, model, tokens, output), float(tokens + output))
        price = self._meter.input_price(endpoint, model, tokens) or 0.0
        return CostEstimate(max(mean[1], price * tokens), max(mean[2], float(tokens)))

    def at_least(self, endpoint: Endpoint, model: str, size: int, output: int) -> CostEstimate:
        """Return what a call has cost at least. size: bytes of the request; output: tokens that have arrived."""
        tokens = min(MAX_INPUT, size // BYTES_PER_TOKEN)
        output = 0 if endpoint is Endpoint.EMBEDDINGS else output
        return CostEstimate(self._price(endpoint, model, tokens, output), float(tokens + output))

    def learn(self, tenant: str, model: str, usd: float, tokens: float) -> None:
        """Take the cost of a call into the means."""
        for key in ((tenant, model), (ALL, model)):
            calls, mean_usd, mean_tokens = self._means.pop(key, (0, 0.0, 0.0))
            calls = min(MEAN_OF, calls + 1)
            self._means[key] = calls, mean_usd + (usd - mean_usd) / calls, mean_tokens + (tokens - mean_tokens) / calls
        while len(self._means) > MAX_MEANS:
            del self._means[next(iter(self._means))]

    def _price(self, endpoint: Endpoint, model: str, tokens: int, output: int) -> float:
        names = ("input_tokens", "output_tokens") if endpoint in PLAIN_NAMES else ("prompt_tokens", "completion_tokens")
        return self._meter.bill(endpoint, model, dict(zip(names, (tokens, output), strict=True)), 0.0).usd or 0.0


def max_output(body: Mapping[str, Any]) -> int | None:
    """Return how many output tokens a request allows, MAX_OUTPUT at most; None if it does not say."""
    choices = body.get("n")
    choices = min(MAX_OUTPUT, choices) if type(choices) is int and choices > 0 else 1
    for name in OUTPUT_FIELDS:
        value = body.get(name)
        if type(value) is int and value > 0:
            return min(MAX_OUTPUT, value * choices)
    return None if choices == 1 else min(MAX_OUTPUT, DEFAULT_OUTPUT * choices)
