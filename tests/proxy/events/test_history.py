"""Usage over time: rows add up, also across a restart."""

from __future__ import annotations

import itertools
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache import CorruptState, InvalidInput
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.admin.overview import Overview
from knapcache.proxy.events import history as subject
from knapcache.proxy.events import history_file
from knapcache.proxy.events.events import OUTCOMES, PAYMENT, Event, PaymentEvent
from knapcache.proxy.events.history import MAX_FILE, History
from knapcache.proxy.events.usage import NUMBERS, UsageRow, sum_rows
from tests.support.clock import Clock
from tests.support.events import SampleNote, SamplePart, SampleTotals, same_usage
from tests.support.events import event as any_event
from tests.support.timing import wait_until

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()
ALL_OUTCOMES = (*OUTCOMES, "unknown")


def event(outcome: str = "miss", model: str = "m", tenant: str = "t", cost: float = 1.0, **more: Any) -> Event:
    fields = {"usd": None, "upstream_seconds": 0.0, "size": 0} | more
    return any_event(outcome, time=NOON, model=model, tenant=tenant, cost=cost, **fields)


def new_history(folder: Path | None = None, clock: Clock | None = None, **more: Any) -> History:
    return History(folder, dict, clock or Clock(NOON), more.pop("zone", UTC), **more)


def points(history: History, span: str) -> UsageRow:
    return sum_rows(row for _, row in history.points(span)[1])


def test_every_outcome_is_counted_once() -> None:
    history = new_history()
    history.consume([event(outcome, usd=2.0, upstream_seconds=3.0, size=10) for outcome in ALL_OUTCOMES])
    row = history.total().report()
    outcomes = ("hits", "similar", "coalesced", "stale", "misses", "bypasses", "passthrough", "failed")
    assert [row[name] for name in outcomes] == [1, 1, 1, 1, 1, 1, 1, 3]
    assert row["requests"] == 10
    assert (row["usd_saved"], row["seconds_saved"], row["cost_saved"], row["bytes_saved"]) == (8.0, 12.0, 4.0, 40)
    assert (row["usd_spent"], row["seconds_spent"], row["cost_spent"]) == (12.0, 18.0, 6.0)
    assert row["would"] == {"none": 10.0}
    history.check()


events = st.builds(
    event,
    st.sampled_from(ALL_OUTCOMES),
    st.sampled_from(["a", "b", ""]),
    st.sampled_from(["x", "y"]),
    st.floats(0, 1e6),
    usd=st.none() | st.floats(0, 1e3),
    upstream_seconds=st.floats(0, 100),
    size=st.integers(0, 10**6),
)
batches = st.lists(st.tuples(st.floats(0, 40 * 86400), st.lists(events, max_size=5)), max_size=20)


