"""Parts of events for tests."""

from __future__ import annotations

from typing import Any

from knapcache.features.prefix.event import PrefixEvent


def prefix_event(**other: Any) -> PrefixEvent:
    """Return what a provider's prompt cache did for a request of 10,000 tokens: 8,000 read, 1,500 written."""
    fields: dict[str, Any] = {
        "mode": "observe",
        "tariff": "anthropic",
        "rule": "learned",
        "own_marks": True,
        "reported": True,
        "input": 10_000,
        "read": 8_000,
        "short_written": 1_000,
        "long_written": 500,
        "predicted": 7_900,
        "bills": {"none": 10_000.0, "last-5m": 3_550.0, "last-1h": 5_800.0, "learned": 2_300.0, "paid": 3_550.0},
        "usd_per_token": 3e-6,
        "tokens": 9_900,
        "positions": ((-7, 2_000), (2**62, 9_900)),
        "system": 0,
        "kind": "tool",
    }
    return PrefixEvent(**fields | other)
