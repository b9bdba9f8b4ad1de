"""Swap in the admin API: the state of each frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from knapcache.features.swap.certificate import State
from knapcache.features.swap.event import SWAP_KINDS
from knapcache.features.swap.frames import LiveFrame
from knapcache.features.swap.settings import SwapMode
from knapcache.features.swap.tier import SwapRoute, SwapTier
from knapcache.features.swap.totals import FrameSums, FrameTotals, SwapTotals
from knapcache.proxy.admin.models import Count, ResponseModel
from knapcache.proxy.admin_routes import Route

MAX_REPORTED = 200


class FrameStatus(ResponseModel):
    """One frame: requests with the same route, tenant, model, system prompt and prescribed form."""

    frame: Annotated[str, Field(description="First 16 characters of its digest.")]
    route: str
    tenant: str
    model: Annotated[str, Field(description="The model that is asked for.")]
    swap_model: Annotated[str, Field(description="The cheaper model.")]
    mode: SwapMode
    state: Annotated[
        State,
        Field(
            description="`certified`: the cheaper model answers if the mode is on. `hopeless`: it loses too much, and "
            "no more labels are paid for."
        ),
    ]
    labels: Annotated[Count, Field(description="Labels since the frame began to learn, the last time.")]
    evidence: Annotated[float, Field(description="Evidence that the mean loss is below the allowed one.")]
    needed: Annotated[float, Field(description="The evidence that certifies.")]
    loss: Annotated[float, Field(description="The allowed mean loss: swap_loss.")]
    mean_loss: Annotated[float, Field(description="The mean loss of the labels; below 0: the cheaper model is better.")]
    bound: Annotated[float, Field(description="The least loss that the labels would certify; 1: none.")]
    differing: Annotated[float, Field(description="Share of the labels that are not ties.")]
    asked_twice: Annotated[Count, Field(description="Labels for which the asked model was asked a second time.")]
    floor: Annotated[float, Field(description="Share of these in which it differs from itself, by the same judge.")]
    rungs: Annotated[dict[str, Count], Field(description="Labels by what decided them: equal, model, differ, text.")]
    label_share: Annotated[
        float,
        Field(description="Cost of labels ÷ cost of the asked model, for all requests of the tenant on the route."),
    ]
    price_ratio: Annotated[
        float, Field(description="Cost of the asked model ÷ cost of the cheaper one, or of both where a check fails.")
    ]
    requests: Annotated[Count, Field(description="Requests since the proxy started.")]
    swapped: Annotated[Count, Field(description="Requests that got an answer of the cheaper model.")]
    usd_saved: Annotated[float, Field(description="What the asked model would have cost more, by the mean of labels.")]
    usd_labels: Annotated[float, Field(description="Paid for labels.")]


class SwapUsage(ResponseModel):
    """Sums of some time."""

    requests: Annotated[dict[str, Count], Field(description="Requests by what was done with them.")]
    excluded: Annotated[dict[str, Count], Field(description="Requests that are never swapped, by reason.")]
    labels: Count
    usd_saved: Annotated[float, Field(description="What the asked models would have cost more, by the mean of labels.")]
    usd_labels: Annotated[float, Field(description="Paid for labels.")]


class SwapReport(ResponseModel):
    """The frames with the most requests, and sums over restarts and proxies."""

    problem: Annotated[str, Field(description="Why nothing is swapped; empty: it may be.")]
    frames: Annotated[
        list[FrameStatus], Field(description=f"At most {MAX_REPORTED}, with sums since the proxy started.")
    ]
    more_frames: Annotated[Count, Field(description="Frames that are not listed.")]
    since: Annotated[float | None, Field(description="Unix time of the first request; null: there was none.")]
    today: Annotated[SwapUsage, Field(description="Since midnight.")]
    all: Annotated[SwapUsage, Field(description="Since the histories began.")]


def usage(totals: SwapTotals) -> SwapUsage:
    """Return sums for the API."""
    return SwapUsage(
        requests={kind: totals.kinds.get(kind, 0) for kind in SWAP_KINDS},
        excluded=totals.excluded,
        labels=totals.labels,
        usd_saved=totals.usd_saved,
        usd_labels=totals.usd_labels,
    )


def report(tier: SwapTier, sums: FrameSums, today: SwapTotals, total: SwapTotals) -> SwapReport:
    """Return the state of swap."""
    known = [(sums.get(name[:16]), name, live) for name, live in tier.frames]
    known.sort(key=lambda one: (-one[0].requests, -one[2].decision.certificate.labels, one[1]))
    found = [status(tier.routes[live.route], name, live, counted) for counted, name, live in known[:MAX_REPORTED]]
    return SwapReport(
        problem=tier.failure,
        frames=found,
        more_frames=len(known) - len(found),
        since=total.since or None,
        today=usage(today),
        all=usage(total),
    )


def status(route: SwapRoute, name: str, live: LiveFrame, sums: FrameTotals) -> FrameStatus:
    """Return the state of a frame."""
    certificate, budget = live.decision.certificate, live.budget
    return FrameStatus(
        frame=name[:16],
        route=live.route,
        tenant=live.tenant,
        model=live.model,
        swap_model=route.model,
        mode=route.settings.swap,
        state=certificate.state,
        labels=certificate.labels,
        evidence=certificate.evidence,
        needed=certificate.needed,
        loss=certificate.loss,
        mean_loss=certificate.mean_loss,
        bound=certificate.bound(),
        differing=certificate.differing,
        asked_twice=live.asked_twice,
        floor=live.floor,
        rungs=live.rungs,
        label_share=budget.label_cost / budget.asked_cost if budget.asked_cost > 0.0 else 0.0,
        price_ratio=live.price_ratio,
        requests=sums.requests,
        swapped=sums.swapped,
        usd_saved=sums.usd_saved,
        usd_labels=sums.usd_labels,
    )


def routes(serve: Any) -> Sequence[Route]:
    """Return the routes of the admin API."""
    return [
        Route(
            method="GET",
            path="/swap",
            name="swap",
            summary="Frames of requests for which a cheaper model is tried, with their evidence.",
            response=SwapReport,
            serve=serve,
        )
    ]
