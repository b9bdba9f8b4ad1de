"""A bounded set of labels for names that clients choose: models, tenants, endpoints."""

from __future__ import annotations

from collections.abc import Iterable

MAX_LABELS = 200
MAX_NAME = 1024
"""Characters of a name that has a label of its own."""
MAX_LENGTH = 100
"""Characters of a label."""
OTHER = "other"
"""The label of all names beyond the limit."""


class LabelLimiter:
    """Gives the first MAX_LABELS names labels of their own, and all others the label `other`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.labels: dict[str, str] = {name: name for name in names}
        """Labels by name. Read it directly where every microsecond counts."""

    def label(self, name: str, *, admit: bool = True) -> str:
        """Return the label of a name. admit=False: a new name gets no label of its own."""
        label = self.labels.get(name)
        if label is None:
            if not admit or len(self.labels) >= MAX_LABELS or len(name) > MAX_NAME:
                return OTHER
            label = self.labels[name] = printable(name)
        return label


def printable(name: str) -> str:
    """Return at most MAX_LENGTH characters, unprintable ones replaced: valid in JSON and in Prometheus' text format."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name[:MAX_LENGTH])
