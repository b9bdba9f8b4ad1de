"""A request as the prefix tier sees it: the places where a prefix ends that can be marked, and their lengths."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from knapcache.features.prefix.blocks import BodyBlocks

FIRST_RATIO = 0.25
"""Tokens per byte before anything was reported."""
WEIGHT = 0.1
"""Share of a new report in the estimated tokens per byte."""
MAX_KNOWN = 100_000
"""Prefixes that are remembered. Those that were not used for the longest time are dropped."""
MAX_RATIOS = 1000
"""Models whose tokens per byte are remembered."""


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
        return self.positions[-1]


class PrefixLengths:
    """Knows the prefixes of earlier requests, and their lengths in tokens: estimated, or as the provider counted them.

    The usage of an answer says how many tokens its request had. That is the exact length of the prefix at its end,
    which is where the next request of the conversation goes on. Other lengths are estimated with the tokens per byte of
    the model.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, int | None] = {}
        """By id: exact tokens; None: the prefix is known, and its length is not."""
        self._ratios: dict[str, float] = {}

    def request(
        self, blocks: BodyBlocks, end: int, system: int, model: str, minimum: int, time: float
    ) -> PrefixRequest:
        """Return a request whose positions are the known prefixes, the system prompt, the marked blocks and the end.

        end      index of the block that is the end
        system   index of the last block of the system prompt that can be marked; -1: none
        """
        known, ratio = self._known, self._ratios.get(model, FIRST_RATIO)
        ids, sizes = blocks.ids, blocks.sizes
        places = [at for at in range(end) if ids[at] in known]
        if system >= 0 or blocks.marks:
            places = sorted({*places, *(block for block, _ in blocks.marks), system} - {-1, end})
        places.append(end)
        positions: list[Position] = []
        tokens, size, at_system = 0.0, 0, -1
        for at in places:
            exact = known.get(ids[at])
            tokens = tokens + (sizes[at] - size) * ratio if exact is None else max(tokens, float(exact))
            size = sizes[at]
            if at == system:
                at_system = len(positions)
            positions.append(Position(ids[at], round(tokens), at))
        total = round(tokens + (sizes[-1] - size) * ratio)
        return PrefixRequest(time, positions, total, at_system, blocks.kind, minimum)

    def correct(self, request: PrefixRequest, size: int, tokens: int, model: str) -> PrefixRequest:
        """Return a request with the lengths that follow from its exact number of tokens, and remember its prefixes.

        size     bytes of the request
        tokens   as the provider has counted them; 0: unknown
        """
        if not tokens:
            self._remember([(each.id, self._known.get(each.id)) for each in request.positions])
            return request
        if size and (model in self._ratios or len(self._ratios) < MAX_RATIOS):
            self._ratios[model] = (1.0 - WEIGHT) * self._ratios.get(model, tokens / size) + WEIGHT * tokens / size
        known, positions = self._known, request.positions
        exact = max((each.tokens for each in positions if known.get(each.id) is not None), default=0)
        exact = min(exact, tokens)
        scale = (tokens - exact) / (request.tokens - exact) if request.tokens > exact else 1.0
        corrected = [
            each if each.tokens <= exact else each._replace(tokens=exact + round((each.tokens - exact) * scale))
            for each in positions
        ]
        self._remember([(each.id, known.get(each.id)) for each in corrected[:-1]])
        self._remember([(corrected[-1].id, corrected[-1].tokens)])
        return request._replace(positions=corrected, tokens=tokens)

    def _remember(self, lengths: Iterable[tuple[Hashable, int | None]]) -> None:
        known = self._known
        for prefix, tokens in lengths:
            known.pop(prefix, None)  # the last used is last
            known[prefix] = tokens
        while len(known) > MAX_KNOWN:
            del known[next(iter(known))]
