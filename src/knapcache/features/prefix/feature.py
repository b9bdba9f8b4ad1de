"""Prompt caches of providers as a feature of the proxy: an editor of the body for each upstream, sums, metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, cast

from prometheus_client.core import Metric
from pydantic import Field

from knapcache.features.prefix.event import PrefixEvent, PrefixLog
from knapcache.features.prefix.settings import PrefixMode, PrefixRouteSettings, PrefixSettings
from knapcache.features.prefix.tier import PrefixMarker, PrefixTier, reported_event
from knapcache.features.prefix.totals import GROUPS, TARIFF_NUMBERS, Group, PrefixTotals, collect_prefix
from knapcache.price.meter import Bill
from knapcache.proxy.admin.models import Count, ResponseModel
from knapcache.proxy.admin_routes import AdminServices, SummaryField
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import BodyEditor, CallContext, CallHooks
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.threads import DeadlinePool

PREFIX_LOG = "prefixes"
"""The folder of the prefix log, in the data directory."""
BODY_DIGESTS = ("content-digest", "content-md5", "digest", "repr-digest", "x-amz-content-sha256")
"""Request headers that hold for the bytes of the body."""


class PrefixFeature(Feature):
    """Marks requests for the prompt caches of providers, or observes what marks would save."""

    name = "prefix"
    part = PrefixEvent
    totals = PrefixTotals

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        settings = context.settings
        assert isinstance(settings, PrefixSettings)
        self.tiers = {
            each.name: PrefixTier(
                each.name,
                each.prompt_cache,
                settings.prefix,
                context.secret,
                input_price=context.meter.input_price,
            )
            for each in settings.upstreams
            if each.prompt_cache != "off" and not each.local
        }
        """By name of the upstream, of those with a prompt cache."""
        self._has_log = settings.prefix != "off"
        self._counted = PrefixTotals()
        """Since this process became the owner."""

    def become_owner(self, pipeline: EventPipeline) -> None:
        pipeline.add_consumer(self)
        if self._has_log:
            pipeline.open_log(PREFIX_LOG, PrefixLog)

    def consume(self, events: Sequence[Event]) -> None:
        for event in events:
            if "prefix" in event.parts:
                self._counted.count(event)

    def metrics(self) -> Iterator[Metric]:
        return collect_prefix(self._counted)

    def summary_fields(self, admin: AdminServices) -> Sequence[SummaryField]:
        def value() -> PrefixSummary:
            settings = self.context.settings
            assert isinstance(settings, PrefixSettings)
            return prefix_summary(settings.prefix, *admin.totals.sums("prefix"))

        return [SummaryField("prefix", PrefixSummary, "Prompt caching at providers.", value)]

    def begin(self, call: CallContext) -> CallHooks | None:
        return None if call.exchange is None else PrefixHooks(call, self.tiers, self.context.body_pool)


class PrefixHooks(CallHooks):
    """The prefix tier's part of one request."""

    __slots__ = ("_call", "_mode", "_pool", "_tiers", "edits")
    name = "prefix"

    def __init__(self, call: CallContext, tiers: Mapping[str, PrefixTier], pool: DeadlinePool) -> None:
        self._call, self._tiers, self._pool = call, tiers, pool
        route = cast(PrefixRouteSettings | None, call.route)
        self._mode = None if route is None else route.prefix
        self.edits = self._mode != "off" and call.upstream.name in tiers

    def editor(self, upstream: Upstream, model: str) -> PrefixMarker | None:
        tier, exchange = self._tiers.get(upstream.name), self._call.exchange
        if tier is not None and self._mode is not None:
            tier = tier.in_mode(self._mode)
        if tier is None or tier.mode == "off" or exchange is None:
            return None
        if is_signed(self._call.headers, self._call.query):  # a changed body would break the signature
            tier = tier.in_mode("observe")
        return PrefixMarker(
            tier,
            exchange.endpoint,
            exchange.body,
            len(exchange.raw),
            model=model,
            account=upstream.account(self._call.credential),
            pool=self._pool,
        )

    def event_part(self, *, sent: bool, bill: Bill | None, editor: BodyEditor | None) -> PrefixEvent | None:
        """Report the input tokens of a paid answer to the tier, and return what is recorded of them."""
        if not sent:
            return None
        counted = None if bill is None else bill.input
        return editor.report(counted) if isinstance(editor, PrefixMarker) else reported_event("off", counted)


