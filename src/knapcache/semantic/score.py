"""The risk that a stored answer is wrong for a question: logistic regression on the deployment's own labels.

    q(x) = 1 / (1 + exp(−w·z)),   z = (1, (x − CENTRE) / SCALE)

The weights minimise the log loss over the last MAX_LABELS labels plus a ridge term that pulls towards PRIOR:

    Σ −ln p(yᵢ | xᵢ, w) + ½ Σ STRENGTH_j (w_j − PRIOR_j)²

solved by Newton's method (iteratively reweighted least squares). The prior is weak: a score that was fitted to one kind
of traffic ranks another kind no better than the plain cosine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.semantic.features import FEATURES

MAX_LABELS = 5000
"""Labels that are fitted. Older ones are dropped."""
MIN_NEW = 16
"""A refit follows after this many new labels, or a tenth of all, whichever is more."""
STRENGTH = 1.0
"""Ridge term of each weight, in standard units of its feature."""
MAX_STEPS = 20
"""Newton steps of one refit."""

CENTRE = (0.45, -1.6, 0.55, 0.5, 1.0, 1.0, 0.4, 0.4, 1.0, 0.25, 1.5, 0.3, 0.4, 0.1)
SCALE = (0.15, 0.6, 0.25, 0.2, 0.8, 0.8, 0.3, 0.3, 1.0, 0.2, 0.4, 0.45, 0.5, 0.2)
PRIOR = (0.0, 0.4, 0.4, -0.3, -0.3, 0.3, 0.3, 0.4, 0.0, 0.3, 0.1, 0.0, 0.2, 0.2, 0.1)


class Score:
    """Estimates risks, and learns from labels. The result depends only on the labels and their order."""

    def __init__(self) -> None:
        width = len(FEATURES) + 1
        self._labels = np.zeros((MAX_LABELS, width))
        self._wrong = np.zeros(MAX_LABELS)
        self._seen = 0
        self._fitted = 0
        self._weights = np.array(PRIOR)

    def risk(self, x: Sequence[float]) -> float:
        """Return the probability that the candidate with these features is wrong."""
        return float(_sigmoid(self._standard(x) @ self._weights))

    def add(self, x: Sequence[float], wrong: bool) -> None:
        """Learn from a label. Refits when enough are new."""
        at = self._seen % MAX_LABELS
        self._labels[at] = self._standard(x)
        self._wrong[at] = wrong
        self._seen += 1
        if self._seen - self._fitted >= max(MIN_NEW, min(self._seen, MAX_LABELS) // 10):
            self._fit()

    @property
    def weights(self) -> dict[str, float]:
        """The weights in standard units, by feature."""
        return dict(zip(("constant", *FEATURES), map(float, self._weights), strict=True))

    def check(self) -> None:
        """Raise InvalidInput if the state is inconsistent."""
        if not np.isfinite(self._weights).all() or self._fitted > self._seen:
            raise InvalidInput("the score has weights that are not finite, or was fitted to labels it has not seen")

    def _standard(self, x: Sequence[float]) -> np.ndarray:
        if len(x) != len(FEATURES):
            raise InvalidInput(f"a label has {len(x)} features; the score needs {len(FEATURES)}")
        return np.concatenate(([1.0], (np.asarray(x, float) - CENTRE) / SCALE))

    def _fit(self) -> None:
        count = min(self._seen, MAX_LABELS)
        self._weights = fit(self._labels[:count], self._wrong[:count], np.array(PRIOR), STRENGTH, self._weights)
        self._fitted = self._seen


def fit(z: np.ndarray, wrong: np.ndarray, prior: np.ndarray, strength: float, start: np.ndarray) -> np.ndarray:
    """Return the weights that minimise log loss plus ridge term, by Newton's method with step halving."""
    ridge = np.full(z.shape[1], strength)

    def loss(w: np.ndarray) -> float:
        linear = z @ w
        return float(np.sum(np.logaddexp(0, linear) - wrong * linear) + 0.5 * np.sum(ridge * (w - prior) ** 2))

    weights, value = start.copy(), loss(start)
    for _ in range(MAX_STEPS):
        q = _sigmoid(z @ weights)
        gradient = z.T @ (q - wrong) + ridge * (weights - prior)
        curvature = (z * (q * (1 - q))[:, None]).T @ z + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while (next_value := loss(weights - size * step)) > value and size > 1e-4:
            size /= 2
        if next_value >= value - 1e-9 * (1 + abs(value)):
            break
        weights, value = weights - size * step, next_value
    return weights


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -40, 40))))
