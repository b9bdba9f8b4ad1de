"""Prompt caching at providers, as part of GET /summary."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import Field

from knapcache.features.prefix.totals import GROUPS, TARIFF_NUMBERS, Group, PrefixTotals
from knapcache.proxy.admin.models import Count, ResponseModel

PrefixMode = Literal["off", "observe", "on", "manage"]


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
    """Return the sums of some time."""
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
