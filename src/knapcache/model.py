"""Frozen values that cross the borders between layers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Endpoint(StrEnum):
    """What can be asked and kept. The value is the end of the path, after `/v1/`."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"
    """Anthropic's; the others are OpenAI's."""


class Decision(NamedTuple):
    """What a policy wants done with an answer that was just paid for. The caller acts."""

    admit: bool
    """Keep the answer."""
    evicted: tuple[int, ...]
    """Ids whose answers must go, in the order they were given up: also the id itself, when its older answer goes."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A set of items the Oracle chose, with a certificate of how good it is."""

    chosen: npt.NDArray[np.bool_]
    """One flag an item. Their sizes never sum to more than the capacity."""
    value: float
    """Sum of the chosen values."""
    upper_bound: float
    """No feasible set is worth more than this."""
    gap: float
    """upper_bound − value, never negative."""
    proven: bool
    """As good as was asked for. False when the budget ran out, or values differ by more than 61 bits can hold."""
    price: float
    """Break density λ: what one more unit of capacity would be worth, to first order. 0 when everything fits."""
