"""Responses of the admin API with totals: GET /summary, GET /history, GET /plan and GET /proxies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from knapcache.proxy.admin.models import Count, ResponseModel
from knapcache.proxy.admin_routes import SummaryField
from knapcache.proxy.events.upstream_health import UpstreamStatus

Prices = Literal["known", "mixed", "none", "simulated"]


class StoreServerStatus(ResponseModel):
    """The Valkey or Redis server of a shared store, as this proxy sees it."""

    place: Annotated[str, Field(description="Host and port, without user and password.")]
    state: Annotated[
        Literal["ok", "read-only", "away"],
        Field(description="read-only: it answers and takes no writes. away: it does not answer, or cannot be used."),
    ]
    since: Annotated[float | None, Field(description="Unix time since which it is so; none if it is ok.")]
    reason: Annotated[str, Field(description="Why; empty if it is ok.")]


class ProxyRow(ResponseModel):
    """A proxy that runs."""

    id: str
    host: str
    version: str
    started: Annotated[float, Field(description="Unix time.")]
    workers: Count
    owner: Annotated[bool, Field(description="Whether it decides what the shared store keeps.")]
    requests: Annotated[Count, Field(description="All requests in its history.")]
    this: Annotated[bool, Field(description="Whether it is the one that answers.")]


class ProxyPage(ResponseModel):
    """The proxies of a shared store. Without one, and while its server is away, only the one that answers."""

    engine: Annotated[StoreServerStatus | None, Field(description="None: this proxy has no shared store.")]
    rows: list[ProxyRow]
    ended: Annotated[Count, Field(description="Proxies that have ended, and whose requests are part of the sums.")]
    ignored: Annotated[Count, Field(description="Documents of other proxies that could not be read.")]


class RouteStatus(ResponseModel):
    """A route, in the order of the settings."""

    name: str
    conditions: Annotated[list[str], Field(description="All of them must hold; none: every request meets it.")]
    rules: Annotated[dict[str, Any], Field(description="Its settings that are not the default.")]
    recent: Annotated[dict[str, Count], Field(description="Of the recent requests, how many had which outcome.")]


class Usage(ResponseModel):
    """Totals of a set of requests. Spent: what calls of upstreams cost. Saved: what cached answers had cost."""

    requests: Annotated[Count, Field(description="Requests of clients, whatever came of them: the sum of outcomes.")]
    hits: Count
    similar: Annotated[Count, Field(description="Answers to similar questions, served by the semantic tier.")]
    coalesced: Count
    stale: Count
    misses: Count
    bypasses: Count
    passthrough: Count
    failed: Annotated[Count, Field(description="Failed or rejected.")]
    bytes_saved: Count
    usd_spent: Annotated[
        float,
        Field(description="Every call that was paid for, as far as its price is known; also calls in the background."),
    ]
    usd_estimated: Annotated[
        float, Field(description="What limits have counted in addition, for calls whose cost is not known.")
    ]
    usd_saved: float
    seconds_spent: Annotated[
        float, Field(description="Model time: seconds of upstream calls, also of concurrent ones.")
    ]
    seconds_saved: Annotated[
        float, Field(description="Model time that was not needed. Calls that would have run at once are added up.")
    ]
    cost_spent: float
    cost_saved: float
    tokens_spent: Count
    tokens_saved: Count
    priced: Annotated[Count, Field(description="Answers of known price: those that the dollars are of.")]
    unpriced: Annotated[Count, Field(description="Answers of unknown price, and of free models.")]
    evictions: Annotated[
        Count,
        Field(description="Entries evicted, and answers not admitted, for lack of space; 0 for a model or tenant."),
    ]
    would: Annotated[
        dict[str, float],
        Field(description="Cost of the same requests without a cache, with other policies, or with more capacity."),
    ]


class ModelUsage(Usage):
    """Usage of one model."""

    name: str
    price: Annotated[
        Literal["known", "mixed", "unknown", "free", "simulated"],
        Field(
            description="mixed: known for some answers; free: the embedded model; simulated: it has a made-up price."
        ),
    ]


class TenantUsage(Usage):
    """Usage of one tenant, and the size of its entries."""

    name: str
    namespace: str | None
    bytes: Count
    quota: int | None


class UsagePoint(Usage):
    """Usage in one time step."""

    time: float


class PolicyStatus(ResponseModel):
    """The live policy."""

    name: str
    oracle_calls: Count
    oracle_seconds: float
    ids: Annotated[Count, Field(description="Keys in the policy's table.")]
    shadow_rate: Annotated[
        Count,
        Field(
            description="Policies of `would` simulate one key in this many. 1: all; more: their costs are estimates."
        ),
    ]


class StorageStatus(ResponseModel):
    """Sizes in bytes."""

    capacity: Annotated[Count, Field(description="As configured: for all files of the cache.")]
    usable: Annotated[
        Count,
        Field(description="What of it entries can take; the rest is for SQLite's log, its index and policy state."),
    ]
    bytes: Annotated[Count, Field(description="Size of all entries.")]
    entries: Count
    disk_bytes: int | None


class Amounts(ResponseModel):
    """How the page shows costs: `cost * factor` is in `unit`.

    share: costs are a mixture of known prices and estimates, so they are shown as shares of each other only.
    """

    unit: Literal["usd", "seconds", "number", "share"]
    factor: float


class Doubling(ResponseModel):
    """The additional savings of twice the capacity, in the policy's unit; 0 while nothing was evicted."""

    saves: float
    per_day: Annotated[float | None, Field(description="Projection; none for less than a day of history.")]
    per_day_low: float | None
    per_day_high: float | None
    method: Annotated[str, Field(description="How the range of the projection was computed, or why there is none.")]


