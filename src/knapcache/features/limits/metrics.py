"""Prometheus metrics of limits: requests that they refused, from events, and their use, from the counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from knapcache.proxy.events.labels import MAX_LABELS

REASON = "limit"
"""First word of the `reason` of an event whose request a limit has refused."""


class LimitRow(Protocol):
    """One limit and its use (limits/limits.py)."""

    @property
    def scope(self) -> str:
        """The tenant; * for all callers together."""

    @property
    def limit(self) -> str:
        """Name of the limit."""

    @property
    def ratio(self) -> float:
        """The share that is used."""


LimitRows = Sequence[LimitRow]


def limit_reason(limit: str, scope: str) -> str:
    """Return the reason of an event whose request a limit has refused."""
    return f"{REASON} {limit} of {scope}"


def count_limited(counts: dict[tuple[str, str], int], reason: str) -> None:
    """Count a refused request by scope and limit, if a limit has refused it."""
    words = reason.split(" ")
    if len(words) == 4 and (words[0], words[2]) == (REASON, "of"):
        key = words[3], words[1]
        if key in counts or len(counts) < MAX_LABELS:
            counts[key] = counts.get(key, 0) + 1


def collect_limits(counts: Mapping[tuple[str, str], int], rows: LimitRows) -> Iterator[Metric]:
    """Yield both families."""
    limited = CounterMetricFamily(
        "knapcache_limited",
        "Requests that a limit has refused, by the tenant with the limit; *: all callers together.",
        labels=["tenant", "limit"],
    )
    for key, count in list(counts.items()):
        limited.add_metric(key, count)
    yield limited
    used = GaugeMetricFamily(
        "knapcache_limit_used_ratio",
        "Used share of a limit, from 0 to 1 or a little more; tenant *: all callers together.",
        labels=["tenant", "limit"],
    )
    for row in rows[: 5 * MAX_LABELS]:
        used.add_metric([row.scope, row.limit], row.ratio)
    yield used
