"""A semantic tier for the admin API and the dashboard: real learners, without an embedding model and without a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from knapcache.errors import InvalidInput, StoreError
from knapcache.features.semantic.differences import FEATURES
from knapcache.features.semantic.event import RecentMatches, SemanticEvent
from knapcache.features.semantic.feature import SemanticFeature
from knapcache.features.semantic.learner import Label, SemanticLearner
from knapcache.features.semantic.tier import SemanticTier
from knapcache.features.semantic.totals import SemanticTotals
from knapcache.proxy.events.events import Note
from knapcache.proxy.features import Feature, ProxyContext


class LearnerFeature(SemanticFeature):
    """The semantic tier as a feature, with learners of a test in place of an embedding model."""

    def __init__(self, context: ProxyContext, tier: LearnerControl) -> None:
        Feature.__init__(self, context)
        self.calls = SimpleNamespace(tier=tier)  # type: ignore[assignment]
        self.matches = RecentMatches()
        self._counted, self._reports = SemanticTotals(), ()
        context.events.add_consumer(self)

    def consume_notes(self, notes: Sequence[Note]) -> None:
        """Take notes as the pipeline passes them on."""
        self.consume_verdicts([verdict for name, verdict in notes if name == self.name])

    async def close(self) -> None:
        """Close nothing."""


class LearnerControl(SemanticTier):
    """Learners by scope, which tests give labels."""

    def __init__(self, *scopes: str) -> None:
        self.learners = {scope: SemanticLearner() for scope in scopes or ("",)}
        self.served_mode = "on"
        self.failure = ""
        self.marked: list[str] = []
        self.swept = 0
        self._reported = []

    def add_labels(self, count: int, *, wrong: int = 0, risk: float = 0.001, scope: str = "") -> None:
        """Add labels of matches with one risk, the wrong ones last."""
        for k in range(count):
            key = (k % 50).to_bytes(32, "big")
            self.learners[scope].add(
                Label(key, (0.0,) * len(FEATURES), risk, risk, k >= count - wrong, "shadow", time.time())
            )

    async def _report(self) -> list[dict[str, Any]]:
        common = {
            "mode": self.served_mode,
            "failure": self.failure,
            "model": "minilm-test",
            "questions": 1234,
            "limit": 9999,
        }
        return [{"scope": name} | common | one.report() for name, one in self.learners.items()]

    async def purged(self) -> None:
        self.swept += 1

    async def reset(self, scope: str) -> None:
        if scope not in self.learners:
            raise InvalidInput("the semantic tier is off for this tenant")
        self.learners[scope] = SemanticLearner()

    async def feedback(self, event: SemanticEvent) -> None:
        if self.failure:
            raise StoreError(self.failure)
        key, wrong = bytes.fromhex(event.matched_key), True
        self.learners[event.scope].add(Label(key, event.features, event.risk, event.risk, wrong, "feedback"))
        self.marked.append(event.match_id)


def learner_feature(tier: LearnerControl) -> Callable[[ProxyContext], Feature]:
    """Return a function that makes the feature, for `AdminHarness`."""
    return lambda context: LearnerFeature(context, tier)
