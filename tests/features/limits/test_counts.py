"""The counters of limits: memory, SQLite and Valkey decide alike, and processes share the last two."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from knapcache.errors import StoreError
from knapcache.features.limits.core import (
    ALL,
    KEPT_WINDOWS,
    SLOT_SECONDS,
    SLOTS_AHEAD,
    STALE_SECONDS,
    CallAmounts,
    Charge,
    Counts,
    LimitValues,
    Operation,
    Read,
    Reserve,
    Scope,
)
from knapcache.features.limits.sqlite_counts import SqliteCounts
from tests.features.limits.conftest import OpenCounts

NOW = 1_780_000_000.0
CALL = CallAmounts(1, 0.5, 100.0)


def scope(name: str = "team", **limits: float) -> Scope:
    return Scope(name, LimitValues(**limits))


def reserve(counts: Counts, scopes: tuple[Scope, ...], now: float = NOW, amounts: CallAmounts = CALL) -> str | None:
    """Return the scope and the limit that refuse a call, or None."""
    refusal = counts.apply([Reserve(scopes, amounts)], now)[0].refusal
    return None if refusal is None else f"{refusal.scope} {refusal.limit}"


def charge(
    counts: Counts, scopes: tuple[Scope, ...], usd: float = 0.5, tokens: float = 100.0, now: float = NOW
) -> None:
    counts.apply([Charge(scopes, CALL, CallAmounts(0, usd, tokens))], now)


def test_a_reservation_counts_until_it_is_replaced_by_the_cost(open_counts: OpenCounts) -> None:
    counts, team = open_counts("one"), (scope(usd_per_day=1.0),)
    assert reserve(counts, team) is None
    assert reserve(counts, team) is None
    assert reserve(counts, team) == "team usd_per_day"
    charge(counts, team, usd=0.1)
    assert reserve(counts, team) is None
    assert reserve(counts, team) == "team usd_per_day"
    (usage,) = counts.apply([Read(team)], NOW)[0].usages
    assert (usage.usd_day, usage.usd_month) == (0.1, 0.1)
    assert usage.in_flight == CallAmounts(2, 1.0, 200.0)
    assert sum(usage.requests) == 3, "a refused call is not counted"
    assert sum(usage.tokens) == 100


def test_a_call_that_one_scope_refuses_counts_in_none(open_counts: OpenCounts) -> None:
    counts, whole = open_counts("one"), scope(ALL, concurrent=1)
    team, other = scope(requests_per_minute=10), scope("other", requests_per_minute=10)
    assert reserve(counts, (team, whole)) is None
    assert reserve(counts, (other, whole)) == f"{ALL} concurrent"
    (usage,) = counts.apply([Read((other,))], NOW)[0].usages
    assert (sum(usage.requests), usage.in_flight) == (0, CallAmounts())
    charge(counts, (team, whole))
    assert reserve(counts, (other, whole)) is None


def test_a_minute_and_a_day_pass(open_counts: OpenCounts) -> None:
    counts, team = open_counts("one"), (scope(requests_per_minute=2, usd_per_day=3.0, usd_per_month=4.0),)
    for _ in range(2):
        assert reserve(counts, team) is None
        charge(counts, team, usd=2.0, tokens=0.0)
    assert reserve(counts, team) == "team usd_per_day"
    tomorrow = NOW + 86_400
    assert reserve(counts, team, tomorrow) == "team usd_per_month"
    month = (scope(requests_per_minute=2, usd_per_day=3.0),)
    assert reserve(counts, month, tomorrow) is None
    assert reserve(counts, month, tomorrow + 1) is None
    assert reserve(counts, month, tomorrow + 59) == "team requests_per_minute"
    assert reserve(counts, month, tomorrow + 66) is None


@pytest.mark.parametrize("behind", [1, SLOT_SECONDS, SLOTS_AHEAD * SLOT_SECONDS])
def test_a_clock_that_is_behind_admits_no_second_limit(open_counts: OpenCounts, behind: int) -> None:
    """The clock was set back, or another machine's clock is ahead."""
    counts, begin = open_counts("one"), NOW // SLOT_SECONDS * SLOT_SECONDS
    requests, tokens = (scope("a", requests_per_minute=3),), (scope("b", tokens_per_minute=250),)
    for team in (requests, tokens):
        for _ in range(3):
            assert reserve(counts, team, begin) is None
            charge(counts, team, now=begin)
        assert reserve(counts, team, begin - behind) is not None
        (usage,) = counts.apply([Read(team)], begin - behind)[0].usages
        assert (usage.requests[-1], usage.tokens[-1]) == (3, 300)
    assert reserve(counts, requests, begin - (SLOTS_AHEAD + 1) * SLOT_SECONDS) is None, "a wrong clock ends by itself"


