"""Sums of swap by frame, since the process became the owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from knapcache.features.swap.event import SWAP_KINDS, LabelNote, SwapEvent
from knapcache.features.swap.frames import MAX_FRAMES
from knapcache.features.swap.tier import SwapTier
from knapcache.proxy.events.events import Event


@dataclass
class FrameTotals:
    """Sums of one frame."""

    requests: int = 0
    swapped: int = 0
    usd_saved: float = 0.0
    usd_labels: float = 0.0


class SwapTotals:
    """Counts the events of all processes."""

    def __init__(self) -> None:
        self.frames: dict[str, FrameTotals] = {}
        self.kinds: Counter[str] = Counter()
        self.excluded: Counter[str] = Counter()
        self.usd_saved = self.usd_labels = 0.0

    def consume(self, events: Sequence[Event]) -> None:
        """Count requests."""
        for event in events:
            part = event.parts.get("swap")
            if not isinstance(part, SwapEvent):
                continue
            self.kinds[part.kind] += 1
            if part.kind == "excluded":
                self.excluded[part.reason] += 1
            self.usd_saved += part.usd_saved
            if (frame := self._frame(part.frame)) is not None:
                frame.requests += 1
                frame.swapped += part.kind == "swap"
                frame.usd_saved += part.usd_saved

    def consume_notes(self, notes: Sequence[LabelNote]) -> None:
        """Count labels."""
        for note in notes:
            self.usd_labels += note.usd
            if (frame := self._frame(note.frame)) is not None:
                frame.usd_labels += note.usd

    def _frame(self, name: str) -> FrameTotals | None:
        if name and (name in self.frames or len(self.frames) < MAX_FRAMES):
            return self.frames.setdefault(name, FrameTotals())
        return None

    def metrics(self, tier: SwapTier) -> Iterator[Metric]:
        """Yield the metrics of swap."""
        requests = CounterMetricFamily(
            "knapcache_swap_requests", "Requests of routes with swap, by what was done with them.", labels=["kind"]
        )
        for kind in SWAP_KINDS:
            requests.add_metric([kind], self.kinds[kind])
        yield requests
        saved = "US dollars that the asked models would have cost more, by the mean of the frames' labels."
        yield CounterMetricFamily("knapcache_swap_saved_usd", saved, value=max(0.0, self.usd_saved))
        yield CounterMetricFamily("knapcache_swap_label_usd", "US dollars paid for labels.", value=self.usd_labels)
        frames = GaugeMetricFamily("knapcache_swap_frames", "Frames by state.", labels=["state"])
        states = Counter(frame.decision.certificate.state for _, frame in tier.frames)
        for state in ("learning", "certified", "hopeless"):
            frames.add_metric([state], states[state])
        yield frames
