"""Rules of other semantic caches, for bench/semantic.py: on the same questions, vectors and index as the tier.

    threshold     serve if the cosine of the nearest stored question is at least a fixed number
    GPTCache      its own evaluation by distance, with its default threshold of 0.8
    vCache-like   a guarantee for each request, learned for each stored question

Each rule sees the nearest stored question of a request that is no exact repeat. A request that is not served is
stored. Peers have no exclusions: they match every text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from knapcache.features.semantic.index import FrameIndexes
from knapcache.features.semantic.lab.read import LoggedQuestion


class PeerRule(Protocol):
    """Decides on the nearest stored question, and learns whether it was right if the request was not served."""

    name: str

    def serves(self, stored: int, cosine: float) -> bool: ...

    def learn(self, stored: int, cosine: float, right: bool) -> None: ...


class Threshold:
    """A fixed threshold of the cosine."""

    def __init__(self, threshold: float) -> None:
        self.name, self.threshold = f"cosine ≥ {threshold:g}", threshold

    def serves(self, stored: int, cosine: float) -> bool:  # noqa: ARG002
        return cosine >= self.threshold

    def learn(self, stored: int, cosine: float, right: bool) -> None:
        pass


class GptCacheEvaluation:
    """GPTCache's evaluation by distance. It gets the squared Euclidean distance, as its FAISS index returns it."""

    name = "GPTCache, its default"

    def __init__(self) -> None:
        evaluation = import_module("gptcache.similarity_evaluation.distance").SearchDistanceEvaluation()
        low, high = evaluation.range()
        self.evaluation = evaluation
        # As gptcache.adapter does.
        self.least = (high - low) * import_module("gptcache.config").Config().similarity_threshold

    def serves(self, stored: int, cosine: float) -> bool:
        distance = 2.0 - 2.0 * cosine
        return bool(self.evaluation.evaluation({}, {"search_result": (distance, stored)}) >= self.least)

    def learn(self, stored: int, cosine: float, right: bool) -> None:
        pass


class PerRequestGuarantee:
    """A rule in the manner of vCache: of all requests, served or not, at most δ get a wrong answer.

    Each stored question has its own model of the probability that it is right at a cosine s:

        p(s) = σ(g · (s − t))

    with a likelihood on a grid of (t, g). For a confidence 1 − ε, the least p(s) of all pairs within the likelihood
    region, times 1 − ε, is a lower bound a of the probability to be right. The request is sent upstream with the
    probability 1 − δ/(1 − a), so that the probability of a wrong answer is at most δ. The best ε is used.
    """

    EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2)

    def __init__(self, error: float, seed: int) -> None:
        self.name, self.error = f"vCache-like, δ = {error:g}", error
        t, g = np.meshgrid(np.linspace(0.4, 1.05, 27), np.geomspace(4.0, 200.0, 9))
        self.t, self.g = t.ravel(), g.ravel()
        self.likelihood: dict[int, Any] = {}
        self.draw = random.Random(seed).random

    def right(self, cosine: float) -> Any:
        return 1.0 / (1.0 + np.exp(np.clip(self.g * (self.t - cosine), -50.0, 50.0)))

    def serves(self, stored: int, cosine: float) -> bool:
        likelihood = self.likelihood.get(stored)
        if likelihood is None:
            return False
        right, most = self.right(cosine), likelihood.max()
        # Two parameters: twice the log-likelihood ratio has a χ² distribution with 2 degrees of freedom.
        least = max((1.0 - each) * right[likelihood >= most + math.log(each)].min() for each in self.EPSILONS)
        return bool(self.draw() >= 1.0 - self.error / max(1.0 - least, 1e-12))

    def learn(self, stored: int, cosine: float, right: bool) -> None:
        p = np.clip(self.right(cosine), 1e-12, 1.0 - 1e-12)
        self.likelihood[stored] = self.likelihood.get(stored, 0.0) + np.log(p if right else 1.0 - p)


def run_peer(rule: PeerRule, questions: Sequence[LoggedQuestion], vectors: Any, texts: Sequence[str]) -> dict[str, Any]:
    """Return requests served, and how many of them are wrong by the truth."""
    index = FrameIndexes(vectors.shape[1], limit=len(questions))
    stored, served, wrong = set[str](), 0, 0
    for number, question in enumerate(questions):
        if texts[number] in stored:
            continue
        found = index.search(b"", vectors[number], 1)
        nearest = int.from_bytes(found[0][0]) if found else -1
        right = found and questions[nearest].truth == question.truth
        if found and rule.serves(nearest, found[0][1]):
            served += 1
            wrong += not right
            continue
        if found:
            rule.learn(nearest, found[0][1], bool(right))
        stored.add(texts[number])
        index.add(b"", number.to_bytes(8), vectors[number])
    return {
        "rule": rule.name, "served": served, "wrong": wrong, "served_rate": served / len(questions),
        "error": wrong / served if served else None,
    }  # fmt: skip