@pytest.mark.parametrize("wrong", [40 * 86_400.0, 10 * 366 * 86_400.0, -40 * 86_400.0])
def test_a_clock_that_is_wrong_for_a_while_does_not_reset_a_spend_limit(open_counts: OpenCounts, wrong: float) -> None:
    counts, team = open_counts("one"), (scope(usd_per_day=1.0, usd_per_month=1.0),)
    assert reserve(counts, team) is None
    charge(counts, team, usd=2.0)
    for _ in range(3):
        counts.beat({}, NOW + wrong)
        assert reserve(counts, team, NOW + wrong) in (None, "team usd_per_day")
        charge(counts, team, usd=2.0, now=NOW + wrong)
        counts.beat({}, NOW + wrong)
    counts.beat({}, NOW)
    assert reserve(counts, team) == "team usd_per_day"
    (usage,) = counts.apply([Read(team)], NOW)[0].usages
    assert (usage.usd_day, usage.usd_month) == (2.0, 2.0)


def test_all_forms_decide_alike(open_counts: OpenCounts) -> None:
    """Random operations: every form returns what the form in memory returns."""
    counts, model, chance = open_counts("one"), SqliteCounts(), random.Random(11)
    scopes = (
        scope("a", usd_per_day=60.0, requests_per_minute=12, concurrent=4),
        scope("b", usd_per_month=30.0, tokens_per_minute=6000),
        scope(ALL, usd_per_day=70.0, concurrent=7),
    )
    now = NOW
    open_calls: list[Reserve] = []
    refused: set[tuple[str, str]] = set()
    for _ in range(40):
        now += chance.choice((0.0, 0.4, 3.0, 9.0))
        batch: list[Operation] = []
        for _ in range(chance.randrange(1, 8)):
            chosen = (chance.choice(scopes[:2]), scopes[2])
            amounts = CallAmounts(1, chance.choice((0.0, 0.25, 1.5)), float(chance.randrange(500)))
            if open_calls and chance.random() < 0.45:
                taken = open_calls.pop(chance.randrange(len(open_calls)))
                paid = CallAmounts(0, taken.amounts.usd * chance.choice((0.0, 1.0, 2.0)), taken.amounts.tokens)
                batch.append(Charge(taken.scopes, taken.amounts, paid))
            else:
                batch.append(Reserve(chosen, amounts))
        batch.append(Read(scopes))
        expected, found = model.apply(batch, now), counts.apply(batch, now)
        for operation, one, other in zip(batch, expected, found, strict=True):
            assert (one.refusal is None) == (other.refusal is None)
            if one.refusal is not None and other.refusal is not None:
                assert one.refusal[:2] == other.refusal[:2]
                refused.add(one.refusal[:2])
            elif isinstance(operation, Reserve):
                open_calls.append(operation)
            for mine, theirs in zip(one.usages, other.usages, strict=True):
                assert theirs.in_flight == pytest.approx(mine.in_flight)
                assert theirs[:2] == pytest.approx(mine[:2])
                assert theirs.requests == pytest.approx(mine.requests)
                assert theirs.tokens == pytest.approx(mine.tokens)
    assert len(refused) >= 4, refused
    model.check()


def shared(open_counts: OpenCounts) -> tuple[Counts, Counts]:
    first = open_counts("one")
    if isinstance(first, SqliteCounts) and first.path is None:
        pytest.skip("memory is not shared")
    return first, open_counts("two")


def test_processes_share_the_counters(open_counts: OpenCounts) -> None:
    first, second = shared(open_counts)
    team = (scope(requests_per_minute=3, concurrent=2),)
    assert reserve(first, team) is None
    assert reserve(second, team) is None
    assert reserve(first, team) == "team concurrent"
    charge(first, team)
    assert reserve(second, team) is None
    charge(second, team)
    assert reserve(first, team) == "team requests_per_minute"


