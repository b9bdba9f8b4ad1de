"""Money over time: nothing is lost between the rows, the file, and other processes."""

from __future__ import annotations

import itertools
import json
import logging
import math
import stat
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache import Cache, CorruptState, InvalidInput, Reply
from knapcache.serve.observe import history as subject
from knapcache.serve.observe import history_file as records
from knapcache.serve.observe.events import Event
from knapcache.serve.observe.history import History
from knapcache.serve.observe.usage import NUMBERS, UsageRow, read_row, total

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()
HOWS = ("hit", "miss", "coalesced", "stale", "bypass", "pass", "failed", "refused", "some news")


def event(outcome: str = "miss", model: str = "m", tenant: str = "t", cost: float = 1.0, **more: Any) -> Event:
    return Event(NOON, "chat/completions", model, tenant, outcome, 200, 0.5, 0.1, False, cost=cost, **more)


class Clock:
    """Time that stands until it is set."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def made(folder: Path | None = None, clock: Clock | None = None, **more: Any) -> History:
    return History(folder, dict, clock or Clock(), more.pop("zone", UTC), **more)


def same(a: UsageRow, b: UsageRow) -> bool:
    names = {*a.would(), *b.would()}
    pairs = [(getattr(a, name), getattr(b, name)) for name in NUMBERS]
    pairs += [(a.would().get(name, 0.0), b.would().get(name, 0.0)) for name in names]
    return all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9) for x, y in pairs)


def points(history: History, span: str) -> UsageRow:
    return total(row for _, row in history.points(span)[1])


def test_every_outcome_is_counted_once() -> None:
    history = made()
    history.consume([event(outcome, usd=2.0, upstream_seconds=3.0, size=10) for outcome in HOWS])
    row = history.all().report()
    outcomes = ("hits", "coalesced", "stale", "misses", "bypasses", "passed", "failed")
    assert [row[name] for name in outcomes] == [1, 1, 1, 1, 1, 1, 3]
    assert row["requests"] == 9
    assert (row["usd_saved"], row["seconds_saved"], row["cost_saved"], row["bytes_saved"]) == (6.0, 9.0, 3.0, 30)
    assert (row["usd_spent"], row["seconds_spent"], row["cost_spent"]) == (12.0, 18.0, 6.0)
    assert row["would"] == {"none": 9.0}
    history.check()


events = st.builds(
    event,
    st.sampled_from(HOWS),
    st.sampled_from(["a", "b", ""]),
    st.sampled_from(["x", "y"]),
    st.floats(0, 1e6),
    usd=st.none() | st.floats(0, 1e3),
    upstream_seconds=st.floats(0, 100),
    size=st.integers(0, 10**6),
)
batches = st.lists(st.tuples(st.floats(0, 40 * 86400), st.lists(events, max_size=5)), max_size=20)


@given(batches, st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata", "America/Sao_Paulo"]))
def test_the_points_of_a_span_sum_to_what_was_filed_in_it(told: list[tuple[float, list[Event]]], zone: str) -> None:
    clock = Clock()
    history = made(None, clock, zone=ZoneInfo(zone))
    filed: list[tuple[float, UsageRow]] = []
    for later, batch in sorted(told, key=lambda one: one[0]):
        clock.now = NOON + later
        history.consume(batch)
        row = UsageRow()
        for one in batch:
            row.count(one)
        filed.append((clock.now, row))
    history.check()
    assert same(points(history, "all"), history.all())
    assert same(total(row for _, row in filed), history.all())
    assert same(total(history.models().values()), history.all())
    assert same(total(history.tenants().values()), history.all())
    for span, length in (("hour", 60), ("day", 288), ("month", 124)):
        step, found = history.points(span)
        assert len(found) == length
        times = [when for when, _ in found]
        assert [b - a for a, b in itertools.pairwise(times)] == [step] * (length - 1)
        assert times[-1] <= clock.now < times[-1] + step
        assert same(points(history, span), total(row for when, row in filed if when >= times[0]))
    assert same(records.unpack(records.pack(history._books)).total, history.all())


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
    history = made(None, clock, zone=place)
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


def test_old_minutes_and_hours_leave_and_days_stay() -> None:
    clock = Clock()
    history = made(None, clock)
    for k in range(200):
        clock.now = NOON + k * 7 * 3600.0
        history.consume([event()])
    books = history._books
    assert len(books.minutes) <= records.MINUTES
    assert len(books.hours) <= records.HOURS
    assert max(books.hours) - min(books.hours) < records.HOURS
    assert points(history, "all").requests == history.all().requests == 200
    assert points(history, "month").requests < 200
    clock.now = NOON - 10 * 365 * 86400.0  # set back by ten years
    history.consume([event()])
    assert len(books.minutes) == 1
    assert points(history, "hour").requests == 1
    assert points(history, "all").requests == 201
    history.check()


def test_a_clock_that_stood_at_1970_makes_no_endless_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(5.0)
    history = made(None, clock)
    history.consume([event()])
    clock.now = NOON
    history.consume([event()])
    _, found = history.points("all")
    assert len(found) == records.DAYS
    assert found[0][1].requests == found[-1][1].requests == 1
    monkeypatch.setattr(records, "DAYS", 3)
    for k in range(6):
        clock.now = NOON + 86400.0 * k
        history.consume([event()])
    assert len(history._books.days) == 3
    history.check()


def test_names_from_outside_take_bounded_room() -> None:
    history = made()
    history.consume([event(model=f"m{k}", tenant=f"t{k}") for k in range(1500)])
    history.consume([event(model="m3"), event(model="\ud800" * 500)])
    assert len(history.models()) == len(history.tenants()) == 201
    assert history.models()["m3"].requests == 2
    assert history.models()["other"].requests == 1301
    history.check()
    records.unpack(records.pack(history._books))
    longest = made()
    longest.consume([event(model="x" * 10**6), event(model="\ud800")])
    assert [len(name) for name in longest.models()] == [120, 1]
    records.unpack(records.pack(longest._books))


class Shadows:
    """A cache's statistics, as they are and as they break."""

    def __init__(self, **spent: float) -> None:
        self.spent: dict[str, float] | None = spent

    def __call__(self) -> dict[str, Any]:
        return {} if self.spent is None else {"shadows": dict(self.spent)}