def is_signed(headers: Mapping[str, str], query: bytes) -> bool:
    """Return whether the request has a signature or a digest of its body. headers: by lower-case name."""
    return (
        headers.get("authorization", "").lstrip().upper().startswith("AWS4-")
        or b"x-amz-signature=" in query.lower()
        or any(name in headers for name in BODY_DIGESTS)
    )


# GET /summary.


class UpstreamInput(ResponseModel):
    """Input tokens of the requests to one upstream, as it reported them."""

    name: str
    requests: Count
    unknown: Annotated[Count, Field(description="Requests without a reported usage. Their tokens are not counted.")]
    input: Annotated[Count, Field(description="All input tokens: the sum of the next four.")]
    read: Annotated[Count, Field(description="Read from the provider's prompt cache.")]
    short_written: Annotated[Count, Field(description="Written to it for the shorter TTL.")]
    long_written: Annotated[Count, Field(description="Written to it for the longer TTL.")]
    plain: Count


class PrefixBills(ResponseModel):
    """The input bill of some requests, as paid and by each rule."""

    kind: Annotated[
        Group,
        Field(
            description="observed: requests without marks, which stayed so; placed: the tier chose the marks; own: "
            "requests with marks of the caller, which were left as they were."
        ),
    ]
    requests: Annotated[Count, Field(description="Those with a reported usage.")]
    priced: Annotated[Count, Field(description="Those of known price: the dollars are of them.")]
    tokens: Annotated[
        dict[str, float],
        Field(description="Tokens at the price of plain input, by rule. `paid`: by the provider's report."),
    ]
    usd: dict[str, float]


class PrefixTariff(ResponseModel):
    """The requests to providers with one tariff for their prompt cache."""

    name: str
    rule: Annotated[str, Field(description="The rule that led at the newest request.")]
    mode: Annotated[str, Field(description="The setting `prefix` at the newest request: observe, on or manage.")]
    latest: Annotated[float, Field(description="When the newest request arrived, Unix time.")]
    requests: Count
    marked: Annotated[Count, Field(description="Requests on which the tier placed marks, or changed them.")]
    own_marks: Annotated[Count, Field(description="Requests that came with marks.")]
    below: Annotated[Count, Field(description="Requests that are too short for the provider's prompt cache.")]
    compared: Annotated[Count, Field(description="Requests with marks and a reported usage.")]
    predicted: Annotated[Count, Field(description="Their tokens that were expected to be read.")]
    reported: Annotated[Count, Field(description="Their tokens that were read, by the provider's report.")]
    bills: list[PrefixBills]


class PrefixSums(ResponseModel):
    """Prompt caching at providers in some time."""

    upstreams: list[UpstreamInput]
    tariffs: list[PrefixTariff]


class PrefixSummary(ResponseModel):
    """Prompt caching at providers."""

    mode: Annotated[PrefixMode, Field(description="The setting `prefix`.")]
    since: Annotated[float | None, Field(description="When the first request arrived; none: there was none.")]
    today: PrefixSums
    all: PrefixSums


def prefix_summary(mode: PrefixMode, today: PrefixTotals, total: PrefixTotals) -> PrefixSummary:
    """Return the section of the summary. mode: the setting `prefix`."""
    return PrefixSummary(mode=mode, since=total.since or None, today=prefix_sums(today), all=prefix_sums(total))


def prefix_sums(totals: PrefixTotals) -> PrefixSums:
    return PrefixSums(
        upstreams=[
            UpstreamInput(name=name, plain=tokens.plain, **asdict(tokens)) for name, tokens in totals.upstreams.items()
        ],
        tariffs=[
            PrefixTariff(
                name=name,
                rule=found.rule,
                mode=found.mode,
                latest=found.latest,
                **{number: getattr(found, number) for number in TARIFF_NUMBERS},
                bills=[PrefixBills(kind=kind, **asdict(found.groups[kind])) for kind in GROUPS if kind in found.groups],
            )
            for name, found in totals.tariffs.items()
        ],
    )