def test_calls_of_a_dead_process_count_as_paid(open_counts: OpenCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = shared(open_counts)
    team = (scope(usd_per_day=10.0, concurrent=1),)
    assert reserve(first, team) is None
    if isinstance(second, SqliteCounts):
        second.beat({}, NOW + STALE_SECONDS - 1)
        assert reserve(second, team) == "team concurrent"
        second.beat({}, NOW + STALE_SECONDS + 1)
    else:  # the server has its own clock
        monkeypatch.setattr("knapcache.features.limits.redis_counts.STALE_SECONDS", -1.0)
    assert reserve(second, team) is None
    (usage,) = second.apply([Read(team)], NOW)[0].usages
    assert usage.usd_day >= 0.5


def test_calls_of_a_process_that_died_before_the_clock_was_set_back_end(tmp_path: Path) -> None:
    path, team = tmp_path / "limits.sqlite", (scope(usd_per_day=10.0, concurrent=1),)
    dead, alive = SqliteCounts(path, "dead"), SqliteCounts(path, "alive")
    assert reserve(dead, team, NOW + 366 * 86_400) is None
    alive.beat({}, NOW)
    assert reserve(alive, team) is None
    (usage,) = alive.apply([Read(team)], NOW)[0].usages
    assert usage.usd_day == 0.5, "counted as paid"
    alive.beat({"team": CALL}, NOW + 1)
    assert reserve(alive, team, NOW + 2) == "team concurrent"
    dead.close()
    alive.close()


def test_a_beat_repairs_the_calls_in_flight(open_counts: OpenCounts) -> None:
    """After an operation of which nobody knows whether it took effect."""
    counts, team = open_counts("one"), (scope(concurrent=2),)
    assert reserve(counts, team) is None
    assert reserve(counts, team) is None
    counts.beat({"team": CALL}, NOW)
    assert reserve(counts, team) is None
    assert reserve(counts, team) == "team concurrent"
    counts.beat({"team": CallAmounts()}, NOW)
    (usage,) = counts.apply([Read(team)], NOW)[0].usages
    assert usage.in_flight == CallAmounts()


def test_threads_of_two_processes_never_exceed_a_limit(open_counts: OpenCounts) -> None:
    first, second = shared(open_counts)
    team = (scope(requests_per_minute=57),)
    admitted: list[str | None] = []

    def call(counts: Counts) -> None:
        admitted.extend([reserve(counts, team) for _ in range(50)])

    threads = [threading.Thread(target=call, args=(counts,)) for counts in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert admitted.count(None) == 57


def test_a_file_survives_a_restart_and_forgets_what_is_old(tmp_path: Path) -> None:
    path, team = tmp_path / "limits.sqlite", (scope(usd_per_day=1.0),)
    counts = SqliteCounts(path, "one")
    assert reserve(counts, team) is None
    charge(counts, team, usd=2.0)
    counts.close()
    counts = SqliteCounts(path, "two")
    assert reserve(counts, team) == "team usd_per_day"
    for day in range(1, 40):
        charge(counts, team, usd=2.0, now=NOW + day * 86_400)
        counts.beat({}, NOW + day * 86_400)
    with counts._transaction() as connection:
        kinds = connection.execute("SELECT kind, count(*) FROM used GROUP BY kind ORDER BY kind").fetchall()
    assert kinds == [("day", KEPT_WINDOWS), ("month", 3), ("tokens", 1)]
    counts.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path, team = tmp_path / "limits.sqlite", (scope(requests_per_minute=1),)
    path.write_bytes(b"no database" * 1000)
    counts = SqliteCounts(path, "one")
    with pytest.raises(StoreError, match="limits"):
        reserve(counts, team)
    assert reserve(counts, team) is None
    assert reserve(counts, team) == "team requests_per_minute"
    assert (tmp_path / "limits.sqlite.damaged").read_bytes().startswith(b"no database")
    counts.close()


def test_a_file_whose_counters_are_damaged_while_it_is_open_is_set_aside(tmp_path: Path) -> None:
    path, team = tmp_path / "limits.sqlite", (scope(requests_per_minute=1),)
    counts = SqliteCounts(path, "one")
    assert reserve(counts, team) is None
    with counts._transaction() as connection:
        connection.execute("UPDATE used SET amount = 'no number'")
    with pytest.raises(StoreError, match="limits"):
        reserve(counts, team)
    assert reserve(counts, team) is None, "counting begins again, in another file"
    assert reserve(counts, team) == "team requests_per_minute"
    counts.close()
