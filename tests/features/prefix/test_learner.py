"""The learner: marks that providers accept, balances that end as bills, and providers that do not do as expected."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.features.prefix.conversations import Conversations
from knapcache.features.prefix.learner import MIN_FAILURES, PrefixLearner
from knapcache.features.prefix.marks import MAX_MARKS
from knapcache.features.prefix.provider_cache import Mark, PrefixCache
from knapcache.features.prefix.request import Position, PrefixRequest
from knapcache.features.prefix.rules import Rule, fixed_rules, last, system2
from knapcache.features.prefix.tariff import ANTHROPIC, OPENAI_BREAKPOINTS, TARIFFS, Tariff
from knapcache.features.prefix.tournament import Tournament
from knapcache.price.input_tokens import InputTokens
from tests.support.examples import examples

SYSTEM = Position("system", 3000)


def conversations(
    count: int, turns: int, gap: Callable[[random.Random], float], *, every: float = 60.0, seed: int = 0
) -> list[PrefixRequest]:
    """Return the requests of conversations with the same system prompt, by time."""
    rng, requests = random.Random(seed), []
    for name in range(count):
        time, positions, tokens = name * every, [SYSTEM], 5000
        for turn in range(turns):
            positions = [*positions, Position((name, turn), tokens)]
            requests.append(PrefixRequest(time, tuple(positions), tokens, 0, "tool", 1024))
            time, tokens = time + gap(rng), tokens + rng.randint(200, 2000)
    return sorted(requests, key=lambda request: request.time)


def replay(
    requests: list[PrefixRequest], *, tariff: Tariff = ANTHROPIC, upgrades: bool = True
) -> Iterator[tuple[PrefixLearner, InputTokens]]:
    """Yield the learner and the bill of every request, at a provider that honours upgrades or not."""
    learner, provider = PrefixLearner(tariff), PrefixCache(tariff, upgrades=upgrades)
    for request in requests:
        placement = learner.place(request)
        bill, _ = provider.send(placement.request, placement.marks)
        learner.report(placement, bill)
        yield learner, bill


def ratio(requests: list[PrefixRequest]) -> float:
    return sum(ANTHROPIC.cost(bill) for _, bill in replay(requests)) / sum(request.tokens for request in requests)


def fixed_ratio(requests: list[PrefixRequest], name: str) -> float:
    conversations, provider = Conversations(), PrefixCache(ANTHROPIC, upgrades=False)
    rule = fixed_rules(ANTHROPIC)[name]
    bills = [provider.send(each, rule(ANTHROPIC, each, conversations.observe(each), provider))[0] for each in requests]
    return sum(ANTHROPIC.cost(bill) for bill in bills) / sum(request.tokens for request in requests)


@pytest.mark.parametrize("tariff", TARIFFS.values(), ids=list(TARIFFS))
@given(data=st.data())
@settings(max_examples=examples(8, 40))
def test_marks_are_such_that_the_provider_accepts_them(tariff: Tariff, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 10**6))
    gaps = data.draw(st.lists(st.sampled_from([1.0, 20.0, 250.0, 400.0, 2000.0, 3500.0, 8000.0]), min_size=1))
    every = data.draw(st.sampled_from([5.0, 900.0]))
    requests = conversations(8, 8, lambda rng: rng.choice(gaps), every=every, seed=seed)
    learner, provider = PrefixLearner(tariff), PrefixCache(tariff, upgrades=data.draw(st.booleans()))
    for request in requests:
        placement = learner.place(request)
        marks = placement.marks
        assert len(marks) <= MAX_MARKS
        assert [mark.at for mark in marks] == sorted({mark.at for mark in marks})
        assert [mark.ttl for mark in marks] == sorted((mark.ttl for mark in marks), reverse=True)
        assert all(request.positions[mark.at].tokens >= request.minimum for mark in marks)
        assert {mark.ttl for mark in marks} <= {tariff.short, tariff.long}
        bill, _ = provider.send(placement.request, marks)
        assert bill.total == request.tokens
        assert min(bill) >= 0
        learner.report(placement, bill)


def test_the_balance_of_a_rule_is_what_it_has_paid_when_nothing_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knapcache.features.prefix.tournament.DISCOUNT", 1.0)
    tournament, learner = Tournament(ANTHROPIC), PrefixLearner(ANTHROPIC)
    paid = dict.fromkeys(tournament.rules, 0.0)
    requests = conversations(20, 10, lambda rng: rng.expovariate(1 / 300))
    for request in requests:
        continues = learner.place(request).continues
        for name, cost in tournament.observe(request, continues).items():
            paid[name] += cost
    for name, account in tournament._accounts.items():
        account.advance(requests[-1].time + 7200.0)
        assert account.balance == pytest.approx(paid[name]), name


def test_long_gaps_are_worth_long_marks_and_single_requests_none() -> None:
    assert ratio(conversations(30, 20, lambda _: 600.0)) < 0.3
    single = [
        request._replace(positions=request.positions[1:], system=-1) for request in conversations(300, 1, lambda _: 0.0)
    ]
    assert ratio(single) == 1.0


def test_a_provider_that_does_not_honour_upgrades_is_found_out() -> None:
    requests = conversations(40, 30, lambda rng: rng.choice([20.0, 20.0, 20.0, 900.0]))
    *_, (honoured, _) = replay(requests)
    assert honoured._cache.upgrades
    assert honoured.upgrades_missed == 0 < honoured.upgrades_seen
    found = list(replay(requests, upgrades=False))
    refused = found[-1][0]
    assert not refused._cache.upgrades
    assert refused.upgrades_missed >= MIN_FAILURES
    assert refused._tournament.leader == "system2-1h"
    paid = sum(ANTHROPIC.cost(bill) for _, bill in found) / sum(request.tokens for request in requests)
    assert paid < 0.8 * fixed_ratio(requests, "system2-5m")
    assert paid < 1.2 * fixed_ratio(requests, "system2-1h")


def test_rules_change_with_the_traffic() -> None:
    requests = conversations(60, 15, lambda _: 15.0, every=20.0)
    later = requests[-1].time
    slow = conversations(60, 15, lambda _: 1500.0, every=20.0, seed=1)
    changed = [
        request._replace(
            time=request.time + later,
            positions=[each if each == SYSTEM else each._replace(id=("slow", each.id)) for each in request.positions],
        )
        for request in slow
    ]
    bills = [bill for _, bill in replay([*requests, *changed])]
    assert sum(bill.read for bill in bills[-300:]) > 0.7 * sum(bill.total for bill in bills[-300:])


def test_prefixes_that_the_provider_has_dropped_are_no_longer_expected() -> None:
    requests = conversations(40, 10, lambda _: 20.0)
    *_, (learner, _) = replay(requests)
    again = requests[-1]._replace(time=requests[-1].time + 10.0)
    placement = learner.place(again)
    assert placement.bill.read > 0
    learner.report(placement, PrefixCache(ANTHROPIC, upgrades=True).send(placement.request, placement.marks)[0])
    placement = learner.place(again._replace(time=again.time + 1.0))
    assert placement.bill.read == again.end.tokens, "the request has written its prefix anew"
    learner.report(placement, InputTokens(again.tokens, 0, 0, 0))
    assert learner.place(again._replace(time=again.time + 2.0)).bill.read == 0, "nothing was read or written"


def test_prefixes_that_another_process_has_written_are_expected() -> None:
    *_, (learner, _) = replay(conversations(40, 10, lambda _: 20.0))
    positions = (SYSTEM, Position("other", 9000), Position("end", 10_000))
    request = PrefixRequest(1e5, positions, 10_000, 0, "tool", 1024)
    placement = learner.place(request)
    learner.report(placement, InputTokens(0, 9000, 1000, 0))
    longer = request._replace(time=1e5 + 5, positions=(*positions[:2], Position("branch", 9500)), tokens=9500)
    assert learner.place(longer).bill.read == 9000


def test_openai_reads_at_marks_only() -> None:
    requests = conversations(20, 10, lambda _: 60.0)
    bills = [bill for _, bill in replay(requests, tariff=OPENAI_BREAKPOINTS, upgrades=False)]
    assert sum(bill.read for bill in bills[-50:]) > 0.7 * sum(bill.total for bill in bills[-50:])
    assert all(bill.long_written == 0 for bill in bills)


def test_a_clock_that_goes_back_is_tolerated() -> None:
    learner = PrefixLearner(ANTHROPIC)
    for request in conversations(10, 10, lambda rng: rng.random() * 100):
        placement = learner.place(request._replace(time=request.time + random.Random(1).choice([0.0, -50.0])))
        learner.report(placement, placement.bill)


def test_the_memory_of_a_learner_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("provider_cache", "tournament"):
        monkeypatch.setattr(f"knapcache.features.prefix.{module}.MAX_ENTRIES", 40)
    monkeypatch.setattr("knapcache.features.prefix.provider_cache.SWEEP", 10)
    monkeypatch.setattr("knapcache.features.prefix.conversations.MAX_TURNS", 40)
    monkeypatch.setattr("knapcache.features.prefix.conversations.MAX_OPEN", 40)
    learner = PrefixLearner(ANTHROPIC)
    for request in conversations(200, 3, lambda _: 40.0, every=5.0):
        placement = learner.place(request)
        learner.report(placement, placement.bill)
    accounts = learner._tournament._accounts
    for cache in (learner._cache, *(each.cache for each in accounts.values())):
        assert len(cache._entries) <= 40 + MAX_MARKS
    assert all(len(each._worth) <= len(each._ends) <= 80 for each in accounts.values())
    assert len(learner._conversations._turns) <= 40
    assert len(learner._conversations._returns._open) <= 40
    assert learner.place(request).bill.read > 0, "the newest entries are kept"


@pytest.mark.parametrize("rule", [last(300.0), system2(300.0)])
@pytest.mark.parametrize("continued", [-1, 0])
def test_prefixes_below_the_minimum_are_not_marked(rule: Rule, continued: int) -> None:
    request = Mock(positions=[Position("a", 10), Position("b", 2000)], minimum=1024, system=0)
    assert rule(Mock(reads_at_marks=True), request, Mock(at=continued), Mock()) == [Mark(1, 300.0)]
