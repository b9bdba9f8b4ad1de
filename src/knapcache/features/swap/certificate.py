"""Whether a cheaper model may answer: an anytime-valid test of "it loses more than is allowed".

A label z of a request compares the answers of both models: 1 if that of the asked model is better, 0 for a tie, −1 if
that of the cheaper one is better; or a difference of scores in between. With an allowed mean loss δ the evidence is

    E = mean over λ of Π (1 + λ (δ − z)),    λ in BETS

As long as the mean loss is δ or more, each factor has an expected value of at most 1, whatever the earlier labels were.
So E is a supermartingale under that hypothesis, and reaches 1/a at any time with probability a at most (Ville's
inequality). Nothing is assumed about the order of the labels or the time at which one looks at them, only that labels
are drawn at random from the requests that would be swapped.

    learning     labels are collected; E ≥ 1/α_k certifies the model
    certified    the model answers; audits go on. The alarm ends it: learning, from no labels
    hopeless     opposite evidence, the mean of Π (1 + λ/(1 + δ) (z − δ)), reaches HOPELESS: no label is paid for

The alarm is opposite evidence, too, against a loss halfway between the mean of the labels, or 0 if that is more, and δ:
a rise shows earlier against the frame's own mean than against δ. Each of its products starts again from 1 whenever it
falls below, so that a long good past does not delay it. bench/swap.py measures how soon a rise is noticed, and how
often an alarm is false. Rejected: the sum of such products over all starts (Shiryaev and Roberts), which with equally
many false alarms is hardly earlier.

The first certificate of a frame is tested at α_1 = FIRST α, the k-th at α_k = (1 − FIRST) 6 α / (π² (k − 1)²). Their
sum is α: the probability that a frame is ever certified wrongly is at most α, however often it is certified again.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

from knapcache.errors import InvalidInput

State = Literal["learning", "certified", "hopeless"]

ALPHA = 0.05
"""Probability with which any certificate of a frame may be wrong."""
FIRST = 0.8
"""Share of it for the first certificate: most frames need no other."""
HOPELESS = 20.0
"""Opposite evidence that ends the search for a certificate."""
ALARM_BETS = (0.2, 0.4)
ALARM = 20.0
"""Opposite evidence that ends a certificate."""
BETS = (0.05, 0.12, 0.3, 0.7)
"""A product grows fastest with the bet (δ − mean loss) ÷ variance of the labels. More bets would lessen each one's
share of E."""
UNIT = 100
"""Labels are rounded up to 1/UNIT, to the disadvantage of the cheaper model."""
LOG_CAP = math.log(1e6)
"""Bound of a product of the evidence, which keeps the property above."""


class LossCertificate:
    """The evidence about one cheaper model in one frame. loss: allowed mean loss, δ."""

    def __init__(self, loss: float, alpha: float = ALPHA) -> None:
        if not 0.0 < loss < 1.0:
            raise InvalidInput(f"the loss must be above 0 and below 1, not {loss}")
        self.loss, self._alpha = loss, alpha
        # No factor of the opposite evidence may reach 0, also if z = −1.
        self._bets_against = [bet / (1.0 + loss) for bet in BETS]
        self.state: State = "learning"
        self.tries = 1
        """How often the frame has begun to learn, k."""
        self._restart()

    def _restart(self) -> None:
        self._labels: Counter[int] = Counter()  # by z · UNIT
        self._for = [0.0] * len(BETS)
        self._against = [0.0] * len(BETS)
        self._alarm = [0.0] * len(ALARM_BETS)

    def add(self, z: float) -> None:
        """Add a label. Whether the request was drawn for one must not depend on its answers."""
        if not -1.0 <= z <= 1.0:
            raise InvalidInput(f"a label must be −1 to 1, not {z}")
        units = math.ceil(z * UNIT - 1e-9)
        self._labels[units] += 1
        step = self.loss - units / UNIT
        self._for = [min(LOG_CAP, log + math.log1p(bet * step)) for log, bet in zip(self._for, BETS, strict=True)]
        if self.state == "certified":
            halfway = (min(self.loss, max(0.0, self.mean_loss)) + self.loss) / 2.0
            risen = (units / UNIT - halfway) / (1.0 + self.loss)  # above −1
            self._alarm = [
                max(0.0, log) + math.log1p(bet * risen) for log, bet in zip(self._alarm, ALARM_BETS, strict=True)
            ]
            if mean_exp(self._alarm) >= ALARM:
                self.state, self.tries = "learning", self.tries + 1
                self._restart()
        elif self.state == "learning":
            self._against = [
                log + math.log1p(-bet * step) for log, bet in zip(self._against, self._bets_against, strict=True)
            ]
            if self.evidence >= self.needed:
                self.state = "certified"
            elif self.against >= HOPELESS:
                self.state = "hopeless"

    @property
    def needed(self) -> float:
        """The evidence that certifies: 1/α_k."""
        if self.tries == 1:
            return 1.0 / (FIRST * self._alpha)
        return (math.pi * (self.tries - 1)) ** 2 / (6.0 * (1.0 - FIRST) * self._alpha)

    @property
    def evidence(self) -> float:
        """The evidence that the mean loss is below the allowed one, E."""
        return mean_exp(self._for)

    @property
    def against(self) -> float:
        """The evidence that it is above, while the frame learns."""
        return mean_exp(self._against)

    @property
    def labels(self) -> int:
        """Labels since the frame began to learn, the last time."""
        return self._labels.total()

    @property
    def mean_loss(self) -> float:
        """The mean of these labels; 0 without any."""
        return sum(units * number for units, number in self._labels.items()) / UNIT / max(1, self.labels)

    @property
    def differing(self) -> float:
        """The share of these labels that are not ties."""
        return 1.0 - self._labels[0] / self.labels if self.labels else 0.0

    def bound(self) -> float:
        """Return the least loss that these labels would certify, to three digits; 1: none below 1."""
        low, high, needed = 0.0, 1.0, math.log(self.needed)
        if self._log_evidence(high) < needed:
            return 1.0
        while high - low > 0.0005:
            middle = (low + high) / 2.0
            if self._log_evidence(middle) >= needed:
                high = middle
            else:
                low = middle
        return high

    def _log_evidence(self, loss: float) -> float:
        """Return the logarithm of the evidence for another loss, without a cap."""
        logs = [
            sum(number * math.log1p(bet * (loss - units / UNIT)) for units, number in self._labels.items())
            for bet in BETS
        ]
        most = max(logs)
        return most + math.log(sum(math.exp(log - most) for log in logs) / len(BETS))


def mean_exp(logs: list[float]) -> float:
    """Return the mean of numbers whose logarithms are given."""
    return sum(map(math.exp, logs)) / len(logs)