@given(batches, st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata", "America/Sao_Paulo"]))
def test_the_points_of_a_span_add_up_to_what_was_consumed_in_it(
    batches_at: list[tuple[float, list[Event]]], zone: str
) -> None:
    clock = Clock(NOON)
    history = new_history(None, clock, zone=ZoneInfo(zone))
    consumed: list[tuple[float, UsageRow]] = []
    for later, batch in sorted(batches_at, key=lambda one: one[0]):
        clock.now = NOON + later
        history.consume(batch)
        row = UsageRow()
        for one in batch:
            row.count(one)
        consumed.append((clock.now, row))
    history.check()
    assert same_usage(points(history, "all"), history.total())
    assert same_usage(sum_rows(row for _, row in consumed), history.total())
    assert same_usage(sum_rows(history.models().values()), history.total())
    assert same_usage(sum_rows(history.tenants().values()), history.total())
    for span, length in (("hour", 60), ("day", 288), ("month", 124)):
        step, found = history.points(span)
        assert len(found) == length
        times = [when for when, _ in found]
        assert [b - a for a, b in itertools.pairwise(times)] == [step] * (length - 1)
        assert times[-1] <= clock.now < times[-1] + step
        assert same_usage(points(history, span), sum_rows(row for when, row in consumed if when >= times[0]))
    assert same_usage(history_file.unpack(history_file.pack(history._table)).total, history.total())


@pytest.mark.parametrize(
    ("zone", "before", "hours"),
    [
        ("Europe/Berlin", datetime(2026, 3, 29), 23),
        ("Europe/Berlin", datetime(2026, 10, 25), 25),
        ("America/Sao_Paulo", datetime(2018, 11, 4), 23),  # the day begins at one
        ("Asia/Kolkata", datetime(2026, 3, 29), 24),
    ],
)
def test_today_begins_at_midnight_also_when_clocks_change(zone: str, before: datetime, hours: int) -> None:
    place = ZoneInfo(zone)
    midnight = before.replace(tzinfo=place).timestamp()
    clock = Clock(midnight - 1)
    history = new_history(None, clock, zone=place)
    history.consume([event()])
    assert history.today().requests == 1
    clock.now = midnight
    assert history.today().requests == 0
    for k in range(hours):
        clock.now = midnight + 3600 * k + 1800
        history.consume([event()])
    assert history.today().requests == hours
    clock.now = midnight + 3600 * hours
    assert history.today().requests == 0
    step, found = history.points("all")
    assert step == 86400
    assert [row.requests for _, row in found] == [1, hours, 0]
    assert found[2][0] - found[1][0] == 3600 * hours


def test_old_minutes_and_hours_are_dropped_and_days_stay() -> None:
    clock = Clock(NOON)
    history = new_history(None, clock)
    for k in range(200):
        clock.now = NOON + k * 7 * 3600.0
        history.consume([event()])
    table = history._table
    assert len(table.minutes) <= history_file.MAX_MINUTES
    assert len(table.hours) <= history_file.MAX_HOURS
    assert max(table.hours) - min(table.hours) < history_file.MAX_HOURS
    assert points(history, "all").requests == history.total().requests == 200
    assert points(history, "month").requests < 200
    clock.now = NOON - 10 * 365 * 86400.0  # set back by ten years
    history.consume([event()])
    history.check()  # moves what was consumed into the table
    assert len(table.minutes) == 1
    assert points(history, "hour").requests == 1
    assert points(history, "all").requests == 201
    history.check()


def test_a_clock_that_was_at_1970_makes_no_endless_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(5.0)
    history = new_history(None, clock)
    history.consume([event()])
    clock.now = NOON
    history.consume([event()])
    _, found = history.points("all")
    assert len(found) == history_file.MAX_DAYS
    assert found[0][1].requests == found[-1][1].requests == 1
    monkeypatch.setattr(history_file, "MAX_DAYS", 3)
    for k in range(6):
        clock.now = NOON + 86400.0 * k
        history.consume([event()])
    assert len(history._table.days) == 3
    history.check()


def test_the_number_of_names_is_bounded() -> None:
    history = new_history()
    history.consume([event(model=f"m{k}", tenant=f"t{k}") for k in range(1500)])
    history.consume([event(model="m3"), event(model="\ud800" * 500)])
    assert len(history.models()) == len(history.tenants()) == 201
    assert history.models()["m3"].requests == 2
    assert history.models()["other"].requests == 1301
    history.check()
    history_file.unpack(history_file.pack(history._table))
    longest = new_history()
    longest.consume([event(model="x" * 1000), event(model="\ud800"), event(model="x" * 10**6)])
    assert [len(name) for name in longest.models()] == [100, 1, len("other")]
    history_file.unpack(history_file.pack(longest._table))


class Shadows:
    """The statistics of a cache with shadows."""

    def __init__(self, **spent: float) -> None:
        self.spent: dict[str, float] | None = spent

    def __call__(self) -> dict[str, Any]:
        return {} if self.spent is None else {"shadows": dict(self.spent)}


def test_savings_of_shadows_are_differences_of_their_costs() -> None:
    shadows, clock = Shadows(none=100.0, lru=50.0), Clock(NOON)
    history = History(None, shadows, clock, UTC)  # the cache has already served requests
    history.consume([event("miss", cost=6.0), event("hit", cost=4.0)])
    shadows.spent = {"none": 110.0, "lru": 53.0}
    history.poll_shadows()
    history.poll_shadows()
    assert history.total().would() == {"none": 10.0, "lru": 3.0}
    clock.now += 60
    history.consume([event("bypass", cost=5.0)])  # no shadow sees it: it costs the same with every policy
    assert history.total().would() == {"none": 15.0, "lru": 8.0}
    shadows.spent = {"none": 2.0, "lru": 1.0}  # the shadows started again
    history.consume([event("hit", cost=2.0)])
    history.poll_shadows()
    assert history.total().would() == {"none": 17.0, "lru": 9.0}
    shadows.spent = None  # another process is the owner
    history.poll_shadows()
    shadows.spent = {"none": 30.0, "lru": 10.0}  # this process is the owner again
    history.consume([event("miss", cost=30.0)])
    history.poll_shadows()
    assert history.total().would() == {"none": 47.0, "lru": 19.0}
    assert [row.would().get("lru") for _, row in history.points("hour")[1][-2:]] == [3.0, 16.0]
    assert same_usage(points(history, "day"), history.total())
    history.check()


def test_statistics_that_raise_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[str, Any]:
        raise CorruptState("no")

    history = History(None, broken, Clock(NOON), UTC)
    history.consume([event()])
    history.poll_shadows()
    assert history.total().requests == 1
    assert "Shadow policies not read" in caplog.text


def test_answers_with_and_without_a_price_are_counted() -> None:
    history = new_history()
    history.consume([event("miss", usd=0.5, tokens=100), event("hit", usd=0.5, tokens=100), event("hit", tokens=7)])
    history.consume([event("passthrough", cost=0.0), event("failed", cost=0.0)])
    row = history.total()
    assert (row.priced, row.unpriced) == (2, 1)
    assert (row.usd_spent, row.usd_saved) == (0.5, 0.5), "an unknown price adds no dollars"
    assert (row.tokens_spent, row.tokens_saved) == (100, 107)
    history.consume_notes([(PAYMENT, PaymentEvent("e", "m", "t", usd, 2.0, 0.25, 9, 0.125)) for usd in (0.25, None)])
    paid = history.total()
    assert (paid.requests, paid.priced, paid.unpriced) == (row.requests, 3, 2), "a payment is no request"
    assert (paid.usd_spent, paid.usd_estimated, paid.tokens_spent) == (0.75, 0.25, 118)
    assert paid.seconds_spent == row.seconds_spent + 4.0
    history.check()


@pytest.mark.parametrize("shadows", [{"none": 1.0}, None])
def test_evictions_are_counted_also_across_restarts_of_the_cache(shadows: dict[str, float] | None) -> None:
    stats: dict[str, Any] = {"shadows": shadows, "evictions": 5}
    clock = Clock(NOON)
    history = History(None, lambda: stats, clock, UTC)
    for evictions, rejected, total in ((5, 0, 0), (7, 0, 2), (7, 3, 5), (1, 0, 6)):
        stats |= {"evictions": evictions, "rejected_by_policy": rejected}
        history.poll_shadows()
        assert history.total().evictions == total
    clock.now += 60
    stats["evictions"] = 2
    history.poll_shadows()
    assert [row.evictions for _, row in history.points("hour")[1][-2:]] == [6, 1]
    history.check()
    assert history_file.unpack(history_file.pack(history._table)).total.evictions == 7


def test_a_file_of_version_1_is_still_read(tmp_path: Path) -> None:
    old = [4, 1, 0, 0, 2, 0, 0, 1, 90, 0.5, 0.25, 2.0, 1.0, 0.5, 0.25]
    day = datetime(2026, 6, 1, tzinfo=UTC).toordinal()
    document = {"version": 1, "since": NOON, "total": [*old, {"lru": 0.2}], "models": {"m": old}, "tenants": {"t": old},
                "minutes": {}, "hours": {}, "days": {str(day): [*old, {"lru": 0.2}]}}  # fmt: skip
    (tmp_path / "history.json").write_text(json.dumps(document))
    history = new_history(tmp_path)
    row = history.total()
    assert (row.requests, row.hits, row.cost_saved, row.tokens_saved, row.evictions) == (4, 1, 0.25, 0, 0)
    assert row.shadows == {"lru": 0.2}
    history.consume([event()])
    history.close()
    assert json.loads((tmp_path / "history.json").read_bytes())["version"] == 5


def test_history_survives_a_restart(tmp_path: Path) -> None:
    clock = Clock(NOON)
    shadows = Shadows(none=0.0, lru=0.0)
    history = History(tmp_path / "data", shadows, clock, UTC)
    history.consume([event("hit", "é", "team", usd=0.25), event("miss")])
    shadows.spent = {"none": 2.0, "lru": 1.0}
    history.close()
    path = tmp_path / "data" / "history.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_bytes())["version"] == 5
    again = History(tmp_path / "data", Shadows(none=0.0, lru=0.0), clock, UTC)
    assert again.total() == history.total()
    assert again.models() == history.models()
    assert again.points("hour") == history.points("hour")
    assert again.since == history.since == NOON
    again.consume([event()])
    again.close()
    assert new_history(tmp_path / "data").total().requests == 3


def test_sums_of_features_survive_a_restart_and_a_time_while_the_feature_is_off(tmp_path: Path) -> None:
    clock, on = Clock(NOON), {"sample": SampleTotals}
    history = new_history(tmp_path, clock, totals=on)
    history.consume([event(sample=SamplePart("a"), other=SampleNote(1)), event("hit")])
    history.consume_notes([("sample", SampleNote(2)), ("other", SampleNote(1))])
    assert history.sums("sample") == (SampleTotals(1, 2), SampleTotals(1, 2))
    history.close()
    written = json.loads((tmp_path / "history.json").read_bytes())["sample"]
    sums, day = {"requests": 1, "noted": 2}, datetime.fromtimestamp(NOON, UTC).toordinal()
    assert written == {"total": sums, "day": day, "today": sums}
    without = new_history(tmp_path, clock)
    without.consume([event(sample=SamplePart("a"))])
    without.consume_notes([("sample", SampleNote(2))])
    without.close()
    assert json.loads((tmp_path / "history.json").read_bytes())["sample"] == written
    clock.now += 86_400
    again = new_history(tmp_path, clock, totals=on)
    assert (again.total().requests, again.sums("sample")) == (3, (SampleTotals(), SampleTotals(1, 2)))
    again.consume([event(sample=SamplePart("ab"))])
    assert again.sums("sample") == (SampleTotals(2), SampleTotals(3, 2))
    again.check()


@pytest.mark.parametrize("sums", [None, {}, {"day": -1}, {"day": 1, "total": {"requests": 1, "noted": 2}}])
def test_a_history_with_damaged_sums_is_refused(sums: Any) -> None:
    document = json.loads(history_file.pack(history_file.HistoryTable(since=1.0))) | {"sample": sums}
    with pytest.raises(InvalidInput):
        history_file.unpack(json.dumps(document).encode(), {"sample": SampleTotals})
    assert history_file.unpack(json.dumps(document).encode()).unread == {"sample": sums}


def test_the_policies_of_all_points_add_up_to_those_of_the_total() -> None:
    """Shadows save nothing in a minute of misses only, and cost as much as no cache in it."""
    clock, shadows = Clock(NOON), Shadows(none=0.0, lru=0.0)
    history = History(None, shadows, clock, UTC)
    history.consume([event("miss", cost=0.25)] * 10 + [event("bypass", cost=0.5)])
    shadows.spent = {"none": 2.5, "lru": 2.5}
    history.poll_shadows()
    clock.now += 60
    history.consume([event("hit", cost=0.25)] * 10)
    shadows.spent = {"none": 5.0, "lru": 2.5}
    overview = Overview(cast("AdminContext", SimpleNamespace(history=history, refresh=lambda: None)))
    points = overview.history("hour").points
    assert all(set(point.would) == {"none", "lru"} for point in points)
    added = {name: sum(point.would[name] for point in points) for name in ("none", "lru")}
    assert added == history.today().would() == {"none": 5.5, "lru": 3.0}


def test_the_thread_saves_and_then_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "POLL_INTERVAL", 0.01)
    monkeypatch.setattr(subject, "SAVE_INTERVAL", 0.05)
    history = new_history(tmp_path)
    assert not (tmp_path / "history.json").exists()
    for round_ in (1, 2):  # a new thread starts
        history.consume([event()])
        wait_until(lambda: history._thread is None, "the end of the thread")
        assert new_history(tmp_path).total().requests == round_
    before = (tmp_path / "history.json").stat().st_ino
    assert history.save()
    assert (tmp_path / "history.json").stat().st_ino == before  # nothing has changed
    history.close()


