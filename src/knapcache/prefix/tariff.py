"""What providers charge for cached prefixes, relative to the price of a plain input token.

As of November 2026. Where genai-prices knows the price of cached tokens, bills use that (price/meter.py); these factors
are for decisions, which need them before the answer.
"""

from __future__ import annotations

from typing import NamedTuple


class Tariff(NamedTuple):
    """The rules of one provider's prefix cache."""

    name: str
    read: float
    """Price of a token that is read from the cache."""
    short: float
    """Seconds that a prefix lives which was marked for a short time. A read starts them again."""
    short_write: float
    """Price of a token that is written for a short time."""
    long: float
    long_write: float
    minimum: int
    """Tokens below which a prefix is not cached."""
    max_marks: int
    """Marks that one request may have."""

    def write_price(self, ttl: float) -> float:
        """Return the price of a token that is written for so many seconds."""
        return self.long_write if ttl >= self.long else self.short_write


ANTHROPIC = Tariff("anthropic", 0.1, 300.0, 1.25, 3600.0, 2.0, 1024, 4)
TARIFFS = {tariff.name: tariff for tariff in (ANTHROPIC,)}
