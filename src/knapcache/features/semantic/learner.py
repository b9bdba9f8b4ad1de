"""Which stored answer may serve a question in another wording. The proxy and the lab run the same code.

    match(text, candidates)   the candidate of least risk among those without a contradiction
    serves(match)             whether labels allow its difference, its entry and its level
    add(label)                what the judge has found

The risk of a candidate is the score's estimate q that its answer is wrong, corrected by the entry's own labels:

    risk = q · (1 + wrong labels of the entry) / (1 + sum of their q)

Some entries answer many questions that look alike and are not, and others none: with labels, the entry's own record
outweighs the score. A match is *servable* if labels allow all words in which the two questions differ (harmless.py),
and its entry is trusted: the entry's last label is not wrong and, after an alarm, a later one is right. The certificate
counts labels of trusted entries, whether or not their difference is known: those with a new one are wrong no less
often.

After an alarm, answers that were stored before may be outdated. Their wrong labels say nothing about words, so they do
not train the score. This state, the *recovery*, lasts until a level is certified again, and RECOVERY_LABELS at least.
While labels find such answers right, the cause seems gone, and those of unverified entries count for the certificate.

Labels are added in one order everywhere, so all processes that read them decide alike.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from knapcache.features.semantic.audits import AUDIT_RATE, Audits
from knapcache.features.semantic.certificate import LEVELS, Certificate, share_below
from knapcache.features.semantic.differences import MAX_IDS, WordCounts, contradiction, features, split_ids
from knapcache.features.semantic.drift import DriftWatch
from knapcache.features.semantic.harmless import HarmlessDifferences
from knapcache.features.semantic.score import Score
from knapcache.features.semantic.words import QuestionWords, read_words
from knapcache.units import counted

CANDIDATES = 6
"""Nearest stored questions that are looked at."""
MIN_COSINE = 0.6
RECOVERY_LABELS = 300
OUTDATED, RETURNED = 4.0, 1.0
"""Evidence that stored answers are outdated: at an alarm, and that below which labels of unverified entries count for
the certificate. About eleven right labels lead from one to the other."""
PRINCIPAL_WINDOW, PRINCIPAL_LABELS = 1000, 100
"""Among the last labels of a scope, those that count of one of several principals are half at most, or this many."""
OTHER_ERRORS = (0.005, 0.01, 0.02, 0.05, 0.1)
"""Allowed errors for which the report says what would be served."""
MAX_ENTRIES = 50_000
"""Entries whose own labels are remembered."""
MAX_PRINCIPALS = 10_000
RECENT = 1000
"""Questions of which the report gives the share that could be served."""

Source = Literal["shadow", "audit", "feedback", "reset", "restart", "partial restart"]


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
    principal: str = ""
    """The caller."""
    obstacle: str = ""
    """Why it is not served, whatever its risk: `word` (a difference without a label), `entry` (the entry's last label
    is wrong, or older than an alarm) or `principal` (of the caller's own labels, too many are wrong)."""

    def label(self, wrong: bool, source: Source, time: float = 0.0) -> Label:
        return Label(
            key=self.key,
            features=self.features,
            score=self.score,
            risk=self.risk,
            wrong=wrong,
            source=source,
            time=time,
            principal=self.principal,
        )


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
    answer by similarity · feedback: a person has marked the answer as wrong. Three sources are events, and no labels:
    reset: nothing before it counts · restart: nothing before it counts for a certificate, and all answers are gone ·
    partial restart: the same, but answers are left, and what labels have said about them holds."""
    time: float = 0.0
    principal: str = ""
    """The caller whose request was labelled; empty in records of earlier versions."""


class EntryLabels(NamedTuple):
    """Labels of one entry."""

    wrong: int = 0
    scores: float = 0.0
    """Sum of the scores of all of them."""
    last_wrong: bool = False


class SemanticLearner:
    """Matches and labels of one scope."""

    def __init__(self, error: float = 0.01, harmless: HarmlessDifferences | None = None) -> None:
        self.certificate = Certificate(error)
        self._others = {each: Certificate(each) for each in OTHER_ERRORS}
        self._score = Score()
        self._harmless = HarmlessDifferences() if harmless is None else harmless
        self._counts = WordCounts()
        self._entries: OrderedDict[bytes, EntryLabels] = OrderedDict()
        self._verified: set[bytes] | None = None
        """Entries that a label has found right since the last alarm; None: there is no recovery."""
        self._outdated = DriftWatch(error)
        """Labels of other entries since the alarm: evidence that answers are outdated."""
        self._since_alarm = 0
        self._was_certified = False
        """Whether a level has been certified since the last restart."""
        self._drift = DriftWatch(error)
        self._principals: OrderedDict[str, DriftWatch] = OrderedDict()
        self._counted: deque[str | None] = deque()
        """Principals of the last PRINCIPAL_WINDOW labels; None for one that did not count. So a principal that asks no
        more does not hold back the labels of another one for ever."""
        self._counts_of: Counter[str] = Counter()
        """How often each principal is among them, without zeros."""
        self._counted_labels = 0
        """Sum of these."""
        self._audits = Audits()
        self.sources: Counter[str] = Counter()
        self._recent: list[float] = []
        """Risks of the last questions; infinity for one without a servable match."""
        self._obstacles: deque[str] = deque(maxlen=RECENT)
        """Those of the last matches."""

    def match(self, text: str, candidates: Sequence[Candidate], principal: str = "") -> Match | None:
        """Return the candidate of least risk, a servable one if there is any; None: all contradict the question."""
        asked = parsed(text)
        self._counts.add(asked)
        found: list[Match] = []
        for key, stored_text, cosine in candidates:
            stored = parsed(stored_text)
            if contradiction(asked, stored):
                continue
            x = features(asked, stored, cosine, self._counts)
            score = self._score.risk(x)
            found.append(
                Match(
                    key=key,
                    text=stored_text,
                    cosine=cosine,
                    features=x,
                    score=score,
                    risk=self._risk(key, score),
                    principal=principal,
                    obstacle=self._obstacle(key, x, principal),
                )
            )
        best = min(found, key=lambda match: (bool(match.obstacle), match.risk), default=None)
        self._recent.append(best.risk if best is not None and not best.obstacle else float("inf"))
        if len(self._recent) >= 2 * RECENT:
            del self._recent[:RECENT]
        if best is not None:
            self._obstacles.append(best.obstacle)
        return best

    def _risk(self, key: bytes, score: float) -> float:
        labels = self._entries.get(key, EntryLabels())
        return min(1.0, score * (1.0 + labels.wrong) / (1.0 + labels.scores))

    def _obstacle(self, key: bytes, x: Sequence[float], principal: str) -> str:
        """Return why a match is not servable; empty: it is."""
        unmatched, _, pair = split_ids(x)
        if len(unmatched) >= MAX_IDS or not self._harmless.allow(unmatched, pair, principal):
            return "word"
        if not self._is_trusted(key):
            return "entry"
        return "principal" if principal in self._principals and self._principals[principal].alarmed else ""

    def _is_trusted(self, key: bytes) -> bool:
        """Return whether an entry's last label is not wrong, and right where an alarm requires one."""
        if self._verified is not None and key not in self._verified:
            return False
        return not self._entries.get(key, EntryLabels()).last_wrong

    def serves(self, match: Match) -> bool:
        return not match.obstacle and self.certificate.serves(match.risk)

    def audit_rate(self, match: Match, surprise: float = 1.0, base: float = AUDIT_RATE) -> float:
        """Return the share of matches like this one, which `serves`, that are sent upstream all the same, for a label.

        surprise: a factor for what the caller knows about the entry
        """
        doubt = max(1.0, self._drift.factor, self.certificate.alarm_value)
        return self._audits.rate(match.key, surprise * doubt, base)

    def is_audit(
        self, match: Match, draw: Callable[[], float], surprise: float = 1.0, base: float = AUDIT_RATE
    ) -> bool:
        """Return whether a match that `serves` is sent upstream all the same. Call it once for each."""
        return self._audits.is_due(self.audit_rate(match, surprise, base), draw)

    def count_served(self, match: Match) -> None:
        """Count an answer that was served."""
        self._audits.count_served(match.key)

    @property
    def bound(self) -> float | None:
        """The certified error of what is served; None: nothing is."""
        level = self.certificate.level
        return None if level < 0 else self.certificate.bound(level)

    def add(self, label: Label) -> None:
        """Learn from a label, or from an event that ends what labels were about."""
        if label.source in ("restart", "partial restart"):
            self._restart(gone=label.source == "restart")
            return
        self.sources[label.source] += 1
        obstacle = self._obstacle(label.key, label.features, label.principal)
        is_trusted = self._is_trusted(label.key)
        if is_trusted:  # a second wrong label of an entry is no news
            self._watch(label, servable=not obstacle)
        alarms = self.certificate.alarms
        counts = self._is_counted(label, obstacle)
        self._count_principal(label, counts=counts)
        if counts:
            for certificate in (self.certificate, *self._others.values()):
                certificate.add(label.risk, label.wrong)
        if is_trusted or self._verified is None or not label.wrong:
            unmatched, _, pair = split_ids(label.features)
            self._harmless.add(unmatched if pair is None else [*unmatched, pair], label.wrong, label.principal)
            self._score.add(label.features, label.wrong)
        self._count_entry(label)
        self._audits.add(label.key, label.source, certified=self.certificate.level >= 0)
        self._follow_recovery(alarmed=self.certificate.alarms > alarms)

    def _is_counted(self, label: Label, obstacle: str) -> bool:
        """Return whether the certificate counts a label: one of an unverified entry only while others are found right.

        Only earlier labels decide, so the test stays valid. Unverified entries are wrong no less often than others.
        """
        if not self._may_count(label):
            return False
        if obstacle != "entry" or not self._is_unverified(label.key):
            return obstacle in ("", "word")
        before = self._outdated.value
        self._outdated.add(label.risk, label.wrong, servable=True)
        return before < RETURNED

    def _is_unverified(self, key: bytes) -> bool:
        """Return whether an entry has no label since the last alarm, and its last one before was not wrong."""
        entry = self._entries.get(key, EntryLabels())
        return self._verified is not None and key not in self._verified and not entry.last_wrong

    def _may_count(self, label: Label) -> bool:
        """Return whether a label counts: of several principals, one has half of them at most.

        A person has no limit, nor has an audit that finds a wrong answer: it was drawn among answers that are served.
        """
        own, all_of_them = self._counts_of[label.principal], self._counted_labels
        few = own < PRINCIPAL_LABELS or own == all_of_them or 2 * own <= all_of_them
        return few or label.source == "feedback" or (label.source == "audit" and label.wrong)

    def _count_principal(self, label: Label, *, counts: bool) -> None:
        if label.source == "feedback":
            return
        self._counted.append(label.principal if counts else None)
        if counts:
            self._counts_of[label.principal] += 1
            self._counted_labels += 1
        if len(self._counted) > PRINCIPAL_WINDOW and (oldest := self._counted.popleft()) is not None:
            self._counts_of[oldest] -= 1
            self._counted_labels -= 1
            if not self._counts_of[oldest]:
                del self._counts_of[oldest]

    def _watch(self, label: Label, *, servable: bool) -> None:
        """Look for a drift, in the labels of the scope and in those of the principal."""
        watch = self._principals.pop(label.principal, None) or DriftWatch(self.certificate.error)
        self._principals[label.principal] = watch
        if len(self._principals) > MAX_PRINCIPALS:
            self._principals.popitem(last=False)
        watch.add(label.risk, label.wrong, servable=servable)
        if self._may_count(label):
            self._drift.add(label.risk, label.wrong, servable=servable)

    def _count_entry(self, label: Label) -> None:
        before = self._entries.pop(label.key, EntryLabels())
        self._entries[label.key] = EntryLabels(before.wrong + label.wrong, before.scores + label.score, label.wrong)
        if len(self._entries) > MAX_ENTRIES:
            dropped, _ = self._entries.popitem(last=False)
            if self._verified is not None:
                self._verified.discard(dropped)
        if self._verified is not None:
            (self._verified.discard if label.wrong else self._verified.add)(label.key)

    def _follow_recovery(self, *, alarmed: bool) -> None:
        """Begin a recovery after an alarm, and end it when a level is certified again."""
        self._since_alarm += 1
        self._was_certified |= self.certificate.level >= 0
        if self._drift.alarmed and self.certificate.level >= 0 and self.certificate.suspicious:
            self.certificate.end()
            alarmed = True
        if alarmed:
            self._verified, self._since_alarm = set(), 0
            self._outdated = DriftWatch(self.certificate.error, OUTDATED)
            self._principals.clear()
            self._drift = DriftWatch(self.certificate.error)
        elif self.certificate.level >= 0 and self._since_alarm >= RECOVERY_LABELS:
            self._verified = None

    def _restart(self, *, gone: bool) -> None:
        """Start the certificate anew: answers were purged or the upstream has changed. Words keep their labels.

        gone: whether no answer is left. Otherwise entries keep their labels, and a recovery goes on.
        """
        for certificate in (self.certificate, *self._others.values()):
            certificate.restart()
        if gone:
            self._entries.clear()
            self._verified = None
        self._audits = Audits()
        self._counted.clear()
        self._counts_of.clear()
        self._counted_labels = 0
        self._principals.clear()
        self._was_certified = False
        self._drift = DriftWatch(self.certificate.error)

    def feedback(self, key: bytes, x: tuple[float, ...], risk: float, time: float) -> Label:
        """Return the label of a match that a person has marked as wrong."""
        return Label(
            key=key, features=x, score=self._score.risk(x), risk=risk, wrong=True, source="feedback", time=time
        )

    def next_step(self) -> str:
        """Return what a match would need to be served, in one sentence."""
        level, recovering = self.certificate.level, self._verified is not None
        if level < 0:
            missing = min(map(self.certificate.missing_labels, range(len(LEVELS))))
            verified = ", of answers that a label has found right since the alarm" if recovering else ""
            return f"A match is served after {counted(missing, 'more right label')} at least{verified}."
        return (
            f"A match is served if its risk is at most {100 * LEVELS[level]:g} %, labels allow every word in which the "
            "two questions differ, and the stored answer was not wrong in its last label"
            f"{' and has been right in one since the alarm' if recovering else ''}."
        )

    @property
    def labels_weigh(self) -> bool:
        """Whether a certificate has ended since the last restart, or labels weigh against the first one."""
        return self.certificate.level < 0 and (self._was_certified or self.certificate.e_value(-1) < 1.0)

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
            "obstacles": dict(Counter(filter(None, self._obstacles))),
            "next_step": self.next_step(),
        }


@lru_cache(maxsize=20_000)
def parsed(text: str) -> QuestionWords:
    """Return the words of a text. Stored questions are looked at many times."""
    return read_words(text)
