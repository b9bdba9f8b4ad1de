"""Swap's part of the event of a request."""

from __future__ import annotations

from typing import Literal, NamedTuple

SwapKind = Literal["asked", "label", "audit", "swap", "escalated", "excluded", "refused"]
"""
asked      the asked model answers: nothing is certified, or its answer is stored
label      the asked model answers, and the cheaper one is compared with it
audit      the same while the cheaper one answers other requests of the frame
swap       the cheaper model answers
escalated  the asked model answers instead of it: `reason` is the check that its answer failed, or `failed`
excluded   requests of this form are never swapped; `reason` says why
refused    the caller does not allow it
"""
SWAP_KINDS: tuple[SwapKind, ...] = ("asked", "label", "audit", "swap", "escalated", "excluded", "refused")


class SwapEvent(NamedTuple):
    """Swap's part of an event. Crosses processes by field name."""

    kind: SwapKind
    frame: str = ""
    """First 16 characters of its digest."""
    model: str = ""
    """The cheaper model."""
    reason: str = ""
    usd_saved: float = 0.0
    """Estimated difference to the cost of the asked model, for a call of the cheaper one; 0 for a hit. Below 0 if
    its answer was replaced by one of the asked model."""


class LabelNote(NamedTuple):
    """A label that was paid for. Crosses processes by field name."""

    frame: str
    z: float
    rung: str
    usd: float
