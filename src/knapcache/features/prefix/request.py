"""A request as the prefix tier sees it: the places where a prefix ends that can be marked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple


class Position(NamedTuple):
    """A place in a request where a prefix ends that can be marked."""

    id: Hashable
    """Equal for equal prefixes, and different for different ones."""
    tokens: int
    """Length of the prefix."""
    block: int = 0
    """Index of the block that it ends with; 0 for a trace, whose blocks are unknown."""


class PrefixRequest(NamedTuple):
    """A request, its prefixes and its size."""

    time: float
    positions: Sequence[Position]
    """Ascending, at least one. The last is the end of the request. The others are those that can be cached: where
    earlier requests ended, and the end of the system prompt."""
    tokens: int
    """All input tokens."""
    system: int
    """Index of the position at the end of the system prompt; -1: none."""
    kind: str
    """Class for return times: `tool` if the last message is the result of a tool, else `text`."""
    minimum: int
    """Tokens below which the model's provider does not cache a prefix."""

    @property
    def end(self) -> Position:
        """The last position."""
        return self.positions[-1]