def test_what_others_would_have_cost_comes_as_differences() -> None:
    shadows, clock = Shadows(none=100.0, lru=50.0), Clock()
    history = History(None, shadows, clock, UTC)  # begins when the cache is already at work
    history.consume([event("miss", cost=6.0), event("hit", cost=4.0)])
    shadows.spent = {"none": 110.0, "lru": 53.0}
    history.look()
    history.look()
    assert history.all().would() == {"none": 10.0, "lru": 3.0}
    clock.now += 60
    history.consume([event("bypass", cost=5.0)])  # no shadow sees it, and everybody pays for it
    assert history.all().would() == {"none": 15.0, "lru": 8.0}
    shadows.spent = {"none": 2.0, "lru": 1.0}  # began anew
    history.consume([event("hit", cost=2.0)])
    history.look()
    assert history.all().would() == {"none": 17.0, "lru": 9.0}
    shadows.spent = None  # another process decides
    history.look()
    shadows.spent = {"none": 30.0, "lru": 10.0}  # and now this one again
    history.consume([event("miss", cost=30.0)])
    history.look()
    assert history.all().would() == {"none": 47.0, "lru": 19.0}
    assert [row.would().get("lru") for _, row in history.points("hour")[1][-2:]] == [3.0, 16.0]
    assert same(points(history, "day"), history.all())
    history.check()


def test_a_cache_that_cannot_say_is_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[str, Any]:
        raise CorruptState("no")

    history = History(None, broken, Clock(), UTC)
    history.consume([event()])
    history.look()
    assert history.all().requests == 1
    assert "not known now" in caplog.text


