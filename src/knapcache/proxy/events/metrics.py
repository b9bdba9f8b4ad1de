"""Prometheus metrics: counters from events, gauges from the cache's statistics. Features add their own.

Events are counted in plain lists, one for each set of labels, which become families of prometheus_client when they are
rendered. Rejected: its own counters and histograms. `labels(…).inc()` and `observe()` take more than ten times as long
for an event.

    Invariant: at most MAX_LABELS labels for models, tenants and endpoints each, and MAX_SERIES sets of labels. All
    others are counted as "other".

A name gets a label only with a status below 400, so clients cannot fill the labels with names that no upstream knows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from knapcache.errors import StoreError
from knapcache.proxy.events.events import OUTCOMES, PAYMENT, Event, Note
from knapcache.proxy.events.labels import OTHER, LabelLimiter
from knapcache.proxy.events.loop_watchdog import Durations, LoopWatchdog
from knapcache.proxy.events.upstream_health import HEALTH_STATES
from knapcache.proxy.events.usage import UsageRow

MAX_SERIES = 10_000
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds: from a hit in memory to a slow upstream."""
CODES = {k: f"{k}xx" for k in range(1, 6)}
NO_RESPONSE = "none"
STORE_FAULTS = (
    "breakers_opened", "counts_lost", "damaged", "damaged_documents", "failed_reads", "failed_writes",
    "handover_failed", "ownership_lost", "refused", "subscriptions_lost", "unknown_leases",
)  # fmt: skip
"""Counters of stores and of the roles of processes. A store has some of them."""
DROPPED = {
    "events": "Requests missing from all other metrics: the event buffer was full.",
    "request_log": "Requests missing from the request log: the disk was too slow, or failed.",
    "spans": "Spans that were not exported: the collector was too slow, or failed.",
    "log_lines": "Lines missing from the log on stderr: it was not read fast enough.",
}

AMOUNTS = {
    "usd_spent": "US dollars paid to upstreams. Only calls of known price.",
    "usd_estimated": "US dollars that limits have counted for calls whose cost is not known.",
    "usd_saved": "US dollars not spent because the answer came from the cache. Only answers of known price.",
    "seconds_saved": "Model time, summed over concurrent calls, that was not needed: the answer came from the cache.",
    "tokens_saved": "Tokens that no upstream had to process because the answer came from the cache.",
}
"""Sums of a row (usage.py) that are metrics."""
IN_BACKGROUND = ""
"""In place of an outcome: calls in the background, which are no requests."""

Labels = tuple[str, str, str, str]


