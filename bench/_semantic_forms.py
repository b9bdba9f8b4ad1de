"""Forms of the rule "a difference that was never judged is never served", for bench/semantic.py."""

from __future__ import annotations

from collections.abc import Sequence

from knapcache.features.semantic.harmless import DifferenceLabels, HarmlessDifferences


class EveryDifference(HarmlessDifferences):
    """No rule: the score and the certificate alone decide."""

    def allow(self, words: Sequence[float], pair: float | None, principal: str = "") -> bool:  # noqa: ARG002
        return True


class WordsOnce(HarmlessDifferences):
    """Each unmatched word has been unmatched in a right label."""

    def allow(self, words: Sequence[float], pair: float | None, principal: str = "") -> bool:  # noqa: ARG002
        return all(self._labels.get(each, DifferenceLabels()).right for each in words)


class Words(HarmlessDifferences):
    """And no more often in wrong ones."""

    def allow(self, words: Sequence[float], pair: float | None, principal: str = "") -> bool:  # noqa: ARG002
        return super().allow(words, None, principal)


class Pairs(HarmlessDifferences):
    """The two questions are equal but for a substitution, which has been in a right label and in no wrong one."""

    def allow(self, words: Sequence[float], pair: float | None, principal: str = "") -> bool:
        return not words or (pair is not None and super().allow(words, pair, principal))


FORMS: dict[str, type[HarmlessDifferences]] = {
    "no rule": EveryDifference,
    "word, right once": WordsOnce,
    "word, no more wrong than right": Words,
    "word, and substitutions by pair": HarmlessDifferences,
    "pair only": Pairs,
}
"""By name; the fourth is the tier's."""
