"""Prometheus: what happened, counted from events; and what there is, asked of the cache when somebody scrapes.

Events are counted into plain rows, one for each set of labels, and become families of prometheus_client when they are
rendered. Its own counters and histograms were rejected for the counting: `labels(…).inc()` and `observe()` for what an
event has to say take more than ten times as long as the rows do.

Names of models, tenants and endpoints come from outside:

    Invariant: at most MOST_LABELS names of each are labels, and MOST_SETS sets of them; the rest is counted as "other".

A name becomes a label only with an answer below 400, so that nobody fills the room with names that no provider knows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from knapcache.errors import InvalidInput, StoreError
from knapcache.serve.observe.events import Event

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

MOST_LABELS = 200
MOST_SETS = 10_000
LONGEST_LABEL = 100
OTHER = "other"
HOWS = ("hit", "miss", "coalesced", "stale", "bypass", "pass", "failed", "refused")
SAVED = frozenset({"hit", "coalesced", "stale"})
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds: from a hit in memory to the slowest answer that anybody waits for."""
CODES = {k: f"{k}xx" for k in range(1, 6)}
NO_RESPONSE = "none"
LOST = {
    "journal": "Requests that no listener was told of.",
    "request_log": "Requests missing from the request log: it could not be written as fast, or at all.",
    "spans": "Spans that could not be exported.",
    "log": "Lines missing from the log on stderr: it was not read as fast.",
}

Labels = tuple[str, str, str, str]


class Names:
    """The labels that names from outside have become."""

    def __init__(self, most: int = MOST_LABELS) -> None:
        self._most = most
        self.labels: dict[str, str] = {}

    def label(self, name: str, status: int = 200) -> str:
        """The label of a name; a new one gets its own if there is room, and an answer."""
        found = self.labels.get(name)
        if found is not None:
            return found
        if status >= 400 or len(self.labels) >= self._most:
            return OTHER
        return self.labels.setdefault(name, printable(name))


