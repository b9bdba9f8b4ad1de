"""Which differences between two questions are known not to matter, from the deployment's own labels.

A certificate bounds the errors of traffic like that which was labelled. A rare and dangerous question is unlike it:
"once weekly" and "twice weekly" are near, and no label has compared them. So a match may be served only if every word
in which its two questions differ is known to be harmless. A match with another difference is not served. It goes
upstream like any miss, and its label makes the difference known, one way or the other.

    word            was unmatched in labels, of which at least one is right and no more are wrong than right
    substitution    one word stands where the other question has another (`differences.substituted`): the two were
                    exchanged in a right label, and in no wrong one. That the words are harmless elsewhere is not enough

What one principal has shown alone holds for its own requests; what two have shown holds for all of the scope. So no
caller can teach the tier a difference for others. Words of HARMLESS_WORDS are not among the ids. If nothing but these
differs, all that differs is one substitution.
docs/guides/semantic.md compares this form with others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from knapcache.errors import CorruptState

MAX_DIFFERENCES = 100_000
"""Differences that are remembered. Those without a label for the longest time are dropped."""


class DifferenceLabels(NamedTuple):
    """Labels of one difference."""

    right: int = 0
    wrong: int = 0
    principal: str | None = ""
    """The principal of all right labels; None: there are several."""


class HarmlessDifferences:
    """Labels of each difference, by the ids of differences.py."""

    def __init__(self) -> None:
        self._labels: dict[float, DifferenceLabels] = {}

    def allow(self, words: Sequence[float], pair: float | None, principal: str = "") -> bool:
        """Return whether labels allow these unmatched words, or this substitution, for a principal."""
        if pair is not None:
            return self._is_known(pair, principal, most_wrong=0.0)
        return all(self._is_known(each, principal, most_wrong=1.0) for each in words)

    def _is_known(self, difference: float, principal: str, most_wrong: float) -> bool:
        """Return whether enough labels are right. most_wrong: wrong labels for each right one."""
        labels = self._labels.get(difference)
        if labels is None or not labels.right or labels.principal not in (None, principal):
            return False
        return labels.wrong <= most_wrong * labels.right

    def add(self, differences: Iterable[float], wrong: bool, principal: str = "") -> None:
        """Count a label."""
        for each in differences:
            right, wrongs, shown_by = self._labels.pop(each, DifferenceLabels(principal=principal))
            if not wrong:
                shown_by = principal if not right or shown_by == principal else None
            self._labels[each] = DifferenceLabels(right + (not wrong), wrongs + wrong, shown_by)
        while len(self._labels) > MAX_DIFFERENCES:
            del self._labels[next(iter(self._labels))]

    def __len__(self) -> int:
        return len(self._labels)

    def check(self) -> None:
        """Raise CorruptState if there are too many differences, or one without labels."""
        if len(self._labels) > MAX_DIFFERENCES or any(not one.right + one.wrong for one in self._labels.values()):
            raise CorruptState("the labels of differences are inconsistent")
