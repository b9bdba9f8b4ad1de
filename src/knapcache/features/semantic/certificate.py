"""Which levels of risk may be served: an anytime-valid test of "too many answers at this level are wrong".

A label says whether an answer to a similar question was wrong. A level has the labels whose risk is at most its
threshold. With n labels, of which k are wrong, and an allowed error δ, its e-value is

    E = mean over r of r^k · ((1 − rδ) / (1 − δ))^(n − k),    r in BETS

Each factor has an expected value of at most 1 as long as the probability of "wrong" is at least δ, whatever the
earlier labels were. So E is a supermartingale under that hypothesis, and reaches 1/a at any time with probability a at
most (Ville's inequality). A level is certified while E ≥ levels/α: the probability that any level is ever certified
wrongly is at most α. Nothing is assumed about the order of the labels or the time at which one looks at them.

Two things end a certificate. A factor of E is at most CAP, which keeps the property above, so that a long good past
cannot outweigh many wrong labels. And an alarm tests the opposite hypothesis, that at most δ are wrong, with bets that
win when wrong labels come close together; it starts again from 1 whenever it falls below. After an alarm all levels
start anew, without labels.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from knapcache.errors import InvalidInput

LEVELS = (0.005, 0.015, 0.04, 0.08, 0.16)
"""Thresholds of risk. A level contains the ones before it."""
ALPHA = 0.05
"""Probability with which a certificate may be wrong."""
BETS = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75)
CAP = 1e4
OWN_LABELS = 10
"""Labels that a level must have beside those of the narrower ones, to be served. Otherwise labels of easy matches would
certify hard ones, of which hardly any has been labelled: the first new kind of question would be served unseen."""
ALARM_BETS = (3.0, 6.0, 12.0, 24.0)
ALARM = 20.0
"""The alarm's threshold. Among labels of which at most δ are wrong, one alarm in ALARM labels or more is expected."""
MAX_ERROR = 0.5
MAX_MISSING = 1 << 20
"""Labels up to which it is computed how many are missing."""


class LevelReport(NamedTuple):
    """The state of one level."""

    threshold: float
    labels: int
    wrong: int
    e_value: float
    bound: float
    """The least error for which these labels would be enough; 1: none."""
    certified: bool
    serves: bool
    """Whether it, or a wider level, is certified and has OWN_LABELS."""


