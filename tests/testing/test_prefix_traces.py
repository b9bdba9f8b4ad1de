"""The fake provider bills open traces like a biller that knows nothing of bodies, blocks and hashes."""

from __future__ import annotations

import pytest

from knapcache.testing.prefix_provider import PrefixBilling, VirtualClock, tokens_by_length
from knapcache.testing.upstream import UpstreamCall
from tests.support.prefix_traces import (
    BLOCK_TOKENS,
    TOKENS_PER_BYTE,
    RenderedRequest,
    TraceRow,
    load_trace,
    messages_body,
    render,
)

SECONDS = {"5m": 300.0, "1h": 3600.0}
WRITE = {"5m": 1.25, "1h": 2.0}
MINIMUM = 1024


def rule_marks(request: RenderedRequest, rule: str) -> dict[int, str]:
    """Return the marks of a fixed rule: TTL by index of the block."""
    family, ttl = rule.split("-")
    places = {len(request.blocks) - 1}
    if family == "system2":
        places |= {0} if request.row.system else set()
        places |= {request.previous} if request.previous >= 0 else set()
    return {place: ttl for place in places if request.blocks[place].end >= MINIMUM}


def billed_by_provider(name: str, rows: list[TraceRow], rule: str) -> float:
    """Return the bill of the fake provider, relative to the bill without marks."""
    clock = VirtualClock(0.0)
    billing = PrefixBilling(clock=clock, count_tokens=tokens_by_length(TOKENS_PER_BYTE[name]), minimum=MINIMUM)
    for request in render(name, rows):
        clock.now = request.row.time
        body = messages_body(request, rule_marks(request, rule))
        billing.charge("/messages", UpstreamCall("POST", "/v1/messages", {}, body)).begin()
    billing.check()
    assert all(request.status == 200 for request in billing.ledger)
    return billing.cost() / sum(request.charge.tokens for request in billing.ledger)


def billed_by_rows(rows: list[TraceRow], block: int, rule: str) -> float:
    """Return the same from the rows alone. An entry is [tokens, expiry]; requests inherit those they share."""
    family, ttl = rule.split("-")
    entries: dict[tuple[str, int], list[list[float]]] = {}
    lengths: dict[tuple[str, int], int] = {}
    total = 0.0
    for row in rows:
        inherited = entries[row.parent] if row.parent is not None else []
        inherited = [each for each in inherited if each[0] // block * block <= row.shared]
        live = [each for each in inherited if each[1] > row.time]
        marks = [row.tokens]
        if family == "system2":
            marks += [row.system] if row.system else []
            parent = lengths[row.parent] if row.parent is not None else 0
            marks += [parent] if parent // block * block <= row.shared and parent <= row.tokens else []
        marks = [mark for mark in marks if mark >= MINIMUM]
        last = max(marks, default=0)
        read = max((each[0] for each in live if each[0] <= last), default=0)
        total += 0.1 * read + WRITE[ttl] * (last - read) + row.tokens - last
        entries[row.id], lengths[row.id] = list(inherited), row.tokens
        for each in live:
            if each[0] == read or each[0] in marks:
                each[1] = row.time + SECONDS[ttl]
        for mark in set(marks) - {each[0] for each in live}:
            entries[row.id].append([mark, row.time + SECONDS[ttl]])
    return total / sum(row.tokens for row in rows)


def agree(name: str, rule: str, limit: int | None) -> float:
    rows, block = load_trace(name, limit), BLOCK_TOKENS[name]
    provider, direct = billed_by_provider(name, rows, rule), billed_by_rows(rows, block, rule)
    assert provider == pytest.approx(direct, rel=0.002)
    return provider


@pytest.mark.parametrize(("name", "rule"), [("agent_sessions", "system2-1h"), ("chat_prefixes", "last-5m")])
def test_the_start_of_a_trace(name: str, rule: str) -> None:
    agree(name, rule, 600)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "rule", "ratio"),
    [
        ("agent_sessions", "last-5m", 0.218),
        ("agent_sessions", "last-1h", 0.195),
        ("agent_sessions", "system2-5m", 0.207),
        ("agent_sessions", "system2-1h", 0.189),
        ("chat_prefixes", "last-5m", 0.965),
        ("chat_prefixes", "last-1h", 1.370),
        ("chat_prefixes", "system2-5m", 0.963),
        ("chat_prefixes", "system2-1h", 1.369),
    ],
)
def test_a_whole_trace(name: str, rule: str, ratio: float) -> None:
    assert agree(name, rule, None) == pytest.approx(ratio, abs=0.0015)