class Metrics(Collector):
    """Counts events on the event loop's thread. `render` runs on any thread; with many series it takes long.

    dropped   functions that return how much was dropped, by a name of DROPPED
    tasks     returns the number of tasks of the event loop
    watchdog  measures the event loop
    upstreams returns the states of the upstreams (upstream_health.py)
    features  returns the families of features
    """

    def __init__(
        self,
        cache_stats: Callable[[], Mapping[str, Any]],
        dropped: Mapping[str, Callable[[], int]] | None = None,
        tasks: Callable[[], int] | None = None,
        watchdog: LoopWatchdog | None = None,
        upstreams: Callable[[], Iterable[Mapping[str, Any]]] = tuple,
        features: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self._cache_stats, self._tasks, self._watchdog, self._upstream_states = cache_stats, tasks, watchdog, upstreams
        self._dropped, self._features = dict(dropped or {}), features
        self._models, self._tenants, self._endpoints = LabelLimiter(), LabelLimiter(), LabelLimiter()
        self._series: dict[Labels, UsageRow] = {}
        """By endpoint, model, tenant and outcome."""
        self._durations = {outcome: (Durations(BUCKETS), Durations(BUCKETS)) for outcome in (*OUTCOMES, OTHER)}
        """To the last byte and to the first byte, by outcome."""
        self._calls: dict[tuple[str, str], int] = {}
        self._fallbacks: dict[tuple[str, str], int] = {}
        """Requests by the upstream that failed them, and the one that was called last."""
        self._upstreams = LabelLimiter()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def consume(self, events: Sequence[Event]) -> None:
        series, durations, calls = self._series, self._durations, self._calls
        for event in events:
            (
                _, endpoint, model, tenant, outcome, status, seconds, ttfb, _, _, _, _, _, _, _, upstream, attempts, _,
                _, _, _, tried, _, _, _,
            ) = event  # fmt: skip
            row = series.get((endpoint, model, tenant, outcome))
            if row is None:  # new names, or names that are counted as "other"
                row = self._find_series(endpoint, model, tenant, outcome, admit=status < 400)
            row.count(event)
            to_last_byte, to_first_byte = durations[outcome if outcome in durations else OTHER]
            bucket = bisect_left(BUCKETS, seconds)
            to_last_byte.counts[bucket] += 1
            to_last_byte.total += seconds
            to_first_byte.counts[bucket if ttfb == seconds else bisect_left(BUCKETS, ttfb)] += 1
            to_first_byte.total += ttfb
            for status in attempts:
                call = self._upstreams.label(upstream), CODES.get(status // 100, NO_RESPONSE)
                calls[call] = calls.get(call, 0) + 1
            if tried:
                self._count_tried(event)

    def consume_notes(self, notes: Sequence[Note]) -> None:
        for name, note in notes:
            if name == PAYMENT:
                row = self._find_series(note.endpoint, note.model, note.tenant, IN_BACKGROUND, admit=True)
                row.count_payment(note)

    def _count_tried(self, event: Event) -> None:
        """Count the calls to upstreams that failed a request, and the request that another one answered."""
        for name, attempts, _, _ in event.tried:
            label = self._upstreams.label(name)
            for status in attempts:
                call = label, CODES.get(status // 100, NO_RESPONSE)
                self._calls[call] = self._calls.get(call, 0) + 1
            fallback = label, self._upstreams.label(event.upstream)
            self._fallbacks[fallback] = self._fallbacks.get(fallback, 0) + 1

    def _find_series(self, endpoint: str, model: str, tenant: str, outcome: str, *, admit: bool) -> UsageRow:
        labels = (
            self._endpoints.labels.get(endpoint) or self._endpoints.label(endpoint, admit=admit),
            self._models.labels.get(model) or self._models.label(model, admit=admit),
            self._tenants.labels.get(tenant) or self._tenants.label(tenant, admit=admit),
            outcome if outcome in self._durations or not outcome else OTHER,
        )
        return self._series.get(labels) or self._new_series(labels)

    def _new_series(self, labels: Labels) -> UsageRow:
        if len(self._series) >= MAX_SERIES:
            labels = (OTHER, OTHER, OTHER, labels[3])
        return self._series.setdefault(labels, UsageRow())

    def render(self) -> bytes:
        """Return Prometheus' text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Yield all families but those of the process."""
        info = GaugeMetricFamily("knapcache_build_info", "Always 1, with the version as a label.", labels=["version"])
        info.add_metric([version("knapcache")], 1)
        yield info
        yield from self._collect_requests()
        yield from self._collect_durations()
        yield from self._collect_cache()
        yield from self._features()
        if self._tasks is not None:
            yield GaugeMetricFamily("knapcache_tasks", "Tasks of the event loop.", value=self._tasks())
        if self._watchdog is not None:
            yield from self._collect_stalls(self._watchdog)
        for name, count in self._dropped.items():
            yield CounterMetricFamily(f"knapcache_{name}_dropped", DROPPED[name], value=count())

    def _collect_requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "knapcache_requests", "Finished requests.", labels=["endpoint", "model", "tenant", "outcome"]
        )
        sums: dict[tuple[str, str, str], UsageRow] = {}
        for labels, row in list(self._series.items()):
            if labels[3] != IN_BACKGROUND:
                requests.add_metric(labels, row.requests)
            sums.setdefault(labels[:3], UsageRow()).add(row)
        yield requests
        for name, text in AMOUNTS.items():
            family = CounterMetricFamily(f"knapcache_{name}", text, labels=["endpoint", "model", "tenant"])
            for where, row in sums.items():
                family.add_metric(where, getattr(row, name))
            yield family
        text = "Calls to an upstream, retries included, by status; none: no response."
        yield counters("knapcache_calls", text, ("upstream", "code"), self._calls)
        text = "Requests that an upstream failed and another one got, by the name of that one."
        yield counters("knapcache_fallbacks", text, ("upstream", "fallback"), self._fallbacks)
        yield from upstream_families(self._upstream_states())

    def _collect_durations(self) -> Iterator[Metric]:
        for k, (name, byte) in enumerate((("request", "last"), ("first_byte", "first"))):
            text = f"From the first byte of the request to the {byte} byte of the response."
            family = HistogramMetricFamily(f"knapcache_{name}_seconds", text, labels=["outcome"])
            for outcome, durations in self._durations.items():
                if any(durations[k].counts):
                    family.add_metric([outcome], *durations[k].samples())
            yield family

    def _collect_stalls(self, watchdog: LoopWatchdog) -> Iterator[Metric]:
        text = "How late the event loop ran a timer, measured 50 times a second."
        family = HistogramMetricFamily("knapcache_loop_stall_seconds", text, labels=["clock"])
        for clock, stalls in watchdog.stalls.items():
            family.add_metric([clock], *stalls.samples())
        yield family
        text = "Longest stall of the event loop since the start."
        yield GaugeMetricFamily("knapcache_loop_stall_max_seconds", text, watchdog.longest)

    def _collect_cache(self) -> Iterator[Metric]:
        try:
            stats = self._cache_stats()
        except StoreError:  # the other metrics are still served
            return
        for name, field, text in (
            ("knapcache_bytes", "bytes", "Bytes charged for stored answers."),
            ("knapcache_capacity_bytes", "size_limit", "The configured capacity: bytes of all files of the cache."),
            ("knapcache_entry_capacity_bytes", "capacity", "Bytes of the capacity that stored answers may take."),
            ("knapcache_disk_bytes", "disk_bytes", "Size of the cache's files on disk."),
            ("knapcache_entries", "entries", "Stored answers."),
            ("knapcache_ids", "ids", "Keys that the policy tracks, stored or not."),
        ):
            yield GaugeMetricFamily(name, text, value=stats.get(field) or 0)
        open_ = (stats.get("breaker") or {}).get("state", "closed") != "closed"
        yield GaugeMetricFamily("knapcache_breaker_open", "1 while a slow or failing store is not used.", open_)
        yield GaugeMetricFamily("knapcache_owner", "1 if this process owns the store.", stats.get("owner", True))
        store = stats.get("store") or {}
        text = "Nodes of the shared store's server that do not answer; 0 without a shared store."
        yield GaugeMetricFamily("knapcache_engine_nodes_away", text, store.get("breakers_open", 0))
        text = "Nodes of the shared store's server that answer and take no writes; 0 without a shared store."
        yield GaugeMetricFamily("knapcache_engine_nodes_read_only", text, store.get("read_only_nodes", 0))
        faults = {(fault,): store.get(fault) or stats.get(fault) or 0 for fault in STORE_FAULTS}
        yield counters("knapcache_store_faults", "Faults of the store, by kind.", ("fault",), faults)
        for name, field, text in (
            ("knapcache_oracle_calls", "oracle_calls", "Calls of the Oracle, the knapsack solver."),
            ("knapcache_oracle_seconds", "oracle_seconds", "Seconds spent in the Oracle."),
            ("knapcache_evictions", "evictions", "Evicted entries."),
        ):
            yield CounterMetricFamily(name, text, value=stats.get(field) or 0)


def counters(name: str, text: str, labels: Sequence[str], counts: Mapping[Any, int]) -> Metric:
    """Return a family of counters, by the values of its labels."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in list(counts.items()):  # a copy: events may be counted meanwhile
        family.add_metric(values, count)
    return family


def upstream_families(states: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "knapcache_upstream_up", "0 from a request that the upstream failed until it answers one.", labels=["upstream"]
    )
    health = GaugeMetricFamily(
        "knapcache_upstream_health",
        "1 for the state of the upstream: healthy, open (routes use another one) or half-open (probed).",
        labels=["upstream", "state"],
    )
    for state in states:
        up.add_metric([state["name"]], state["state"] == "ok")
        for name in HEALTH_STATES:
            health.add_metric([state["name"], name], state["health"] == name)
    yield up
    yield health
