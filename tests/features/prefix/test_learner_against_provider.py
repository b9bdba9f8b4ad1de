"""The learner's predictions agree with the bills of a provider that implements the documented rules on its own."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import pytest

from knapcache.features.prefix.learner import PrefixLearner
from knapcache.features.prefix.request import Position, PrefixRequest
from knapcache.features.prefix.tariff import ANTHROPIC, OPENAI_BREAKPOINTS, TARIFFS, Tariff, ttl_name
from knapcache.price.input_tokens import InputTokens
from knapcache.testing.prefix_provider import PrefixBilling, VirtualClock, tokens_by_length
from knapcache.testing.upstream import UpstreamCall
from tests.support.prefix_traces import (
    BLOCK_TOKENS,
    TOKENS_PER_BYTE,
    RenderedRequest,
    load_trace,
    messages_body,
    render,
)

ROUNDING = 64
"""Tokens by which lengths in bytes may differ from the trace's."""


class Comparison(NamedTuple):
    """A replay of the learner against the provider. Bills are relative to the bill without marks."""

    billed: float
    predicted: float
    wrong: int
    """Requests that read another number of tokens than predicted."""


def as_prefix_request(request: RenderedRequest, tariff: Tariff) -> PrefixRequest:
    """Return a rendered request as the learner sees it."""
    row, blocks = request.row, request.blocks
    ids = accumulate((hash((block.kind, block.text)) for block in blocks), lambda chain, block: hash((chain, block)))
    return PrefixRequest(
        time=row.time,
        positions=[Position(each, block.end, at) for at, (each, block) in enumerate(zip(ids, blocks, strict=True))],
        tokens=row.tokens,
        system=0 if blocks[0].kind == "system" else -1,
        kind=row.kind,
        minimum=tariff.minimum_of(row.model),
    )


def explicit_chat_body(request: RenderedRequest, marks: dict[int, str]) -> dict[str, Any]:
    """Return a request to OpenAI, which is cached at these marks only."""
    messages = []
    for index, block in enumerate(request.blocks):
        part: dict[str, Any] = {"type": "text", "text": block.text}
        if index in marks:
            part["prompt_cache_breakpoint"] = {"mode": "explicit"}
        messages.append({"role": "system" if block.kind == "system" else "user", "content": [part]})
    return {"model": "gpt-5.6", "messages": messages, "prompt_cache_options": {"mode": "explicit"}}


def replay(name: str, limit: int | None, *, upgrades: bool, tariff: Tariff = ANTHROPIC) -> Comparison:
    clock = VirtualClock(0.0)
    billing = PrefixBilling(clock=clock, count_tokens=tokens_by_length(TOKENS_PER_BYTE[name]), upgrades=upgrades)
    learner = PrefixLearner(tariff)
    is_openai = tariff is OPENAI_BREAKPOINTS
    endpoint = "/chat/completions" if is_openai else "/messages"
    predicted, wrong = 0.0, 0
    for request in render(name, load_trace(name, limit)):
        clock.now = request.row.time
        placement = learner.place(as_prefix_request(request, tariff))
        marks = {mark.at: ttl_name(mark.ttl) for mark in placement.marks}
        body = explicit_chat_body(request, marks) if is_openai else messages_body(request, marks)
        charged = billing.charge(endpoint, UpstreamCall("POST", f"/v1{endpoint}", {}, body))
        assert charged.refusal is None, charged.refusal
        charged.begin()
        bill = InputTokens(**billing.ledger[-1].charge._asdict())
        wrong += abs(bill.read - placement.bill.read) > ROUNDING
        predicted += tariff.cost(placement.bill)
        learner.report(placement, bill)
    billing.check()
    tokens = sum(request.charge.tokens for request in billing.ledger)
    return Comparison(billing.cost() / tokens, predicted / tokens, wrong)


@pytest.mark.parametrize("tariff", TARIFFS.values(), ids=list(TARIFFS))
@pytest.mark.parametrize("name", BLOCK_TOKENS)
def test_a_provider_bills_what_was_predicted(name: str, tariff: Tariff) -> None:
    found = replay(name, 400, upgrades=True, tariff=tariff)
    assert found.wrong == 0
    assert found.billed == pytest.approx(found.predicted, rel=0.002)


def test_a_provider_that_does_not_honour_upgrades_is_found_out() -> None:
    found = replay("agent_sessions", 600, upgrades=False)
    assert 0 < found.wrong <= 6


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "upgrades", "bar"),
    [
        ("agent_sessions", True, 0.165),
        ("agent_sessions", False, 0.191),
        ("chat_prefixes", True, 0.945),
        ("chat_prefixes", False, 0.955),
    ],
)
def test_whole_traces_are_billed_as_predicted(name: str, upgrades: bool, bar: float) -> None:
    found = replay(name, None, upgrades=upgrades)
    assert found.billed <= bar
    assert found.billed == pytest.approx(found.predicted, rel=0.01)
    assert found.wrong == 0 or not upgrades
