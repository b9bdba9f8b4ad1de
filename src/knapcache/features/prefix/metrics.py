"""Prometheus metrics of providers' prompt caches, from their sums (prefix_totals.py)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from knapcache.features.prefix.totals import PrefixTotals

KINDS = ("read", "short_written", "long_written", "plain")


def collect_prefix(totals: PrefixTotals) -> Iterator[Metric]:
    """Yield all families, in an order that does not depend on the traffic."""
    upstreams, tariffs = list(totals.upstreams.items()), list(totals.tariffs.items())
    tokens = CounterMetricFamily(
        "knapcache_prefix_tokens",
        "Input tokens as upstreams reported them: read from their prompt cache, written to it, or plain.",
        labels=["upstream", "kind"],
    )
    requests = CounterMetricFamily(
        "knapcache_prefix_requests",
        "Requests that went upstream, by whether the upstream reported their input tokens.",
        labels=["upstream", "usage"],
    )
    for name, found in upstreams:
        for kind in KINDS:
            tokens.add_metric([name, kind], getattr(found, kind))
        requests.add_metric([name, "reported"], found.requests - found.unknown)
        requests.add_metric([name, "unknown"], found.unknown)
    yield tokens
    yield requests
    for field, metric, text in (
        (
            "requests",
            "knapcache_prefix_decisions",
            "Requests for which the prefix tier computed what its rules would pay.",
        ),
        ("marked", "knapcache_prefix_marked", "Requests on which the prefix tier placed marks, or changed them."),
        ("own_marks", "knapcache_prefix_own_marks", "Requests that came with marks."),
        ("below", "knapcache_prefix_below_minimum", "Requests that are too short for the provider's prompt cache."),
        ("predicted", "knapcache_prefix_predicted_tokens", "Tokens of marked requests that were expected to be read."),
        ("reported", "knapcache_prefix_reported_tokens", "Tokens of the same requests that were read, as reported."),
    ):
        family = CounterMetricFamily(metric, text, labels=["tariff"])
        for name, tariff in tariffs:
            family.add_metric([name], getattr(tariff, field))
        yield family
    bills = [(name, group, found) for name, tariff in tariffs for group, found in list(tariff.groups.items())]
    labels = ["tariff", "requests", "rule"]
    in_tokens = CounterMetricFamily(
        "knapcache_prefix_bill_tokens",
        "What each rule would have paid for the input, in tokens at the plain price; rule paid: what was paid.",
        labels=labels,
    )
    in_usd = CounterMetricFamily(
        "knapcache_prefix_bill_usd",
        "The same in US dollars. Only requests of known price.",
        labels=labels,
    )
    for name, group, paid in bills:
        for family, amounts in ((in_tokens, paid.tokens), (in_usd, paid.usd)):
            for rule, amount in list(amounts.items()):
                family.add_metric([name, group, rule], amount)
    yield in_tokens
    yield in_usd