class Certificate:
    """The labels of all levels. error: allowed share of wrong answers among those served, δ."""

    def __init__(self, error: float) -> None:
        if not 0.0 < error < MAX_ERROR:
            raise InvalidInput(f"the error must be above 0 and below {MAX_ERROR}, not {error}")
        self.error = error
        self.needed = len(LEVELS) / ALPHA
        """The e-value that certifies a level."""
        self._right = [math.log((1.0 - r * error) / (1.0 - error)) for r in BETS]
        self._wrong = [math.log(r) for r in BETS]
        bets = [min(r, 0.9 / error) for r in ALARM_BETS]
        self._alarm_right = [math.log((1.0 - r * error) / (1.0 - error)) for r in bets]
        self._alarm_wrong = [math.log(r) for r in bets]
        self.alarms = 0
        self._restart()

    def _restart(self) -> None:
        self._labels = [0] * len(LEVELS)
        self._wrongs = [0] * len(LEVELS)
        self._logs = [[0.0] * len(BETS) for _ in LEVELS]
        self._alarm_logs = [0.0] * len(self._alarm_right)
        self.level = -1
        """The widest level that is certified; −1: none is."""

    def add(self, risk: float, wrong: bool) -> None:
        """Add a label. Its risk must have been computed before the label was known."""
        served = self.level >= 0 and risk <= LEVELS[self.level]
        steps, most = self._wrong if wrong else self._right, math.log(CAP)
        for at, threshold in enumerate(LEVELS):
            if risk <= threshold:
                self._labels[at] += 1
                self._wrongs[at] += wrong
                self._logs[at] = [min(most, log + step) for log, step in zip(self._logs[at], steps, strict=True)]
        if served and self._raises_alarm(wrong):
            self.end()
            return
        self.level = max((at for at in range(len(LEVELS)) if self._may_serve(at)), default=-1)

    def end(self) -> None:
        """End all certificates after an alarm: every level starts anew, without labels."""
        self.alarms += 1
        self._restart()

    def restart(self) -> None:
        """Start anew without labels. What they were about has changed, and it was no alarm."""
        self._restart()

    def _may_serve(self, at: int) -> bool:
        """Return whether a level is certified, and has labels of its own that no narrower level has."""
        own = self._labels[at] - (self._labels[at - 1] if at else 0)
        return own >= OWN_LABELS and self.e_value(at) >= self.needed

    def _raises_alarm(self, wrong: bool) -> bool:
        steps = self._alarm_wrong if wrong else self._alarm_right
        self._alarm_logs = [max(0.0, log) + step for log, step in zip(self._alarm_logs, steps, strict=True)]
        return self.alarm_value >= ALARM

    @property
    def alarm_value(self) -> float:
        """Evidence that more than the allowed share of what is served is wrong. ALARM ends the certificate."""
        return sum(map(math.exp, self._alarm_logs)) / len(self._alarm_logs)

    @property
    def suspicious(self) -> bool:
        """Whether a served level has recently had a wrong label: it should get more labels."""
        return max(self._alarm_logs) > 0.0

    def e_value(self, at: int) -> float:
        return sum(map(math.exp, self._logs[at])) / len(BETS)

    def serves(self, risk: float) -> bool:
        return self.level >= 0 and risk <= LEVELS[self.level]

    def report(self) -> list[LevelReport]:
        return [
            LevelReport(
                threshold,
                self._labels[at],
                self._wrongs[at],
                self.e_value(at),
                self.bound(at),
                self.e_value(at) >= self.needed,
                at <= self.level,
            )
            for at, threshold in enumerate(LEVELS)
        ]

    def missing_labels(self, at: int) -> int:
        """Return how many more labels certify a level if all of them are right."""
        logs = self._logs[at]

        def certifies(count: int) -> bool:
            right = (log + count * step for log, step in zip(logs, self._right, strict=True))
            return sum(math.exp(min(log, math.log(CAP))) for log in right) / len(BETS) >= self.needed

        high = 1
        while not certifies(high) and high < MAX_MISSING:
            high *= 2
        return bisect_left(range(high + 1), x=True, key=certifies)

    def bound(self, at: int) -> float:
        """Return the least error that the labels of a level would certify; 1: none."""
        return certified_error(self._labels[at], self._wrongs[at], self.needed)


def certified_error(labels: int, wrong: int, needed: float) -> float:
    """Return the least error for which the e-value is at least `needed`, to three digits; 1: there is none."""
    low, high = 1e-6, MAX_ERROR
    if log_e_value(labels, wrong, high) < math.log(needed):
        return 1.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        if log_e_value(labels, wrong, middle) >= math.log(needed):
            high = middle
        else:
            low = middle
    return high


def log_e_value(labels: int, wrong: int, error: float) -> float:
    """Return the logarithm of the e-value, without a cap. The e-value itself may be too large for a float."""
    logs = [
        wrong * math.log(r) + (labels - wrong) * math.log((1.0 - r * error) / (1.0 - error)) for r in BETS
    ]  # fmt: skip
    most = max(logs)
    return most + math.log(sum(math.exp(log - most) for log in logs) / len(BETS))


def level_of(risk: float) -> int:
    """Return the narrowest level that contains a risk; −1: none does."""
    return next((at for at, threshold in enumerate(LEVELS) if risk <= threshold), -1)


def share_below(risks: Sequence[float], level: int) -> float:
    """Return the share of questions whose risk is within a level; 0 without a level."""
    if level < 0 or not risks:
        return 0.0
    return sum(risk <= LEVELS[level] for risk in risks) / len(risks)
