"""Sums of what providers' prompt caches did: tokens by upstream, and the bills of the prefix tier's rules by tariff.

    tokens of an upstream     as it reported them, whether the tier decides for it or not
    bills of a tariff         what each rule would have paid for the same input, in plain tokens and in dollars

Bills are kept apart by what the tier did with a request, because they answer different questions:

    observed   the tier only observed (`observe`) a request without marks: what `on` would have saved
    placed    the tier placed the marks, or chose to place none: what it has saved
    own       the request came with marks, which were left as they were

Only requests with a reported usage have bills, and only those of known price have dollars; both are counted. Nothing is
estimated. A predicted read is compared with the reported one only if the request was sent with marks.

Sums only grow. They are added over restarts (history_file.py) and over proxies (merged.py). `collect_prefix` makes
metrics of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from prometheus_client.core import CounterMetricFamily, Metric

from knapcache.errors import InvalidInput
from knapcache.features.prefix.event import PrefixEvent
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.feature_sums import FeatureTotals, read_amount, read_count, read_names
from knapcache.proxy.events.labels import MAX_LABELS, LabelLimiter

Group = Literal["observed", "placed", "own"]
GROUPS: tuple[Group, ...] = ("observed", "placed", "own")
MAX_RULES = 32
"""Rules of a tariff, and tariffs."""
MAX_NAME = 100


@dataclass(slots=True)
class UpstreamTokens:
    """Input tokens of the requests to one upstream, as it reported them."""

    requests: int = 0
    unknown: int = 0
    """Requests without a reported usage. Their tokens are not counted."""
    input: int = 0
    read: int = 0
    short_written: int = 0
    long_written: int = 0

    @property
    def plain(self) -> int:
        """Tokens that were neither read nor written."""
        return self.input - self.read - self.short_written - self.long_written

    def check(self) -> None:
        """Raise InvalidInput unless the parts fit into their totals."""
        if self.plain < 0 or self.unknown > self.requests:
            raise InvalidInput(f"tokens must not exceed their totals, as in {self}")


@dataclass(slots=True)
class RuleBills:
    """The input bill of some requests, as paid and by each rule."""

    requests: int = 0
    priced: int = 0
    """Those of known price: the dollars are of them."""
    tokens: dict[str, float] = field(default_factory=dict)
    """Plain tokens by rule, and under `paid`."""
    usd: dict[str, float] = field(default_factory=dict)

    def count(self, bills: Mapping[str, float], usd_per_token: float | None) -> None:
        self.requests += 1
        self.priced += usd_per_token is not None
        for rule, tokens in bills.items():
            if rule in self.tokens or len(self.tokens) < MAX_RULES:
                self.tokens[rule] = self.tokens.get(rule, 0.0) + tokens
                if usd_per_token is not None:
                    self.usd[rule] = self.usd.get(rule, 0.0) + tokens * usd_per_token

    def add(self, other: RuleBills) -> None:
        self.requests += other.requests
        self.priced += other.priced
        for mine, more in ((self.tokens, other.tokens), (self.usd, other.usd)):
            for rule, amount in more.items():
                if rule in mine or len(mine) < MAX_RULES:
                    mine[rule] = mine.get(rule, 0.0) + amount


@dataclass(slots=True)
class TariffTotals:
    """The requests for which the tier knew a tariff."""

    requests: int = 0
    marked: int = 0
    """The tier placed marks, or changed them."""
    own_marks: int = 0
    """The request came with marks."""
    below: int = 0
    """The request was shorter than the least that the model's provider caches."""
    compared: int = 0
    """Requests with marks and a reported usage. The next two are sums over them."""
    predicted: int = 0
    """Tokens that the tier expected to be read."""
    reported: int = 0
    """Tokens that were read, by the provider's report."""
    latest: float = 0.0
    """Arrival of the newest request, Unix time. The next two are its own."""
    rule: str = ""
    """The rule that led."""
    mode: str = ""
    groups: dict[str, RuleBills] = field(default_factory=dict)
    """Bills by what the tier did."""

    def count(self, time: float, prefix: PrefixEvent) -> None:
        self.requests += 1
        self.marked += prefix.marked
        self.own_marks += prefix.own_marks
        self.below += prefix.below
        if time >= self.latest:
            self.latest, self.rule, self.mode = time, prefix.rule[:MAX_NAME], prefix.mode[:MAX_NAME]
        if not prefix.reported:
            return
        if prefix.marked or prefix.own_marks:
            self.compared += 1
            self.predicted += prefix.predicted
            self.reported += prefix.read
        if prefix.bills:
            group = self.groups.setdefault(group_of(prefix), RuleBills())
            group.count(prefix.bills, prefix.usd_per_token)

    def add(self, other: TariffTotals) -> None:
        if other.latest >= self.latest:
            self.latest, self.rule, self.mode = other.latest, other.rule, other.mode
        for name in TARIFF_NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, group in other.groups.items():
            self.groups.setdefault(name, RuleBills()).add(group)


