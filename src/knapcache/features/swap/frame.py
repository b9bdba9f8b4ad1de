"""The decision for each request of one frame: which model answers it, and whether it gets a label.

A frame is what requests of one kind have in common: route, system prompt, tools and schema, models and judge.

    learning     the asked model answers. A random share of the requests also goes to the cheaper model, for a label,
                 as long as labels cost at most `budget` of what the frame spends, and START_LABELS more
    certified    the cheaper model answers. A random AUDIT of the requests goes to both, for a label, and the caller
                 gets the answer of the asked model
    hopeless     the asked model answers

A draw decides about a label before any answer is known, so labels are a fair sample of the requests.
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
"""Labels beyond the budget: a frame that has spent nothing yet has no budget."""


class Frame:
    """The state of one frame. budget: most that labels may cost, as a share of what the asked model would cost."""

    def __init__(self, loss: float, budget: float) -> None:
        self.certificate = LossCertificate(loss)
        self._budget = budget
        self.asked_cost = 0.0
        """Cost of all requests if the asked model had answered them."""
        self.label_cost = 0.0
        """Cost of all labels: the second answer and the judge."""
        self._all_labels = 0

    def choose(self, draw: float) -> Choice:
        """Return what to do with a request. draw: a random number from 0 to 1, new for each request."""
        state = self.certificate.state
        if state == "certified":
            return "audit" if draw < AUDIT else "swap"
        if state == "learning" and draw < MAX_LABELLED and self._may_label():
            return "label"
        return "asked"

    def _may_label(self) -> bool:
        """Return whether one more label of the usual cost is within the budget."""
        labels = self._all_labels
        if labels < START_LABELS:
            return True
        mean = self.label_cost / labels
        return self.label_cost + mean <= self._budget * self.asked_cost + START_LABELS * mean

    def count(self, asked_cost: float) -> None:
        """Count a request, by what the asked model costs or would cost for it."""
        self.asked_cost += asked_cost

    def add_label(self, z: float, cost: float) -> None:
        """Add a label and what it has cost."""
        self._all_labels += 1
        self.label_cost += cost
        self.certificate.add(z)
