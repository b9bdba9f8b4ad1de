"""Sums of swap.

    SwapTotals    requests by what was done with them, labels, dollars. They are added over restarts (history_file.py)
                  and over proxies (merged.py)
    FrameSums     the same by frame, since the process became the owner

What swap has saved is an estimate (`SwapEvent.usd_saved`). It is negative where the cheaper model costs more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from knapcache.errors import InvalidInput
from knapcache.features.swap.event import SWAP_KINDS, LabelNote, SwapEvent
from knapcache.features.swap.frames import MAX_FRAMES
from knapcache.features.swap.tier import SwapTier
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.feature_sums import (
    FeatureTotals,
    add_counts,
    add_numbers,
    read_amount,
    read_count,
    read_names,
)
from knapcache.proxy.events.labels import OTHER, printable

MAX_REASONS = 32
"""Exclusions that are counted by name. Others are counted together."""


@dataclass(slots=True)
class SwapTotals(FeatureTotals):
    """Sums over some requests and labels."""

    since: float = 0.0
    """Arrival of the first request, Unix time; 0: there was none."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Requests by what was done with them."""
    excluded: dict[str, int] = field(default_factory=dict)
    """Requests that are never swapped, by reason."""
    labels: int = 0
    usd_saved: float = 0.0
    usd_labels: float = 0.0

    def count(self, event: Event) -> None:
        part = event.parts.get("swap")
        if not isinstance(part, SwapEvent) or part.kind not in SWAP_KINDS:
            return
        self.since = min(self.since or event.time, event.time)
        add_counts(self.kinds, {part.kind: 1})
        if part.kind == "excluded":
            self._add_excluded({printable(part.reason): 1})
        self.usd_saved += part.usd_saved

    def count_note(self, note: LabelNote) -> None:
        self.labels += 1
        self.usd_labels += note.usd

    def _add_excluded(self, more: dict[str, int]) -> None:
        for reason, number in more.items():
            known = reason in self.excluded or len(self.excluded) < MAX_REASONS
            add_counts(self.excluded, {reason if known else OTHER: number})

    def add(self, other: SwapTotals) -> None:
        if other.since:
            self.since = min(self.since or other.since, other.since)
        add_counts(self.kinds, other.kinds)
        self._add_excluded(other.excluded)
        add_numbers(self, other, ("labels", "usd_saved", "usd_labels"))

    def __bool__(self) -> bool:
        return bool(self.kinds or self.labels)

    def to_json(self) -> dict[str, Any]:
        return {
            "since": self.since,
            "kinds": self.kinds,
            "excluded": self.excluded,
            "labels": self.labels,
            "usd_saved": self.usd_saved,
            "usd_labels": self.usd_labels,
        }

    @classmethod
    def from_json(cls, value: Any) -> SwapTotals:
        """Return the sums of `to_json`. Raises InvalidInput for anything else."""
        try:
            found = cls(
                since=read_amount(value["since"]),
                kinds=read_names(value["kinds"], len(SWAP_KINDS), read_count),
                excluded=read_names(value["excluded"], MAX_REASONS + 1, read_count),
                labels=read_count(value["labels"]),
                usd_saved=read_difference(value["usd_saved"]),
                usd_labels=read_amount(value["usd_labels"]),
            )
            if not found.kinds.keys() <= set(SWAP_KINDS):
                raise ValueError(f"requests must be of {', '.join(SWAP_KINDS)}")
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidInput(f"sums of swap must have the form that knapcache writes: {error}") from None
        return found


def read_difference(value: Any) -> float:
    """Return a number that may be below 0. Raises ValueError for anything else."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"a number is needed, not {str(value)[:40]!r}")
    return float(value)


@dataclass(slots=True)
class FrameTotals:
    """Sums of one frame."""

    requests: int = 0
    swapped: int = 0
    usd_saved: float = 0.0
    usd_labels: float = 0.0


class FrameSums:
    """Sums of each frame, of all processes. Beyond MAX_FRAMES, one more replaces the one with the fewest requests."""

    def __init__(self) -> None:
        self._frames: dict[str, FrameTotals] = {}

    def get(self, name: str) -> FrameTotals:
        """Return the sums of a frame, by the first 16 characters of its digest."""
        return self._frames.get(name) or FrameTotals()

    def count(self, part: SwapEvent) -> None:
        if part.frame:
            frame = self._frame(part.frame)
            frame.requests += 1
            frame.swapped += part.kind == "swap"
            frame.usd_saved += part.usd_saved

    def count_note(self, note: LabelNote) -> None:
        self._frame(note.frame).usd_labels += note.usd

    def _frame(self, name: str) -> FrameTotals:
        if name not in self._frames and len(self._frames) >= MAX_FRAMES:
            del self._frames[min(self._frames, key=lambda each: self._frames[each].requests)]
        return self._frames.setdefault(name, FrameTotals())


class SwapCounts:
    """Counts the events of all processes since this one became the owner."""

    def __init__(self) -> None:
        self.totals, self.frames = SwapTotals(), FrameSums()

    def consume(self, events: Sequence[Event]) -> None:
        """Count requests."""
        for event in events:
            if isinstance(part := event.parts.get("swap"), SwapEvent):
                self.totals.count(event)
                self.frames.count(part)

    def consume_notes(self, notes: Sequence[LabelNote]) -> None:
        """Count labels."""
        for note in notes:
            self.totals.count_note(note)
            self.frames.count_note(note)


def collect_swap(totals: SwapTotals, tier: SwapTier) -> Iterator[Metric]:
    """Yield all families, in an order that does not depend on the traffic."""
    requests = CounterMetricFamily(
        "knapcache_swap_requests", "Requests of routes with swap, by what was done with them.", labels=["kind"]
    )
    for kind in SWAP_KINDS:
        requests.add_metric([kind], totals.kinds.get(kind, 0))
    yield requests
    saved = "US dollars that the asked models would have cost more, by the mean of the frames' labels."
    yield CounterMetricFamily("knapcache_swap_saved_usd", saved, value=max(0.0, totals.usd_saved))
    yield CounterMetricFamily("knapcache_swap_label_usd", "US dollars paid for labels.", value=totals.usd_labels)
    frames = GaugeMetricFamily("knapcache_swap_frames", "Frames by state.", labels=["state"])
    states = Counter(frame.decision.certificate.state for _, frame in tier.frames)
    for state in ("learning", "certified", "hopeless"):
        frames.add_metric([state], states[state])
    yield frames
