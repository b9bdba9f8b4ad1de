"""Bills of rules against a second model of the provider, which compares whole requests segment by segment."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.features.prefix.lab import read_prefix_trace, replay_rules
from knapcache.features.prefix.learner import PrefixLearner
from knapcache.features.prefix.request import PrefixRequest
from knapcache.features.prefix.tariff import ANTHROPIC
from knapcache.lab.traces.sessions import COLUMNS
from knapcache_experiments.measured import traces_directory
from tests.support.examples import examples

SHORT, LONG, MINIMUM = 300.0, 3600.0, 1024
Segments = tuple[tuple[int, int], ...]
"""A request: (number, tokens) of each segment. Equal numbers are equal texts."""


class Sent(NamedTuple):
    time: float
    segments: Segments
    system: bool
    """Whether the first segment is a system prompt."""


def tokens(segments: Segments) -> int:
    return sum(length for _, length in segments)


def common(one: Segments, other: Segments) -> int:
    """Return the number of leading segments that are equal."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@st.composite
def traffic(draw: st.DrawFn) -> list[Sent]:
    """Draw requests: new conversations, continuations, branches that leave an earlier request, and repetitions."""
    sent: list[Sent] = []
    now, number = 0.0, 0
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from((0.0, 20.0, 299.0, 300.0, 301.0, 1800.0, 3600.0, 3601.0)))
        base = draw(st.sampled_from([None, *range(len(sent))]))
        start: Segments = () if base is None else sent[base].segments
        system = draw(st.booleans()) if base is None else sent[base].system
        kept = start[: draw(st.integers(min(1, len(start)), len(start)))]
        fresh = draw(st.lists(st.sampled_from((1, 300, 1023, 1024, 5000)), min_size=1, max_size=3))
        if kept == start and kept and draw(st.booleans()):
            fresh = []  # the same request again
        segments = kept + tuple((number + k, length) for k, length in enumerate(fresh))
        number += len(fresh)
        sent.append(Sent(now, segments, system))
    return sent


def write(path: Path, sent: Sequence[Sent], block: int = 1) -> list[PrefixRequest]:
    """Write requests as a trace that counts shared tokens in whole blocks, and read it."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        if block == 1:  # short traces may have lengths that look like whole blocks
            writer.writerows([(0, "x", 0, -1, 0, 2, 7, 0, "text", ""), (0, "x", 1, 0, 1, 2, 7, 0, "text", "")])
        for k, (time, segments, system) in enumerate(sent):
            shared = [tokens(segments[: common(segments, each.segments)]) for each in sent[:k]]
            most = max(shared, default=0)
            parent = max((j for j in range(k) if shared[j] == most and most), default=-1)
            length, head = tokens(segments), segments[0][1] if system else 0
            writer.writerow((time, "s", k, parent, most // block * block, length, 7, head, "text", ""))
    return read_prefix_trace(path, ANTHROPIC.minimum_of).requests[2 if block == 1 else 0 :]


class Provider:
    """Anthropic's prefix cache as its documentation puts it: whole prefixes, compared one by one."""

    def __init__(self) -> None:
        self.cached: dict[Segments, list[float]] = {}  # prefix -> time to live, expiry

    def pay(self, request: Sent, marks: Sequence[tuple[int, float]]) -> tuple[float, int]:
        """Return the bill of a request with marks, (segments, time to live) each, and the tokens that it read."""
        now, segments = request.time, request.segments
        if not marks:
            return float(tokens(segments)), 0
        last, last_long = (max((k for k, ttl in marks if ttl >= least), default=0) for least in (SHORT, LONG))
        live = [k for k in range(last + 1) if self.cached.get(segments[:k], (0.0, -1.0))[1] > now]
        hit = max(live, default=0)
        read, short_end, long_end = (tokens(segments[:k]) for k in (hit, last, last_long))
        if hit:
            entry = self.cached[segments[:hit]]
            entry[1] = max(entry[1], now + entry[0])
        for k, ttl in marks:
            if k in live:
                entry = self.cached[segments[:k]]
                entry[0] = max(entry[0], ttl)
            else:
                entry = self.cached[segments[:k]] = [ttl, 0.0]
            entry[1] = max(entry[1], now + entry[0])
        long_written = max(0, long_end - read)
        short_written = max(0, short_end - max(read, long_end))
        plain = tokens(segments) - read - long_written - short_written
        return 0.1 * read + 2.0 * long_written + 1.25 * short_written + plain, read


