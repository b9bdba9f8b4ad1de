"""A semantic tier for the admin API and the dashboard: real learners, without an embedding model and without a log."""

from __future__ import annotations

import time
from typing import Any

from knapcache.errors import StoreError
from knapcache.features.semantic.event import SemanticEvent
from knapcache.features.semantic.learner import Label, SemanticLearner
from knapcache.features.semantic.match_features import FEATURES


class LearnerControl:
    """Learners by scope, which tests give labels."""

    def __init__(self, *scopes: str, mode: str = "on", error: float = 0.01) -> None:
        self.learners = {scope: SemanticLearner(error) for scope in scopes or ("",)}
        self.mode = mode
        self.failure = ""
        self.marked: list[str] = []
        self.sweeps = 0

    def add_labels(self, count: int, *, wrong: int = 0, risk: float = 0.001, scope: str = "") -> None:
        """Add labels of matches with one risk, the wrong ones last."""
        for k in range(count):
            key = (k % 50).to_bytes(32, "big")
            self.learners[scope].add(
                Label(key, (0.0,) * len(FEATURES), risk, risk, k >= count - wrong, "shadow", time.time())
            )

    async def report(self) -> list[dict[str, Any]]:
        common = {"mode": self.mode, "failure": self.failure, "model": "minilm-test", "questions": 1234, "limit": 9999}
        return [{"scope": name} | common | one.report() for name, one in self.learners.items()]

    async def sweep(self) -> None:
        self.sweeps += 1

    async def feedback(self, event: SemanticEvent) -> None:
        if self.failure:
            raise StoreError(self.failure)
        key, wrong = bytes.fromhex(event.matched_key), True
        self.learners[event.scope].add(Label(key, event.features, event.risk, event.risk, wrong, "feedback"))
        self.marked.append(event.match_id)
