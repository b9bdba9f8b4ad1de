"""The risk that a stored answer is wrong for a question, learned from the deployment's own labels.

    q = 1 / (1 + exp(−(w·z + g))),   z = (1, (x − CENTRE) / SCALE)

**w: how much the questions differ** (differences.py). The weights minimise the log loss over the last MAX_LABELS labels
plus a ridge term that pulls towards PRIOR,

    Σ −ln p(yᵢ | xᵢ, w) + ½ · STRENGTH · Σ (w_j − PRIOR_j)²

by Newton's method (iteratively reweighted least squares). The prior is weak: a score that was fitted to one kind of
traffic ranks another kind no better than the plain cosine does.

**g: in which words they differ, and which they share.** "Kenya" instead of "Peru" changes the answer, "big" in place
of "large" does not, and some topics have many questions that look alike. Only labels tell. For each word, the wrong
labels are compared with the number that the regression alone expects:

    r = ln((1 + wrong labels) / (1 + Σ expected)),   g = Σ r over unmatched words / √number + the same of shared words

Measured on CLINC (150 intents): 56 % of the questions can be answered with 1 % wrong, and 36 % without g.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState, InvalidInput
from knapcache.features.semantic.differences import FEATURES, split_ids

Array = npt.NDArray[np.float64]

MAX_LABELS = 5000
"""Labels that are fitted. Older ones are dropped."""
MIN_NEW = 16
"""A refit follows after this many new labels, or a tenth of all, whichever is more."""
STRENGTH = 4.0
"""Ridge term of each weight, in standard units of its feature. Values from 1 to 8 serve the same within 2 %."""
MAX_STEPS = 20
"""Newton steps of one refit."""

MAX_WORDS = 100_000
"""Words whose labels are counted. Those without a label for the longest time are dropped."""
MAX_COUNT = 50.0
"""A word's counts are halved when they reach this, so that it can change its meaning."""
MAX_SHIFT = 3.0
"""Bound of g in either direction."""

CENTRE = (0.35, -2.07, 0.68, 0.55, 0.75, 0.72, 0.34, 0.32, 0.72, 0.21, 1.40, 0.41, 0.45, 0.11)
SCALE = (0.15, 0.72, 0.23, 0.17, 0.73, 0.73, 0.33, 0.42, 0.82, 0.19, 0.26, 0.49, 0.50, 0.27)
"""Mean and standard deviation of each feature, and below the constant and the prior weight of each feature. All three
were printed by bench/_semantic_prior.py."""
PRIOR = (-2.48, 0.46, 0.56, -0.11, 0.12, -0.23, -0.17, 0.38, -0.10, 0.06, -0.09, 0.06, 0.22, -0.05, 0.07)

_CENTRE, _SCALE = np.array(CENTRE), np.array(SCALE)


class Score:
    """Estimates risks, and learns from labels. The result depends only on the labels and their order."""

    def __init__(self) -> None:
        self._labels: deque[tuple[Array, bool]] = deque(maxlen=MAX_LABELS)
        """Standard features of each label, and whether it was wrong."""
        self._new = 0
        """Labels since the last fit."""
        self._weights = np.array(PRIOR)
        self._words = WordRisks()

    def risk(self, x: Sequence[float]) -> float:
        """Return the probability that the candidate with these features is wrong."""
        linear = float(self._standard(x) @ self._weights) + self._words.shift(*split_ids(x)[:2])
        return float(1 / (1 + np.exp(-max(-40.0, min(40.0, linear)))))

    def add(self, x: Sequence[float], wrong: bool) -> None:
        """Learn from a label. Refits when enough are new."""
        z = self._standard(x)
        unmatched, shared, _ = split_ids(x)
        self._words.add([*unmatched, *shared], float(_sigmoid(z @ self._weights)), wrong)
        self._labels.append((z, wrong))
        self._new += 1
        if self._new >= max(MIN_NEW, len(self._labels) // 10):
            self._fit()

    def check(self) -> None:
        """Raise CorruptState if the state is inconsistent."""
        if not np.isfinite(self._weights).all():
            raise CorruptState(f"the score has weights that are not finite: {self._weights}")

    def _standard(self, x: Sequence[float]) -> Array:
        if len(x) < len(FEATURES):
            raise InvalidInput(f"a label has {len(x)} features; the score needs {len(FEATURES)} or more")
        standard = np.ones(len(FEATURES) + 1)
        standard[1:] = (np.array(x[: len(FEATURES)], float) - _CENTRE) / _SCALE
        return standard

    def _fit(self) -> None:
        z, wrong = np.array([z for z, _ in self._labels]), np.array([wrong for _, wrong in self._labels], float)
        self._weights = fit(z, wrong, np.array(PRIOR), np.full(len(PRIOR), STRENGTH), self._weights)
        self._new = 0


class WordRisks:
    """Labels of each word, by id: how many were wrong, and how many the regression expected to be wrong."""

    def __init__(self) -> None:
        self._counts: dict[float, tuple[float, float]] = {}

    def shift(self, unmatched: Sequence[float], shared: Sequence[float]) -> float:
        """Return g, by which the words of a pair raise or lower the log-odds of "wrong"."""
        shift = 0.0
        for part in (unmatched, shared):
            known = [self._counts[each] for each in part if each in self._counts]
            shift += sum(math.log((1 + wrong) / (1 + expected)) for wrong, expected in known) / math.sqrt(
                len(part) or 1
            )
        return max(-MAX_SHIFT, min(MAX_SHIFT, shift))

    def add(self, ids: Sequence[float], expected: float, wrong: bool) -> None:
        """Count a label for the words of its pair."""
        for each in ids:
            wrongs, total = self._counts.pop(each, (0.0, 0.0))
            share = 0.5 if max(wrongs, total) >= MAX_COUNT else 1.0
            self._counts[each] = share * (wrongs + wrong), share * (total + expected)
        while len(self._counts) > MAX_WORDS:
            del self._counts[next(iter(self._counts))]


def fit(z: Array, wrong: Array, prior: Array, ridge: Array, start: Array, weight: Array | None = None) -> Array:
    """Return the weights that minimise log loss plus ridge term, by Newton's method with step halving.

    weight   of each label; None: 1
    """
    share = np.ones(len(z)) if weight is None else weight

    def loss(w: Array) -> float:
        linear = z @ w
        return float(share @ (np.logaddexp(0, linear) - wrong * linear) + 0.5 * ridge @ (w - prior) ** 2)

    weights, value = start.copy(), loss(start)
    for _ in range(MAX_STEPS):
        q = _sigmoid(z @ weights)
        gradient = z.T @ (share * (q - wrong)) + ridge * (weights - prior)
        curvature = (z * (share * q * (1 - q))[:, None]).T @ z + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while (next_value := loss(weights - size * step)) > value and size > 1e-4:
            size /= 2
        if next_value >= value - 1e-9 * (1 + abs(value)):
            break
        weights, value = weights - size * step, next_value
    return weights


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -40, 40))))
