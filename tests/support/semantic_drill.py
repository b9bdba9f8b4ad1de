"""A drill of the semantic tier: 40 intents in many wordings, and an upstream whose answers can change.

Two questions have the same answer if and only if their intent is the same and its answer has not changed. So the drill
counts wrong answers by truth.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from knapcache.testing import FakeUpstream
from knapcache.testing.provider_answers import last_text
from tests.support.meanings import WORDINGS, Asked, SemanticClient

VERBS = ("clean", "repair", "paint", "sell", "move", "insure", "store", "measure")
THINGS = ("a piano", "an old boat", "a brick wall", "a garden shed", "a wool carpet")
INTENTS = [f"{verb} {thing}" for verb, thing in itertools.product(VERBS, THINGS)]
POLITE = ("", "Please: ", "Hello. ", "Hi, ", "OK. ")
SETTINGS: dict[str, Any] = {"policy": "lru", "semantic": "on", "semantic_error": 0.05}


class IntentUpstream(FakeUpstream):
    """Answers a question with its intent and the version of its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[str] = set()
        self.answer = lambda body: self.right(last_text(body))

    def right(self, text: str) -> str:
        intent = next(intent for intent in INTENTS if intent in text)
        return f"See chapter {INTENTS.index(intent)} of the {'new' if intent in self.changed else 'first'} handbook."


class Drill:
    """Asks every question once, in random order, and counts wrong answers by truth.

    clients   of proxies that share a cache, asked in turns; the first of them reports
    """

    def __init__(self, upstream: IntentUpstream, clients: Sequence[SemanticClient], seed: int) -> None:
        self.upstream, self.clients = upstream, clients
        texts = [p + w.format(i) for p, w, i in itertools.product(POLITE, WORDINGS, INTENTS)]
        random.Random(seed).shuffle(texts)
        self._questions = zip(texts, itertools.cycle(clients))
        self.asked = self.served = self.wrong = 0

    @property
    def client(self) -> SemanticClient:
        return self.clients[0]

    def ask(self, count: int) -> list[Asked]:
        """Ask the next questions; return those that were answered by similarity."""
        served = []
        for text, client in itertools.islice(self._questions, count):
            answer = client.ask(text)
            self.asked += 1
            if answer.outcome == "similar":
                served.append(answer)
                self.wrong += answer.text != self.upstream.right(text)
        self.served += len(served)
        return served

    def ask_until(self, serving: bool, limit: int) -> int:
        """Ask until the tier serves, or does not. Return how many labels that took."""
        first, labels = self.asked, self.client.labels()
        while self.client.serving() != serving:
            assert self.asked - first < limit
            self.ask(8)
        return self.client.labels() - labels

    def share_served(self, count: int) -> float:
        """Ask questions, and return the share of them that was answered by similarity."""
        return len(self.ask(count)) / count

    def audit_share(self) -> float:
        """Return the share of audits among the matches that could be served."""
        usage = self.client.scope()["all"]
        return float(usage["audit"] / (usage["audit"] + usage["served"]))
