"""What an event says about the provider's prompt cache."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MAX_POSITIONS, MAX_DETAILED = 1024, 1000
"""Positions of a prefix event, and waiting events up to which they are kept. Of a request with more, or in a longer
queue, none are kept: some of them would be a wrong request. A position takes 130 bytes."""


class PrefixEvent(NamedTuple):
    """Use of the provider's prompt cache by one request. Built with keywords.

    Every request that went upstream has one. Amounts of the tier are in plain tokens: tokens at the price of an input
    token that is neither read nor written.
    """

    mode: str
    """The setting `prefix` of the request's route: off, observe, on or manage."""
    tariff: str = ""
    """The tariff by which the tier decided (features/prefix/tariff.py); empty: none, so it decided nothing."""
    rule: str = ""
    """The rule that led; empty without a tariff."""
    marked: bool = False
    """The tier placed marks, or changed them."""
    own_marks: bool = False
    """The request came with marks."""
    below: bool = False
    """The request is shorter than the least that the model's provider caches."""
    reported: bool = False
    """The provider reported the five numbers below. Otherwise they are 0 and unknown."""
    input: int = 0
    """All input tokens."""
    read: int = 0
    """Input tokens that were read from the provider's cache."""
    short_written: int = 0
    """Input tokens that were written to it for the shorter TTL."""
    long_written: int = 0
    """Input tokens that were written to it for the longer TTL."""
    predicted: int = 0
    """Tokens that the tier expected to be read."""
    bills: Mapping[str, float] = MappingProxyType({})
    """Plain tokens that each rule would have paid for the input, by its name, and `paid`: what was paid by the report.
    Empty if nothing was reported, or without a tariff."""
    usd_per_token: float | None = None
    """Dollars of a plain token; None: the price is unknown."""
    tokens: int = 0
    """All input tokens, as the tier counted them."""
    positions: tuple[tuple[int, int], ...] = ()
    """Digest and length in tokens of every prefix that can be marked, ascending. For the prefix log only."""
    system: int = -1
    """Index of the position at the end of the system prompt; -1: none."""
    kind: str = "text"
    """`tool` if the last message is the result of a tool, else `text`."""

    def shortened(self, waiting: int) -> PrefixEvent:
        """Return it without its positions, if they take too much memory."""
        long = len(self.positions) > MAX_POSITIONS or waiting >= MAX_DETAILED
        return self._replace(positions=()) if long and self.positions else self

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> PrefixEvent:
        """Return the event of its fields, as JSON has them."""
        return cls(**fields | {"positions": tuple(map(tuple, fields["positions"]))})
