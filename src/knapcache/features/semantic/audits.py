"""How many of the answers that could be served by similarity are checked instead.

A drift is noticed by the first wrong label. Where the shadow has few labels, audits alone can show it. With a share a
of audits, 1/a − 1 wrong answers are served before the first of them is audited, on average. Before the first wrong
label nothing tells changed answers from others. So audits rise where the shadow has few labels, and every answer that
is served has about the same chance.

Audits are not drawn independently. Their probabilities add up, and an audit is due when the sum reaches a limit near 1,
which is drawn anew each time. So there are no long stretches without an audit. In return, a caller who notices one
knows that the next few answers are none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

AUDIT_RATE = 0.045
"""Share of the answers that could be served by similarity for which the upstream is asked all the same, about, where
the shadow has many labels. It is up to twice as much where the shadow has none."""
AUDIT_START, AUDIT_STEP = 0.75, 0.05
"""The first answer of an entry after a label is an audit with about AUDIT_START of that rate; each further one adds
AUDIT_STEP of it."""
FIRST_LABELS = 10
"""Labels of audits that are assumed when a level becomes certified: the shadow's share is not known yet."""
MAX_SERVED = 50_000
"""Entries whose answers are counted."""


class Audits:
    """State of one scope: its labels and the answers that it has served."""

    def __init__(self) -> None:
        self._served: Counter[bytes] = Counter()
        """Answers that this process has served from an entry since its last label."""
        self._labels: Counter[str] = Counter()
        """Labels since a level became certified, by source."""
        self._hazard = 0.0
        """Sum of −ln(1 − rate) since the last audit."""
        self._limit: float | None = None

    def is_due(self, rate: float, draw: Callable[[], float]) -> bool:
        """Return whether an answer is an audit, and count it. draw: uniform in [0, 1)."""
        if self._limit is None:
            self._limit = 0.5 + draw()
        self._hazard += -math.log1p(-rate) if rate < 1.0 else math.inf
        if self._hazard < self._limit:
            return False
        self._hazard, self._limit = 0.0, 0.5 + draw()
        return True

    def rate(self, key: bytes, doubt: float, base: float) -> float:
        """Return the share of answers like this one that are audits: 1 − (1 − base)^x.

        x is the product of what is at stake (the answers served from the entry since its last label), of 1 + the share
        of audits among the labels, and of `doubt`, the evidence that the answer may be outdated.
        """
        at_stake = AUDIT_START + AUDIT_STEP * self._served[key]
        audits = FIRST_LABELS + self._labels["audit"]
        scarcity = audits / (audits + self._labels["shadow"])
        return 1.0 - math.pow(1.0 - base, at_stake * doubt * (1.0 + scarcity))

    def count_served(self, key: bytes) -> None:
        """Count an answer that was served from an entry."""
        self._served[key] += 1
        if len(self._served) > MAX_SERVED:
            del self._served[next(iter(self._served))]

    def add(self, key: bytes, source: str, *, certified: bool) -> None:
        """Count a label of an entry. certified: whether a level is certified now."""
        self._served.pop(key, None)
        if certified:
            self._labels[source] += 1
        else:
            self._labels.clear()