def test_a_failed_save_is_logged_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    history = new_history(tmp_path / "data")
    caplog.clear()
    history.consume([event()])
    assert not history.save()
    assert not history.save()
    assert caplog.text.count("History not saved") == 1
    (tmp_path / "data").unlink()
    assert history.save()
    assert new_history(tmp_path / "data").total().requests == 1
    history.close()


def link_to_a_history(path: Path) -> None:
    history = new_history(path.parent / "elsewhere")
    history.consume([event()])
    history.close()
    path.symlink_to(path.parent / "elsewhere" / "history.json")


def endless_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_FILE + 1)


@pytest.mark.parametrize("plant", [link_to_a_history, os.mkfifo, endless_file])
def test_what_is_not_a_history_file_of_ours_is_renamed(
    plant: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path / "history.json")
    with caplog.at_level(logging.WARNING):
        history = new_history(tmp_path)
    assert "renamed to history.json.damaged" in caplog.text
    assert history.total().requests == 0
    history.consume([event()])
    history.close()
    assert new_history(tmp_path).total().requests == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda text: text[: len(text) // 2],
        lambda _: b"[]",
        lambda _: b"\xff\xfe",
        lambda text: text.replace(b'"version":5', b'"version":6'),
        lambda text: text.replace(b'"version":5', b'"version":1'),
        lambda text: text.replace(b'"version":5', b'"version":[5]'),
        lambda text: text.replace(b'"since":', b'"since":-'),
        lambda text: text.replace(b'"total":[2', b'"total":[3'),
        lambda text: text.replace(b'"total":[2', b'"total":[-2'),
        lambda text: text.replace(b'"total":[2', b'"total":["2"'),
        lambda text: text.replace(b'"total":[2', b'"total":[true'),
        lambda text: text.replace(b'"days":{"7', b'"days":{"x'),
        lambda text: text.replace(b'"days":{"', b'"days":{"9999'),
        lambda text: text.replace(b'"lru"', b'"fifo"', 1),
    ],
)
def test_a_damaged_file_is_renamed(damage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shadows = Shadows(none=0.0, lru=0.0)
    history = History(tmp_path, shadows, Clock(NOON), UTC)
    history.consume([event(), event("hit")])
    shadows.spent = {"none": 2.0, "lru": 1.0}
    history.close()
    path = tmp_path / "history.json"
    good = path.read_bytes()
    bad = damage(good)
    assert bad != good
    path.write_bytes(bad)
    with caplog.at_level(logging.WARNING):
        again = new_history(tmp_path)
    assert "renamed to history.json.damaged" in caplog.text
    assert (tmp_path / "history.json.damaged").read_bytes() == bad
    assert again.total() == UsageRow()
    again.consume([event()])
    again.close()
    assert new_history(tmp_path).total().requests == 1


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_other_files_raise_invalid_input(text: bytes) -> None:
    with pytest.raises(InvalidInput):
        history_file.unpack(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(json_values)
def test_other_values_are_not_rows(value: Any) -> None:
    try:
        UsageRow.from_list(value, len(NUMBERS))
    except InvalidInput:
        return
    assert isinstance(value, list)
    assert len(value) >= len(NUMBERS)


def test_polls_and_reads_run_beside_consume() -> None:
    spent = {"none": 0.0, "lru": 0.0}
    history = History(None, lambda: {"shadows": dict(spent)}, time.time)
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            history.poll_shadows()
            history.points("day")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        history.consume([event("hit", cost=1.0)])
        spent["none"] += 1.0
    done.set()
    for thread in threads:
        thread.join()
    history.close()
    assert history.total().would() == {"none": 300.0, "lru": 0.0}
    history.check()
