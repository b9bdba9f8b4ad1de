"""Immutable values that several layers share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

REQUEST_VERSION = b"knapcache request 2"
"""First part of every stored request, and so part of every key. It changes when the form of stored requests changes.
Older entries are never hit then; a file is rid of them when it is opened (store/sqlite/outdated.py)."""


class Endpoint(StrEnum):
    """The cacheable endpoints. The value is the path after `/v1/`."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"
    """Anthropic's; the others are OpenAI's."""


class Decision(NamedTuple):
    """A policy's decision about an answer that was just paid for. The caller carries it out."""

    admit: bool
    evicted: tuple[int, ...]
    """Ids to evict, in order. May contain the answer's own id if its older answer is evicted."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A set of items that the Oracle chose, with a certificate of its quality."""

    chosen: npt.NDArray[np.bool_]
    """One flag per item. The sizes of chosen items never sum to more than the capacity."""
    value: float
    """Sum of the chosen values."""
    upper_bound: float
    """No feasible set has a larger value."""
    gap: float
    """upper_bound − value, never negative."""
    proven: bool
    """The requested tolerance is proven. False if the work limit was reached, or if values span more than 61 bits."""
    price: float
    """Break density λ: the value of one more unit of capacity, to first order. 0 if all items fit."""
