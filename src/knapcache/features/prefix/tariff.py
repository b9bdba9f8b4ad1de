"""Prices and rules of providers' prefix caches, relative to the price of a plain input token.

As the providers document them in November 2026. Decisions need them before the answer. Dollars that are displayed come
from the usage that the provider reports and from genai-prices (price/meter.py).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from knapcache.price.input_tokens import InputTokens

MINUTE, HOUR = 60.0, 3600.0


class Tariff(NamedTuple):
    """The prefix cache of one provider."""

    name: str
    read: float
    """Price of a token that is read from the cache."""
    short: float
    """Seconds that a prefix lives. A read starts them again."""
    short_write: float
    """Price of a token that is written for that time."""
    long: float
    """The longer of two times to live; equal to `short` if there is only one."""
    long_write: float
    minimum: int
    """Tokens below which a prefix is not cached, for models that are not listed below."""
    lookback: int
    """Blocks up to a mark in which the provider looks for a cached prefix; 1: only that of the mark."""

    @property
    def reads_at_marks(self) -> bool:
        """Whether a cached prefix is read only if the request has a mark at its end."""
        return self.lookback == 1

    @property
    def ttls(self) -> dict[str, float]:
        """Seconds by name, as in the names of rules: 5m, 1h."""
        return {ttl_name(ttl): ttl for ttl in dict.fromkeys((self.short, self.long))}

    def write_price(self, ttl: float) -> float:
        """Return the price of a token that is written for `ttl` seconds; 0: of one that is not written."""
        return 1.0 if not ttl else self.short_write if ttl < self.long else self.long_write

    def cost(self, bill: InputTokens) -> float:
        """Return the price of the input tokens of a request, in plain tokens."""
        written = bill.short_written * self.short_write + bill.long_written * self.long_write
        return bill.read * self.read + written + bill.plain

    def minimum_of(self, model: str) -> int:
        """Return the tokens below which a model's prefixes are not cached."""
        if self.name == "anthropic":
            for pattern, minimum in ANTHROPIC_MINIMA:
                if pattern.search(model):
                    return minimum
        return self.minimum


def ttl_name(ttl: float) -> str:
    """Return a time to live in minutes or hours: 5m, 1h."""
    return f"{ttl / HOUR:g}h" if ttl >= HOUR else f"{ttl / MINUTE:g}m"


ANTHROPIC_MINIMA = (
    (re.compile(r"haiku-4|opus-4-[5-9]"), 4096),
    (re.compile(r"haiku"), 2048),
)
"""Models of Anthropic that do not cache from 1,024 tokens on. If a model is missing here, the provider ignores a mark
that comes too early, and the usage shows that nothing was written."""
ANTHROPIC = Tariff("anthropic", 0.1, 5 * MINUTE, 1.25, HOUR, 2.0, 1024, 20)
OPENAI_BREAKPOINTS = Tariff("openai-5.6", 0.1, 30 * MINUTE, 1.25, 30 * MINUTE, 1.25, 1024, 1)
"""GPT-5.6 and later. Older models cache without marks and without a write price, so there is nothing to decide."""
TARIFFS = {tariff.name: tariff for tariff in (ANTHROPIC, OPENAI_BREAKPOINTS)}
