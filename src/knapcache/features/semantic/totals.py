"""Sums of what the semantic tier did, by scope: the tenant whose labels decide.

    requests    = served + shadow + audit + none + excluded + refused + failed      (event.MATCH_KINDS)
    labels      verdicts by source (shadow, audit, feedback) and by verdict (same, different, undecided)

An undecided verdict counts as wrong. `usd_saved` is what the served answers had cost, and `judge_usd` what was paid for
verdicts: their difference is what the tier has saved in dollars.

Sums only grow. They are added over restarts (history_file.py) and over proxies (merged.py). `collect_semantic` makes
metrics of them, and of the live state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from knapcache.errors import InvalidInput
from knapcache.features.semantic.event import FAILURES, MATCH_KINDS, VerdictEvent
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
        return sum(self.kinds.values())

    def count(self, event: Event) -> None:
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
        source = FEEDBACK if verdict.rung == FEEDBACK else "audit" if verdict.kind == "audit" else "shadow"
        add_to(self.labels, f"{source} {verdict.verdict if verdict.verdict in VERDICTS else 'undecided'}")
        self.judge_usd += verdict.judge_usd

    def add(self, other: ScopeTotals) -> None:
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
        if (part := event.parts.get("semantic")) is not None:
            self.since = min(self.since or event.time, event.time)
            self._scope(part.scope).count(event)

    def count_note(self, note: VerdictEvent) -> None:
        self.since = min(self.since or note.time, note.time)
        self._scope(note.scope).count_verdict(note)

    def _scope(self, name: str) -> ScopeTotals:
        found = self.scopes.get(name)
        if found is None:
            label = LabelLimiter(self.scopes).label(name) if name else ""
            found = self.scopes.setdefault(label, ScopeTotals())
        return found

    def add(self, other: SemanticTotals) -> None:
        if not other:
            return
        self.since = min(self.since or other.since, other.since)
        for name, totals in other.scopes.items():
            self._scope(name).add(totals)

    def total(self) -> ScopeTotals:
        found = ScopeTotals()
        for totals in self.scopes.values():
            found.add(totals)
        return found

    def __bool__(self) -> bool:
        return bool(self.scopes)

    def to_json(self) -> dict[str, Any]:
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


ScopeReports = Sequence[Mapping[str, Any]]
"""The state of each scope, of `SemanticTier.report`."""


def collect_semantic(totals: SemanticTotals, reports: ScopeReports) -> Iterator[Metric]:
    """Yield all families, in an order that does not depend on the traffic."""
    scopes = list(totals.scopes.items())

    def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"knapcache_semantic_{name}", text, labels=["scope", *labels])

    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"knapcache_semantic_{name}", text, labels=["scope"])

    requests = counter("requests", "Requests that reached the semantic tier, by what it did with them.", "result")
    failures = counter("failures", "Requests that the semantic tier could not look up, by reason.", "reason")
    text = "Matches that were judged, by source (shadow, audit, feedback) and verdict. All but `same` count as wrong."
    labels = counter("labels", text, "source", "verdict")
    for name, one in scopes:
        for reason in FAILURES:
            failures.add_metric([name, reason], one.reasons.get(reason, 0))
        for kind in MATCH_KINDS:
            requests.add_metric([name, kind], one.kinds.get(kind, 0))
        for source in SOURCES:
            for verdict in VERDICTS:
                labels.add_metric([name, source, verdict], one.labels.get(f"{source} {verdict}", 0))
    yield from (requests, failures, labels)
    for amount, text in (
        ("seconds", "Time that the tier took before its requests went on."),
        ("usd_saved", "US dollars that answers served by similarity had cost. Only answers of known price."),
        ("judge_usd", "US dollars paid to the model that judges matches."),
    ):
        family = counter(amount, text)
        for name, one in scopes:
            family.add_metric([name], getattr(one, amount))
        yield family
    serving = gauge("serving", "1 while a level is certified and the mode is on, so that the tier serves.")
    bound = gauge("bound", "Certified bound on the share of wrong answers; 1 while nothing is certified.")
    alarms = counter("alarms", "How often wrong labels have ended the certificate of a level that served.")
    for report in reports[:MAX_LABELS]:
        where, certified = [str(report["scope"])], report.get("bound")
        serving.add_metric(where, certified is not None and report["mode"] == "on")
        bound.add_metric(where, 1.0 if certified is None else certified)
        alarms.add_metric(where, report.get("alarms", 0))
    yield from (serving, bound, alarms)