@dataclass(slots=True)
class PrefixTotals(FeatureTotals):
    """Sums over some requests that went upstream."""

    since: float = 0.0
    """Arrival of the first request, Unix time; 0: there was none."""
    upstreams: dict[str, UpstreamTokens] = field(default_factory=dict)
    tariffs: dict[str, TariffTotals] = field(default_factory=dict)

    def count(self, event: Event) -> None:
        prefix = event.parts.get("prefix")
        if prefix is None:
            return
        self.since = min(self.since or event.time, event.time)
        tokens = self._upstream(event.upstream)
        tokens.requests += 1
        if prefix.reported:
            tokens.input += prefix.input
            tokens.read += prefix.read
            tokens.short_written += prefix.short_written
            tokens.long_written += prefix.long_written
        else:
            tokens.unknown += 1
        if prefix.tariff and (prefix.tariff in self.tariffs or len(self.tariffs) < MAX_RULES):
            self.tariffs.setdefault(prefix.tariff[:MAX_NAME], TariffTotals()).count(event.time, prefix)

    def _upstream(self, name: str) -> UpstreamTokens:
        found = self.upstreams.get(name)
        if found is None:
            found = self.upstreams.setdefault(LabelLimiter(self.upstreams).label(name), UpstreamTokens())
        return found

    def add(self, other: PrefixTotals) -> None:
        if not other:
            return
        self.since = min(self.since or other.since, other.since)
        for name, tokens in other.upstreams.items():
            mine = self._upstream(name)
            for number in UPSTREAM_NUMBERS:
                setattr(mine, number, getattr(mine, number) + getattr(tokens, number))
        for name, tariff in other.tariffs.items():
            if name in self.tariffs or len(self.tariffs) < MAX_RULES:
                self.tariffs.setdefault(name, TariffTotals()).add(tariff)

    def __bool__(self) -> bool:
        return bool(self.upstreams)

    def to_json(self) -> dict[str, Any]:
        return {
            "since": self.since,
            "upstreams": {name: [getattr(one, n) for n in UPSTREAM_NUMBERS] for name, one in self.upstreams.items()},
            "tariffs": {
                name: {
                    "numbers": [getattr(one, n) for n in TARIFF_NUMBERS],
                    "newest": [one.latest, one.rule, one.mode],
                    "groups": {
                        group: [bills.requests, bills.priced, bills.tokens, bills.usd]
                        for group, bills in one.groups.items()
                    },
                }
                for name, one in self.tariffs.items()
            },
        }

    @classmethod
    def from_json(cls, value: Any) -> PrefixTotals:
        """Return the sums of `to_json`. Raises InvalidInput for anything else."""
        try:
            found = cls(
                since=read_amount(value["since"]),
                upstreams=read_names(value["upstreams"], MAX_LABELS + 1, read_upstream),
                tariffs=read_names(value["tariffs"], MAX_RULES, read_tariff),
            )
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidInput(f"sums of prompt caches must have the form that knapcache writes: {error}") from None
        for tokens in found.upstreams.values():
            tokens.check()
        return found


