"""Sums of what the semantic tier did, by scope: the tenant whose labels decide.

    requests    = served + shadow + audit + none + excluded + refused + failed      (event.MATCH_KINDS)
    labels      verdicts by source (shadow, audit, feedback) and by verdict (same, different, undecided)

An undecided verdict counts as wrong. `usd_saved` is what the served answers had cost, and `judge_usd` what was paid for
verdicts: their difference is what the tier has saved in dollars.

Sums only grow. They are added over restarts (history_file.py) and over proxies (merged.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.features.semantic.event import MATCH_KINDS, VerdictEvent
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.feature_sums import FeatureTotals, read_amount, read_count, read_names
from knapcache.proxy.events.labels import MAX_LABELS, OTHER, LabelLimiter, printable

SOURCES = ("shadow", "audit", "feedback")
VERDICTS = ("same", "different", "undecided")
FEEDBACK = "feedback"
"""Source of the labels that people give, and their rung."""
MAX_REASONS = 64
"""Exclusions and vetoes that are counted by name. Others are counted together."""


@dataclass(slots=True)
class ScopeTotals:
    """The requests and the labels of one scope."""

    kinds: dict[str, int] = field(default_factory=dict)
    """Requests by what the tier did."""
    labels: dict[str, int] = field(default_factory=dict)
    """Labels by source and verdict, as in `shadow same`."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Requests by the exclusion, the veto or the failure that kept them from a match."""
    seconds: float = 0.0
    """Time that the tier took before the requests went on."""
    usd_saved: float = 0.0
    """What the served answers had cost. Only answers of known price."""
    priced: int = 0
    """Served answers of known price."""
    judge_usd: float = 0.0

    @property
    def requests(self) -> int:
        """All requests that reached the tier."""
        return sum(self.kinds.values())

    @property
    def served(self) -> int:
        """Requests that were answered by similarity."""
        return self.kinds.get("served", 0)

    def labelled(self, source: str | None = None) -> int:
        """Return the number of labels, of one source or of all."""
        return sum(count for name, count in self.labels.items() if source in (None, name.split()[0]))

    def wrong(self, source: str | None = None) -> int:
        """Return how many of them say that the answer was wrong."""
        chosen = (source,) if source is not None else SOURCES
        return self.labelled(source) - sum(self.labels.get(f"{each} same", 0) for each in chosen)

    def count(self, event: Event) -> None:
        """Add a request. It must have been at the tier."""
        semantic = event.parts.get("semantic")
        assert semantic is not None
        kind = semantic.kind if semantic.kind in MATCH_KINDS else "failed"
        add_to(self.kinds, kind)
        self.seconds += semantic.seconds
        if semantic.reason and kind in ("none", "excluded", "failed"):
            reason = printable(semantic.reason)
            add_to(self.reasons, reason if reason in self.reasons or len(self.reasons) < MAX_REASONS else OTHER)
        if kind == "served" and event.usd is not None:
            self.priced += 1
            self.usd_saved += event.usd

    def count_verdict(self, verdict: VerdictEvent) -> None:
        """Add a label."""
        source = FEEDBACK if verdict.rung == FEEDBACK else "audit" if verdict.kind == "audit" else "shadow"
        add_to(self.labels, f"{source} {verdict.verdict if verdict.verdict in VERDICTS else 'undecided'}")
        self.judge_usd += verdict.judge_usd

    def add(self, other: ScopeTotals) -> None:
        """Add all requests and labels of other totals."""
        for mine, more in ((self.kinds, other.kinds), (self.labels, other.labels)):
            for name, number in more.items():
                add_to(mine, name, number)
        for name, number in other.reasons.items():
            add_to(self.reasons, name if name in self.reasons or len(self.reasons) < MAX_REASONS else OTHER, number)
        self.seconds += other.seconds
        self.usd_saved += other.usd_saved
        self.priced += other.priced
        self.judge_usd += other.judge_usd


def add_to(counts: dict[str, int], name: str, number: int = 1) -> None:
    counts[name] = counts.get(name, 0) + number


@dataclass(slots=True)
class SemanticTotals(FeatureTotals):
    """Sums over some requests and verdicts."""

    since: float = 0.0
    """Arrival of the first request, Unix time; 0: there was none."""
    scopes: dict[str, ScopeTotals] = field(default_factory=dict)

    def count(self, event: Event) -> None:
        """Add a request, if it was at the tier."""
        if (part := event.parts.get("semantic")) is not None:
            self.since = min(self.since or event.time, event.time)
            self._scope(part.scope).count(event)

    def count_note(self, note: VerdictEvent) -> None:
        """Add a label."""
        self.since = min(self.since or note.time, note.time)
        self._scope(note.scope).count_verdict(note)

    def _scope(self, name: str) -> ScopeTotals:
        found = self.scopes.get(name)
        if found is None:
            label = LabelLimiter(self.scopes).label(name) if name else ""
            found = self.scopes.setdefault(label, ScopeTotals())
        return found

    def add(self, other: SemanticTotals) -> None:
        """Add all requests and labels of other totals."""
        if not other:
            return
        self.since = min(self.since or other.since, other.since)
        for name, totals in other.scopes.items():
            self._scope(name).add(totals)

    def total(self) -> ScopeTotals:
        """Return the sums over all scopes."""
        found = ScopeTotals()
        for totals in self.scopes.values():
            found.add(totals)
        return found

    def __bool__(self) -> bool:
        """Whether there was a request or a verdict."""
        return bool(self.scopes)

    def to_json(self) -> dict[str, Any]:
        """Return the sums for the history file."""
        return {
            "since": self.since,
            "scopes": {
                name: {
                    "kinds": one.kinds,
                    "labels": one.labels,
                    "reasons": one.reasons,
                    "priced": one.priced,
                    "amounts": [one.seconds, one.usd_saved, one.judge_usd],
                }
                for name, one in self.scopes.items()
            },
        }

    @classmethod
    def from_json(cls, value: Any) -> SemanticTotals:
        """Return the sums of `to_json`. Raises InvalidInput for anything else."""
        try:
            return cls(
                since=read_amount(value["since"]), scopes=read_names(value["scopes"], MAX_LABELS + 2, read_scope)
            )
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidInput(f"sums of the semantic tier must have the form that knapcache writes: {error}") from None


def read_scope(value: Any) -> ScopeTotals:
    """Return the totals of a scope. Raises ValueError, TypeError or LookupError for others."""
    seconds, usd_saved, judge_usd = map(read_amount, value["amounts"])
    found = ScopeTotals(
        kinds=read_names(value["kinds"], len(MATCH_KINDS), read_count),
        labels=read_names(value["labels"], len(SOURCES) * len(VERDICTS), read_count),
        reasons=read_names(value["reasons"], MAX_REASONS + 1, read_count),
        seconds=seconds,
        usd_saved=usd_saved,
        priced=read_count(value["priced"]),
        judge_usd=judge_usd,
    )
    if not found.kinds.keys() <= set(MATCH_KINDS):
        raise ValueError(f"requests must be of {', '.join(MATCH_KINDS)}")
    if not found.labels.keys() <= {f"{source} {verdict}" for source in SOURCES for verdict in VERDICTS}:
        raise ValueError(f"labels must be of {', '.join(SOURCES)}, and {', '.join(VERDICTS)}")
    return found