class FirstRequest(ResponseModel):
    """What an example request to this proxy must contain."""

    kind: Annotated[Literal["openai", "anthropic"], Field(description="API of the first upstream.")]
    model: str
    key: Annotated[
        Literal["none", "any", "tenant", "provider"],
        Field(description="API key to send. any: any text; tenant: the key of a tenant; provider: the provider's."),
    ]


class HealthStatus(ResponseModel):
    """State of the store and of the upstreams."""

    store: Literal["ok", "open", "half-open", "memory"]
    owner: Annotated[bool, Field(description="Whether this process decides and writes.")]
    workers: Count
    upstreams: list[UpstreamStatus]
    breaker: dict[str, Any]
    engine: Annotated[
        StoreServerStatus | None,
        Field(description="Of a shared store. While it is away, the numbers are those of this proxy."),
    ]


class Summary(ResponseModel):
    """Everything on the dashboard's first page. Features that are on add fields."""

    now: float
    started: float
    since: Annotated[float, Field(description="When history began.")]
    version: str
    unit: Annotated[str, Field(description="Unit of every cost: usd, seconds, or a blend. Costs contain estimates.")]
    prices: Annotated[
        Prices,
        Field(description="Of which answers the dollars are: all, some, none; simulated: of some at made-up prices."),
    ]
    amounts: Amounts
    policy: PolicyStatus
    storage: StorageStatus
    today: Usage
    all: Usage
    models: list[ModelUsage]
    tenants: list[TenantUsage]
    price_per_mb: Annotated[
        float | None,
        Field(
            description="`doubling.saves` per megabyte of additional capacity. None: no shadow has twice the capacity."
        ),
    ]
    least_value_per_mb: Annotated[
        float, Field(description="Value per megabyte of the least valuable tenth of all entries: evicted first.")
    ]
    doubling: Doubling | None
    health: HealthStatus
    first_request: FirstRequest
    routes: Annotated[list[RouteStatus], Field(description="Rules for a part of the requests.")]


def summary_with(fields: Iterable[SummaryField]) -> type[Summary]:
    """Return the model of a summary with fields of features."""
    own: dict[bool, dict[str, Any]] = {False: {}, True: {}}
    for field in fields:
        own[field.of_health][field.name] = (field.type, Field(description=field.description))
    health = create_model("HealthStatus", __base__=HealthStatus, __doc__=HealthStatus.__doc__, **own[True])
    return create_model(
        "Summary",
        __base__=Summary,
        __doc__="Everything on the dashboard's first page.",
        health=(health, ...),
        **own[False],
    )


class UsageHistory(ResponseModel):
    """Usage over time, one point per step of `step` seconds."""

    step: Count
    points: list[UsagePoint]


class PlanStatus(ResponseModel):
    """State of the capacity plan."""

    state: Literal["idle", "running", "done", "failed"]
    started: float | None
    seconds: Annotated[float | None, Field(description="How long it has taken.")]
    progress: Annotated[
        float, Field(description="Share of the replays that are done, 0 to 1. 0: the log is being read.")
    ]
    remaining: Annotated[
        float | None, Field(description="Estimated seconds to its end; none: not known before two of ten capacities.")
    ]
    amounts: Annotated[Amounts | None, Field(description="Unit of the savings in the result.")]
    result: Annotated[dict[str, Any] | None, Field(description="Output of `knapcache plan --json`, or a message.")]
