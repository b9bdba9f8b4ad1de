"""Swap in the admin API: the state of each frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from knapcache.features.swap.certificate import State
from knapcache.features.swap.settings import SwapMode
from knapcache.features.swap.tier import SwapTier
from knapcache.features.swap.totals import FrameTotals
from knapcache.proxy.admin.models import Count, ResponseModel
from knapcache.proxy.admin_routes import Route


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
    rungs: Annotated[dict[str, Count], Field(description="Labels by what decided them: equal, model, differ, text.")]
    label_share: Annotated[float, Field(description="Cost of labels ÷ what the asked model costs for all requests.")]
    price_ratio: Annotated[float, Field(description="What the asked model costs, in costs of the cheaper one.")]
    requests: Annotated[Count, Field(description="Requests since the proxy started.")]
    swapped: Annotated[Count, Field(description="Requests that got an answer of the cheaper model.")]
    usd_saved: Annotated[float, Field(description="What the asked model would have cost more, by the mean of labels.")]
    usd_labels: Annotated[float, Field(description="Paid for labels.")]


class SwapReport(ResponseModel):
    """All frames, those with the most requests first."""

    problem: Annotated[str, Field(description="Why nothing is swapped; empty: it may be.")]
    frames: list[FrameStatus]
    excluded: Annotated[dict[str, Count], Field(description="Requests that are never swapped, by reason.")]


def report(tier: SwapTier, totals: dict[str, FrameTotals], excluded: dict[str, int]) -> SwapReport:
    """Return the state of swap."""
    found = []
    for name, live in tier.frames:
        route = tier.routes.get(live.route)
        if route is None:
            continue
        certificate, sums = live.decision.certificate, totals.get(name[:16], FrameTotals())
        asked_cost = live.decision.asked_cost
        found.append(
            FrameStatus(
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
                rungs=live.rungs,
                label_share=live.decision.label_cost / asked_cost if asked_cost > 0.0 else 0.0,
                price_ratio=live.price_ratio,
                requests=sums.requests,
                swapped=sums.swapped,
                usd_saved=sums.usd_saved,
                usd_labels=sums.usd_labels,
            )
        )
    found.sort(key=lambda frame: (-frame.requests, -frame.labels, frame.frame))
    return SwapReport(problem=tier.failure, frames=found, excluded=excluded)


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