def marks_of(rule: str, sent: Sequence[Sent], k: int) -> list[tuple[int, float]]:
    """Return the marks of a fixed rule on the k-th request."""
    if rule == "none":
        return []
    family, _, name = rule.partition("-")
    segments = sent[k].segments
    ends = {len(segments)}
    if family == "system2":
        before = [len(e.segments) for e in sent[:k] if segments[: len(e.segments)] == e.segments != segments]
        ends |= {max(before, default=len(segments)), 1 if sent[k].system else len(segments)}
    ttl = {"5m": SHORT, "1h": LONG}[name]
    return [(end, ttl) for end in sorted(ends) if tokens(segments[:end]) >= MINIMUM]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "trace.csv"


@settings(max_examples=examples(25, 100))
@given(sent=traffic())
def test_fixed_rules_pay_what_the_price_list_says(sent: list[Sent], path: Path) -> None:
    requests = write(path, sent)
    rules = ["none", "last-5m", "last-1h", "system2-5m", "system2-1h"]
    plain = sum(tokens(each.segments) for each in sent)
    for upgrades in (True, False):
        bills = replay_rules(requests, rules, ANTHROPIC, upgrades=upgrades)
        for bill in bills:
            provider = Provider()
            expected = sum(provider.pay(each, marks_of(bill.rule, sent, k))[0] for k, each in enumerate(sent))
            assert bill.bill == pytest.approx(expected), bill.rule
            assert bill.ratio == pytest.approx(expected / plain)
            assert (bill.requests, bill.input_tokens) == (len(sent), plain)
        _, last_short, last_long, system_short, system_long = (bill.bill for bill in bills)
        assert system_short <= last_short * (1 + 1e-9), "the tournament relies on it"
        assert system_long <= last_long * (1 + 1e-9)


@settings(max_examples=examples(20, 100))
@given(sent=traffic())
def test_the_tier_pays_for_its_marks_what_the_price_list_says(sent: list[Sent], path: Path) -> None:
    requests = write(path, sent)
    learner, provider, total = PrefixLearner(ANTHROPIC), Provider(), 0.0
    for request, each in zip(requests, sent, strict=True):
        placement = learner.place(request)
        assert not placement.rule.startswith("last-")
        lengths = [tokens(each.segments[:k]) for k in range(len(each.segments) + 1)]
        marks = [(lengths.index(request.positions[mark.at].tokens), mark.ttl) for mark in placement.marks]
        cost, read = provider.pay(each, marks)
        learner.report(placement, placement.bill._replace(read=read))
        total += cost
    (bill,) = replay_rules(requests, ["learned"], ANTHROPIC)
    assert bill.bill == pytest.approx(total)


def test_shared_tokens_in_whole_blocks_give_the_bills_of_exact_ones(tmp_path: Path) -> None:
    sent = [Sent(0.0, ((0, 5001),), True), Sent(10.0, ((90, 3000),), False)]
    for k in range(1, 20):
        sent.append(Sent(20.0 * k, (*sent[-2].segments, (k, 1000 + k)), sent[-2].system))
    exact, rounded = (write(tmp_path / f"{block}.csv", sent, block) for block in (1, 64))
    assert exact == rounded
    assert len(rounded[-1].positions) == 11


def conversation(gap: float, turns: int) -> list[Sent]:
    return [Sent(gap * k, tuple((j, 2000) for j in range(k + 1)), False) for k in range(turns)]


@pytest.mark.parametrize(
    ("gap", "rule", "ratio"),
    [
        (60.0, "last-5m", (1.25 * 20 + 0.1 * 190) / 210),
        (301.0, "last-5m", 1.25),
        (301.0, "last-1h", (2.0 * 20 + 0.1 * 190) / 210),
        (3601.0, "last-1h", 2.0),
        (3601.0, "none", 1.0),
    ],
)
def test_bills_of_a_conversation_with_equal_gaps(gap: float, rule: str, ratio: float, tmp_path: Path) -> None:
    (bill,) = replay_rules(write(tmp_path / "t.csv", conversation(gap, 20)), [rule], ANTHROPIC)
    assert bill.ratio == pytest.approx(ratio)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("agent_sessions", {"last-5m": 0.2177, "last-1h": 0.1950, "system2-5m": 0.2061, "system2-1h": 0.1893}),
        ("chat_prefixes", {"last-5m": 0.9648, "last-1h": 1.3701, "system2-5m": 0.9634, "system2-1h": 1.3701}),
    ],
)
def test_fixed_rules_on_the_open_traces(name: str, expected: dict[str, float]) -> None:
    path = traces_directory() / f"{name}.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} does not exist")
    requests = read_prefix_trace(path, ANTHROPIC.minimum_of).requests
    bills = replay_rules(requests, list(expected), ANTHROPIC)
    assert {bill.rule: bill.ratio for bill in bills} == pytest.approx(expected, abs=1e-4)
