"""Open traces through the proxy: the provider bills what the lab predicts."""

from __future__ import annotations

import pytest

from knapcache.features.prefix.lab.read import read_prefix_trace
from knapcache.features.prefix.learner import PrefixLearner
from knapcache.features.prefix.provider_cache import PrefixCache
from knapcache.features.prefix.tariff import ANTHROPIC
from tests.features.prefix.serving.conftest import StartTier
from tests.support.prefix_traces import BLOCK_TOKENS, TOKENS_PER_BYTE, load_trace, messages_body, render, trace_path

ROUNDING = 64
"""Tokens by which lengths in bytes may differ from the trace's."""


def lab_bills(name: str, limit: int | None, *, upgrades: bool) -> list[float]:
    """Return what each request of a trace costs in the lab with learned marks, in plain tokens.

    The trace does not tell the number of blocks, which matters for the provider's lookback. The rendered requests have
    one for each position.
    """
    learner, cache = PrefixLearner(ANTHROPIC), PrefixCache(ANTHROPIC, upgrades=upgrades)
    bills = []
    for unknown in read_prefix_trace(trace_path(name), ANTHROPIC.minimum_of).requests[:limit]:
        blocks = [position._replace(block=block) for block, position in enumerate(unknown.positions)]
        request = unknown._replace(positions=blocks)
        placement = learner.place(request)
        bill, _ = cache.send(request, placement.marks)
        learner.report(placement, bill)
        bills.append(ANTHROPIC.cost(bill))
    return bills


def live_bills(start_tier: StartTier, name: str, limit: int | None, *, upgrades: bool) -> list[float]:
    """Return what the provider bills for each request of a trace that goes through the proxy."""
    rows = load_trace(name, limit)
    tier = start_tier("on", upgrades=upgrades, now=0.0, tokens_per_byte=TOKENS_PER_BYTE[name])
    for model in sorted({row.model for row in rows}):
        tier.learn_length(model)
    for request in render(name, rows):
        tier.clock.now = request.row.time
        served = tier.post(messages_body(request))
        assert (served.status, served.outcome) == (200, "miss")
        tier.provider.calls.clear()
    assert len(tier.provider.ledger) == len(rows)
    wrong = [event for event in tier.prefix_events() if abs(event.predicted - event.read) > ROUNDING]
    assert len(wrong) <= (0 if upgrades else 0.01 * len(rows)), wrong
    return [request.cost for request in tier.provider.ledger]


def compare(start_tier: StartTier, name: str, limit: int | None, *, upgrades: bool) -> None:
    live, lab = live_bills(start_tier, name, limit, upgrades=upgrades), lab_bills(name, limit, upgrades=upgrades)
    different = [
        at
        for at, (paid, predicted) in enumerate(zip(live, lab, strict=True))
        if abs(paid - predicted) > 0.02 * predicted + 100
    ]
    assert sum(live) == pytest.approx(sum(lab), rel=0.01)
    assert len(different) <= 0.002 * len(lab), different


@pytest.mark.parametrize("name", BLOCK_TOKENS)
def test_the_start_of_a_trace_is_billed_as_in_the_lab(start_tier: StartTier, name: str) -> None:
    compare(start_tier, name, 100, upgrades=True)


@pytest.mark.long
@pytest.mark.parametrize("upgrades", [True, False])
@pytest.mark.parametrize("name", BLOCK_TOKENS)
def test_a_whole_trace_is_billed_as_in_the_lab(start_tier: StartTier, name: str, upgrades: bool) -> None:
    compare(start_tier, name, None, upgrades=upgrades)