def test_shadows_of_a_real_cache() -> None:
    with Cache("1MiB", cost="seconds", policy="lru", shadows=("lru",)) as cache:
        history = History(None, cache.stats, Clock(), UTC)
        request = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
        for _ in range(3):
            answer = cache.fetch("chat/completions", request, lambda: Reply(b"{}", model="m", cost=2.0))
            history.consume([event(answer.outcome, cost=answer.bill.cost)])
        history.look()
        row = history.all()
    assert row.would() == {"none": 6.0, "lru": 2.0}
    assert (row.cost_spent, row.cost_saved) == (2.0, 4.0)


def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    shadows = Shadows(none=0.0, lru=0.0)
    history = History(tmp_path / "data", shadows, clock, UTC)
    history.consume([event("hit", "é", "team", usd=0.25), event("miss")])
    shadows.spent = {"none": 2.0, "lru": 1.0}
    history.close()
    path = tmp_path / "data" / "history.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_bytes())["version"] == 1
    again = History(tmp_path / "data", Shadows(none=0.0, lru=0.0), clock, UTC)
    assert again.all() == history.all()
    assert again.models() == history.models()
    assert again.points("hour") == history.points("hour")
    assert again.since == history.since == NOON
    again.consume([event()])
    again.close()
    assert made(tmp_path / "data").all().requests == 3


def test_it_saves_by_itself_and_then_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "PAUSE", 0.01)
    monkeypatch.setattr(subject, "SAVE", 0.05)
    history = made(tmp_path)
    assert not (tmp_path / "history.json").exists()
    for round_ in (1, 2):  # it wakes up again
        history.consume([event()])
        until = time.monotonic() + 10
        while history._thread is not None and time.monotonic() < until:
            time.sleep(0.005)
        assert history._thread is None
        assert made(tmp_path).all().requests == round_
    before = (tmp_path / "history.json").stat().st_ino
    assert history.save()
    assert (tmp_path / "history.json").stat().st_ino == before  # nothing has changed
    history.close()


def test_a_disk_that_is_full_is_said_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    history = made(tmp_path / "data")
    caplog.clear()
    history.consume([event()])
    assert not history.save()
    assert not history.save()
    assert caplog.text.count("cannot be saved") == 1
    (tmp_path / "data").unlink()
    assert history.save()
    assert made(tmp_path / "data").all().requests == 1
    history.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: b"",
        lambda text: text[: len(text) // 2],
        lambda _: b"[]",
        lambda _: b"\xff\xfe",
        lambda text: text.replace(b'"version":1', b'"version":2'),
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
def test_a_damaged_file_is_set_aside(spoil: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shadows = Shadows(none=0.0, lru=0.0)
    history = History(tmp_path, shadows, Clock(), UTC)
    history.consume([event(), event("hit")])
    shadows.spent = {"none": 2.0, "lru": 1.0}
    history.close()
    path = tmp_path / "history.json"
    good = path.read_bytes()
    bad = spoil(good)
    assert bad != good
    path.write_bytes(bad)
    with caplog.at_level(logging.WARNING):
        again = made(tmp_path)
    assert "set aside" in caplog.text
    assert (tmp_path / "history.json.damaged").read_bytes() == bad
    assert again.all() == UsageRow()
    again.consume([event()])
    again.close()
    assert made(tmp_path).all().requests == 1


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_file_is_a_crash(text: bytes) -> None:
    with pytest.raises(InvalidInput):
        records.unpack(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(json_values)
def test_nothing_else_is_a_row(value: Any) -> None:
    try:
        read_row(value)
    except InvalidInput:
        return
    assert isinstance(value, list)
    assert len(value) >= len(NUMBERS)


def test_an_unknown_span_is_refused() -> None:
    with pytest.raises(InvalidInput, match="hour, day, month, all"):
        made().points("week")


def test_threads_may_look_while_others_are_told() -> None:
    spent = {"none": 0.0, "lru": 0.0}
    history = History(None, lambda: {"shadows": dict(spent)}, time.time)
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            history.look()
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
    assert history.all().would() == {"none": 300.0, "lru": 0.0}
    history.check()
