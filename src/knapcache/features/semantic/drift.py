"""Evidence that stored answers have become wrong, from all labels: those of audits and those of the shadow.

A label is surprising if it is wrong although its estimated risk q was low. Under drift, a share CHANGED of the answers
is wrong in addition. The statistic is the log-likelihood ratio of the two, which starts again from 0 (CUSUM):

    s ← max(0, s + ln(p/q)) for a wrong label, max(0, s + ln((1 − p)/(1 − q))) for a right one, p = q + (1 − q)·CHANGED

Labels of the shadow cost nothing and are as many as the answers served. So they show a drift long before enough audits
have been drawn. Audits rise with the statistic: after wrong labels where none was expected, nearly all matches are
audits, until right ones have explained them as chance, or ALARM is reached.
"""

from __future__ import annotations

import math

CHANGED = 0.25
MIN_RISK, MAX_RISK = 0.03, 0.5
UNKNOWN_RISK = 0.05
"""The least risk of a label whose match could not have been served: its difference is new, whatever the score says."""
ALARM = math.log(3000.0)
"""The value that ends a certificate, if a label of what is served was wrong, too."""
STEEPNESS = 1.5
"""Audits rise with e^(STEEPNESS · s): half of the matches after one unexpected wrong label, nearly all after two."""
MAX_VALUE = ALARM + 1.5
"""Five right labels end an alarm."""


class DriftWatch:
    """The statistic of a scope or of a principal. error: allowed share of wrong answers. value: that at the start."""

    def __init__(self, error: float, value: float = 0.0) -> None:
        self._least_risk = max(MIN_RISK, error / 2)
        self.value = value

    def add(self, risk: float, wrong: bool, *, servable: bool) -> None:
        """Add a label. servable: its match could have been served, apart from the certificate."""
        q = min(MAX_RISK, max(risk, self._least_risk if servable else UNKNOWN_RISK))
        p = q + (1.0 - q) * CHANGED
        step = math.log(p / q) if wrong else math.log((1.0 - p) / (1.0 - q))
        self.value = min(MAX_VALUE, max(0.0, self.value + step))

    @property
    def alarmed(self) -> bool:
        return self.value >= ALARM

    @property
    def factor(self) -> float:
        """By how much audits rise."""
        return math.exp(STEEPNESS * self.value)
