"""Parts of events, and verdicts, for tests."""

from __future__ import annotations

from typing import Any

from knapcache.features.semantic.event import SemanticEvent, VerdictEvent


def semantic_event(**other: Any) -> SemanticEvent:
    """Return what the semantic tier did with a request that it answered."""
    fields: dict[str, Any] = {
        "kind": "served",
        "match_id": "m-1",
        "scope": "team-a",
        "key": "ab" * 32,
        "matched_key": "cd" * 32,
        "similarity": 0.93,
        "risk": 0.003,
        "level": 0,
        "features": (0.93, 0.5, 1.0),
        "seconds": 0.008,
    }
    return SemanticEvent(**fields | other)


def verdict_event(**other: Any) -> VerdictEvent:
    """Return the verdict on a match in the shadow."""
    fields: dict[str, Any] = {
        "match_id": "m-1",
        "scope": "team-a",
        "kind": "shadow",
        "verdict": "same",
        "rung": "equal",
        "judge_usd": 0.0,
        "time": 1.7e9,
    }
    return VerdictEvent(**fields | other)