def printable(name: str) -> str:
    """A name as a label: short, and of characters that every reader of the format can take."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name[:LONGEST_LABEL])


class Times:
    """A histogram in the making: how many fell into each bucket, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def samples(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulated, as the format has it."""
        bounds = [*map(str, BUCKETS), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True)), self.total


class Metrics(Collector):
    """Counts events, on the event loop's thread; `render` is what a scraper gets, on any thread.

    With all its sets of labels in use, rendering takes long enough to be worth a thread.
    """

    def __init__(
        self,
        cache_stats: Callable[[], Mapping[str, Any]],
        lost: Mapping[str, Callable[[], int]] | None = None,
        tasks: Callable[[], int] | None = None,
    ) -> None:
        """`lost`: who can lose things (names as in LOST), and how to ask how many. `tasks`: of the event loop."""
        if unknown := sorted(set(lost or {}) - set(LOST)):  # now, not when somebody scrapes
            raise InvalidInput(f"{unknown[0]!r} cannot lose anything: allowed are {', '.join(LOST)}")
        self._cache_stats, self._tasks = cache_stats, tasks
        self._lost = dict(lost or {})
        self._models, self._tenants, self._endpoints = Names(), Names(), Names()
        self._rows: dict[Labels, list[float]] = {}  # requests, dollars, seconds that the provider takes
        self._times = {outcome: (Times(), Times()) for outcome in (*HOWS, OTHER)}
        self._calls: dict[tuple[str, str], int] = {}
        self._upstreams = Names()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def consume(self, events: Sequence[Event]) -> None:
        """Count a batch."""
        models, tenants, endpoints = self._models.labels, self._tenants.labels, self._endpoints.labels
        rows, times, calls = self._rows, self._times, self._calls
        for event in events:
            status, seconds, ttfb = event.status, event.seconds, event.ttfb
            outcome = event.outcome if event.outcome in times else OTHER
            endpoint = endpoints.get(event.endpoint) or self._endpoints.label(event.endpoint, status)
            model = models.get(event.model) or self._models.label(event.model, status)
            tenant = tenants.get(event.tenant) or self._tenants.label(event.tenant, status)
            row = rows.get((endpoint, model, tenant, outcome))
            if row is None:
                row = self._row((endpoint, model, tenant, outcome))
            row[0] += 1
            if event.usd is not None:
                row[1] += event.usd
            row[2] += event.upstream_seconds
            whole, begun = times[outcome]
            whole.counts[bisect_left(BUCKETS, seconds)] += 1
            whole.total += seconds
            begun.counts[bisect_left(BUCKETS, ttfb)] += 1
            begun.total += ttfb
            for attempt in event.attempts:
                call = self._upstreams.label(event.upstream), CODES.get(attempt // 100, NO_RESPONSE)
                calls[call] = calls.get(call, 0) + 1

    def _row(self, labels: Labels) -> list[float]:
        if len(self._rows) >= MOST_SETS:
            labels = (OTHER, OTHER, OTHER, labels[3])
        return self._rows.setdefault(labels, [0, 0.0, 0.0])

    def render(self) -> bytes:
        """The text format of Prometheus, for `CONTENT_TYPE_LATEST`."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """All families but the process's."""
        info = GaugeMetricFamily("knapcache_build_info", "Always 1; which version this is.", labels=["version"])
        info.add_metric([version("knapcache")], 1)
        yield info
        yield from self._requests()
        yield from self._durations()
        yield from self._cache()
        if self._tasks is not None:
            yield GaugeMetricFamily("knapcache_tasks", "Tasks of the event loop.", value=self._tasks())
        for name, ask in self._lost.items():
            yield CounterMetricFamily(f"knapcache_{name}_lost", LOST[name], value=ask())

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "knapcache_requests", "Requests that are over.", labels=["endpoint", "model", "tenant", "outcome"]
        )
        money: dict[tuple[str, str, str], list[float]] = {}
        for labels, (count, usd, seconds) in list(self._rows.items()):
            requests.add_metric(labels, count)
            sums = money.setdefault(labels[:3], [0.0, 0.0, 0.0])
            sums[labels[3] in SAVED] += usd
            sums[2] += seconds if labels[3] in SAVED else 0.0
        yield requests
        for k, name, text in (
            (0, "knapcache_usd_spent", "Dollars paid to providers, where the price is known."),
            (1, "knapcache_usd_saved", "Dollars that answers had cost which were given without paying again."),
            (2, "knapcache_seconds_saved", "Seconds that providers had taken for answers given without asking again."),
        ):
            family = CounterMetricFamily(name, text, labels=["endpoint", "model", "tenant"])
            for where, sums in money.items():
                family.add_metric(where, sums[k])
            yield family
        calls = CounterMetricFamily(
            "knapcache_calls",
            "Calls to an upstream, retries included, by status; none: no response.",
            labels=["upstream", "code"],
        )
        for call, count in list(self._calls.items()):
            calls.add_metric(call, count)
        yield calls

    def _durations(self) -> Iterator[Metric]:
        for k, name, text in (
            (0, "knapcache_request_seconds", "From the first byte in to the last byte out."),
            (1, "knapcache_first_byte_seconds", "From the first byte in to the first byte out."),
        ):
            family = HistogramMetricFamily(name, text, labels=["outcome"])
            for outcome, pair in self._times.items():
                if any(pair[k].counts):
                    family.add_metric([outcome], *pair[k].samples())
            yield family

    def _cache(self) -> Iterator[Metric]:
        try:
            stats = self._cache_stats()
        except StoreError:  # then there is nothing to say of it, and the rest goes on
            return
        for name, field, text in (
            ("knapcache_bytes", "bytes", "Room that kept answers take."),
            ("knapcache_capacity_bytes", "capacity", "Room for answers."),
            ("knapcache_disk_bytes", "disk_bytes", "What the cache's files take on the disk."),
            ("knapcache_entries", "entries", "Answers kept."),
            ("knapcache_ids", "ids", "Keys that the policy remembers, kept or not."),
        ):
            yield GaugeMetricFamily(name, text, value=stats.get(field) or 0)
        broken = (stats.get("breaker") or {}).get("state", "closed") != "closed"
        yield GaugeMetricFamily("knapcache_breaker_open", "1 while the store is left alone: slow, or failing.", broken)
        yield GaugeMetricFamily(
            "knapcache_owner", "1 where this process decides what is kept.", stats.get("owner", True)
        )
        for name, field, text in (
            ("knapcache_oracle_calls", "oracle_calls", "How often the Oracle was asked."),
            ("knapcache_oracle_seconds", "oracle_seconds", "Time the Oracle took."),
            ("knapcache_evictions", "evictions", "Answers given up for others."),
        ):
            yield CounterMetricFamily(name, text, value=stats.get(field) or 0)
