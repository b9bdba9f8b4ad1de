"""Which stored answer may serve a question in another wording. The proxy and the lab run the same code.

    match(text, candidates)   the candidate of least risk among those without a veto
    serves(match)             whether the certificate allows it
    add(label)                what the judge has found: certificate, score and the entry's own record learn from it

The risk of a candidate is the score's estimate q that its answer is wrong, corrected by the entry's own labels:

    risk = q · (1 + wrong labels of the entry) / (1 + sum of their q)

Some entries answer many questions that look alike and are not, and others none: with labels, the entry's own record
outweighs the score. Labels are added in one order everywhere, so all processes that read them decide alike.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from knapcache.features.semantic.certificate import LEVELS, Certificate
from knapcache.features.semantic.differences import WordCounts, features, veto
from knapcache.features.semantic.score import Score
from knapcache.features.semantic.words import QuestionWords, read_words

CANDIDATES = 6
"""Nearest stored questions that are looked at."""
MIN_COSINE = 0.6
AUDIT_RATE = 0.05
"""Share of the answers that could be served by similarity for which the upstream is asked all the same."""
RAISED_AUDIT_RATE = 0.5
"""The same while a wrong label of what is served is recent."""
OTHER_ERRORS = (0.005, 0.01, 0.02, 0.05, 0.1)
"""Allowed errors for which the report says what would be served."""
MAX_ENTRIES = 50_000
"""Entries whose own labels are remembered."""
RECENT = 1000
"""Questions of which the report gives the share that could be served."""

Source = Literal["shadow", "audit", "feedback"]


class Candidate(NamedTuple):
    """A stored question near the one that was asked."""

    key: bytes
    text: str
    cosine: float


class Match(NamedTuple):
    """The candidate of least risk."""

    key: bytes
    text: str
    cosine: float
    features: tuple[float, ...]
    score: float
    """The estimate of the score alone."""
    risk: float

    def label(self, wrong: bool, source: Source, time: float = 0.0) -> Label:
        return Label(self.key, self.features, self.score, self.risk, wrong, source, time)


class Label(NamedTuple):
    """Whether the answer of an entry was wrong for a question in another wording."""

    key: bytes
    """Of the entry."""
    features: tuple[float, ...]
    score: float
    risk: float
    wrong: bool
    source: Source
    """shadow: the question was answered by the upstream anyhow · audit: it was sent there at random, instead of an
    answer by similarity · feedback: a person has marked the answer as wrong."""
    time: float = 0.0


class SemanticLearner:
    """Matches and labels of one scope."""

    def __init__(self, error: float = 0.01) -> None:
        self.certificate = Certificate(error)
        self._others = {each: Certificate(each) for each in OTHER_ERRORS}
        self._score = Score()
        self._counts = WordCounts()
        self._entries: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """Wrong labels and the sum of the scores of all labels, by key."""
        self.sources: Counter[str] = Counter()
        self._recent: list[float] = []
        """Risks of the last questions; infinity for one without a match."""

    def match(self, text: str, candidates: Sequence[Candidate]) -> Match | None:
        """Return the candidate of least risk; None if there is none without a veto."""
        asked = parsed(text)
        self._counts.add(asked)
        best: Match | None = None
        for key, stored_text, cosine in candidates:
            stored = parsed(stored_text)
            if veto(asked, stored):
                continue
            x = features(asked, stored, cosine, self._counts)
            score = self._score.risk(x)
            risk = self._risk(key, score)
            if best is None or risk < best.risk:
                best = Match(key, stored_text, cosine, x, score, risk)
        self._recent.append(float("inf") if best is None else best.risk)
        if len(self._recent) >= 2 * RECENT:
            del self._recent[:RECENT]
        return best

    def _risk(self, key: bytes, score: float) -> float:
        wrong, scores = self._entries.get(key, (0, 0.0))
        return min(1.0, score * (1.0 + wrong) / (1.0 + scores))

    def serves(self, match: Match) -> bool:
        return self.certificate.serves(match.risk)

    @property
    def audit_rate(self) -> float:
        """Share of what `serves` that is to be sent upstream all the same, at random, for a label."""
        return RAISED_AUDIT_RATE if self.certificate.suspicious else AUDIT_RATE

    @property
    def bound(self) -> float | None:
        """The certified error of what is served; None: nothing is."""
        level = self.certificate.level
        return None if level < 0 else self.certificate.bound(level)

    def add(self, label: Label) -> None:
        self.certificate.add(label.risk, label.wrong)
        for certificate in self._others.values():
            certificate.add(label.risk, label.wrong)
        self._score.add(label.features, label.wrong)
        wrong, scores = self._entries.pop(label.key, (0, 0.0))
        self._entries[label.key] = wrong + label.wrong, scores + label.score
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)
        self.sources[label.source] += 1

    def feedback(self, key: bytes, x: tuple[float, ...], risk: float, time: float) -> Label:
        """Return the label of a match that a person has marked as wrong."""
        return Label(key, x, self._score.risk(x), risk, True, "feedback", time)

    def report(self) -> dict[str, Any]:
        """Return the state for people: levels, labels, and what other errors would serve."""
        certificate, recent = self.certificate, self._recent[-RECENT:]
        return {
            "error": certificate.error,
            "level": certificate.level,
            "bound": self.bound,
            "needed": certificate.needed,
            "alarms": certificate.alarms,
            "labels": dict(self.sources),
            "levels": [level._asdict() for level in certificate.report()],
            "others": [
                {"error": error, "certified": other.level >= 0, "share": share_below(recent, other.level)}
                for error, other in self._others.items()
            ],
        }


def share_below(risks: Sequence[float], level: int) -> float:
    """Return the share of questions whose risk is within a level; 0 without a level."""
    if level < 0 or not risks:
        return 0.0
    return sum(risk <= LEVELS[level] for risk in risks) / len(risks)


@lru_cache(maxsize=20_000)
def parsed(text: str) -> QuestionWords:
    """Return the words of a text. Stored questions are looked at many times."""
    return read_words(text)
