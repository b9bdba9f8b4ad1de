"""The decision for each request of one frame: which model answers it, and whether it gets a label.

A frame is what requests of one kind have in common: route, system prompt, tools and schema, models and judge.

    learning     the asked model answers. A random share of the requests also goes to the cheaper model, for a label,
                 as long as the budget allows it
    certified    the cheaper model answers. A random AUDIT of the requests goes to both, for a label, and the caller
                 gets the answer of the asked model
    hopeless     the asked model answers

A draw decides about a label before any answer is known, so labels are a fair sample of the requests.

All frames of a tenant on a route share one budget. With a budget for each frame, prompts that begin with a date or a
name would make ever new frames, and each of them would get labels beyond the budget.
"""

from __future__ import annotations

from typing import Literal

from knapcache.features.swap.certificate import LossCertificate

Choice = Literal["asked", "label", "audit", "swap"]

AUDIT = 0.03
"""Share of requests that are audited while the cheaper model answers."""
MAX_LABELLED = 0.5
"""Share of requests that may get a label while the frame learns."""
START_LABELS = 20
"""Labels beyond the budget: at the begin nothing was spent, so there is no budget."""


class LabelBudget:
    """The limit on the cost of labels: a share of the asked model's cost for all requests, and START_LABELS more."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.asked_cost = 0.0
        """Cost of all requests if the asked model had answered them."""
        self.label_cost = 0.0
        """Cost of all labels: the second answer and the judge."""
        self._labels = 0
        self.pending = 0
        """Labels that are being made, and have cost nothing yet."""

    def allows_label(self) -> bool:
        """Return whether one more label of the usual cost is within the budget."""
        if self._labels + self.pending < START_LABELS:
            return True
        if not self._labels:
            return False
        mean = self.label_cost / self._labels
        return self.label_cost + (self.pending + 1) * mean <= self._share * self.asked_cost + START_LABELS * mean

    def add_label(self, cost: float) -> None:
        """Count a label."""
        self._labels += 1
        self.label_cost += cost


class Frame:
    """The state of one frame. budget: that of its labels, which other frames may share."""

    def __init__(self, loss: float, budget: LabelBudget) -> None:
        self.certificate, self.budget = LossCertificate(loss), budget

    def choose(self, draw: float) -> Choice:
        """Return what to do with a request. draw: a random number from 0 to 1, new for each request."""
        state = self.certificate.state
        if state == "certified":
            return "audit" if draw < AUDIT else "swap"
        if state == "learning" and draw < MAX_LABELLED and self.budget.allows_label():
            return "label"
        return "asked"

    def add_label(self, z: float, cost: float) -> None:
        """Add a label and what it has cost."""
        self.budget.add_label(cost)
        self.certificate.add(z)