UPSTREAM_NUMBERS = tuple(one.name for one in fields(UpstreamTokens))
TARIFF_NUMBERS = ("requests", "marked", "own_marks", "below", "compared", "predicted", "reported")


def group_of(prefix: PrefixEvent) -> Group:
    """Return what the tier did with a request: one of GROUPS."""
    if prefix.own_marks and not prefix.marked:
        return "own"
    return "placed" if prefix.mode in ("on", "manage") else "observed"


# Readers of the file's values. They raise ValueError, TypeError or LookupError for others.


def read_numbers(names: Sequence[str], values: Any) -> dict[str, int]:
    return {name: read_count(number) for name, number in zip(names, values, strict=True)}


def read_upstream(value: Any) -> UpstreamTokens:
    return UpstreamTokens(**read_numbers(UPSTREAM_NUMBERS, value))


def read_tariff(value: Any) -> TariffTotals:
    latest, rule, mode = value["newest"]
    groups = read_names(value["groups"], len(GROUPS), read_bills)
    if not set(groups) <= set(GROUPS):
        raise ValueError(f"groups must be of {', '.join(GROUPS)}")
    numbers: dict[str, Any] = read_numbers(TARIFF_NUMBERS, value["numbers"])
    return TariffTotals(**numbers, latest=read_amount(latest), rule=text(rule), mode=text(mode), groups=groups)


def read_bills(value: Any) -> RuleBills:
    requests, priced, tokens, usd = value
    return RuleBills(
        read_count(requests),
        read_count(priced),
        read_names(tokens, MAX_RULES, read_amount),
        read_names(usd, MAX_RULES, read_amount),
    )


def text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise ValueError(f"a text of at most {MAX_NAME} characters is needed")
    return value


def collect_prefix(totals: PrefixTotals) -> Iterator[Metric]:
    """Yield all families, in an order that does not depend on the traffic."""

    def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"knapcache_prefix_{name}", text, labels=labels)

    text = "Input tokens as upstreams reported them: read from their prompt cache, written to it, or plain."
    tokens = counter("tokens", text, "upstream", "kind")
    text = "Requests that went upstream, by whether the upstream reported their input tokens."
    requests = counter("requests", text, "upstream", "usage")
    for name, found in list(totals.upstreams.items()):
        for kind in ("read", "short_written", "long_written", "plain"):
            tokens.add_metric([name, kind], getattr(found, kind))
        requests.add_metric([name, "reported"], found.requests - found.unknown)
        requests.add_metric([name, "unknown"], found.unknown)
    yield from (tokens, requests)
    tariffs = list(totals.tariffs.items())
    for number, metric, text in (
        ("requests", "decisions", "Requests for which the prefix tier computed what its rules would pay."),
        ("marked", "marked", "Requests on which the prefix tier placed marks, or changed them."),
        ("own_marks", "own_marks", "Requests that came with marks."),
        ("below", "below_minimum", "Requests that are too short for the provider's prompt cache."),
        ("predicted", "predicted_tokens", "Tokens of marked requests that were expected to be read."),
        ("reported", "reported_tokens", "Tokens of the same requests that were read, as reported."),
    ):
        family = counter(metric, text, "tariff")
        for name, tariff in tariffs:
            family.add_metric([name], getattr(tariff, number))
        yield family
    labels = ("tariff", "requests", "rule")
    text = "What each rule would have paid for the input, in tokens at the plain price; rule paid: what was paid."
    in_tokens = counter("bill_tokens", text, *labels)
    in_usd = counter("bill_usd", "The same in US dollars. Only requests of known price.", *labels)
    for name, tariff in tariffs:
        for group, paid in list(tariff.groups.items()):
            for family, amounts in ((in_tokens, paid.tokens), (in_usd, paid.usd)):
                for rule, amount in list(amounts.items()):
                    family.add_metric([name, group, rule], amount)
    yield from (in_tokens, in_usd)
