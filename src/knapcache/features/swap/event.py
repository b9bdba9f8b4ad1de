"""What the event of a request says about swap."""

from __future__ import annotations

from typing import Literal, NamedTuple

SwapKind = Literal["asked", "label", "audit", "swap", "escalated", "excluded", "refused"]
"""
asked      the asked model answers: nothing is certified, or its answer is stored
label      the asked model answers, and the cheaper one is compared with it
audit      the same while the cheaper one answers other requests of the frame
swap       the cheaper model answers
escalated  its answer failed a check, which `reason` names, and the asked model answers
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
    """What the asked model would have cost more, by the mean of the frame's labels; only of calls that were made."""


class LabelNote(NamedTuple):
    """A label that was paid for. Crosses processes by field name."""

    frame: str
    z: float
    rung: str
    usd: float
