"""The numbers of several proxies on one store: they add up, and documents that are not valid are ignored."""

from __future__ import annotations

import itertools
import math
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.proxy.events import shared_documents as documents
from knapcache.proxy.events.events import OUTCOMES, Event
from knapcache.proxy.events.history import History
from knapcache.proxy.events.history_reader import SPANS
from knapcache.proxy.events.published import SharedProxies
from knapcache.proxy.events.recent import RecentRequests
from knapcache.proxy.events.shared_documents import decode_status, encode_status
from knapcache.proxy.events.upstream_health import UpstreamHealth
from knapcache.proxy.events.usage import UsageRow
from knapcache.proxy.settings import Settings
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import parse
from tests.support.clock import Clock
from tests.support.events import SampleNote, SamplePart, SampleTotals, event, same_usage
from tests.support.programs import find_module
from tests.support.redis_servers import RedisProcess

find_module("redis", "the extra redis")

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()
UPSTREAMS = Settings(upstreams=[{"name": "openai", "url": "http://127.0.0.1:9/v1"}]).upstreams
TOTALS = {"sample": SampleTotals}
_prefixes = itertools.count()


class Member:
    """The objects of one proxy that publish and read."""

    def __init__(self, store: RedisStore, number: int, clock: Clock) -> None:
        self.id = f"{number:016x}"
        self.history = History(None, dict, clock, UTC, TOTALS)
        self.recent = RecentRequests(time.time)
        self.health = UpstreamHealth(UPSTREAMS)
        identity = {"id": self.id, "host": f"host-{number}", "release": "1", "started": NOON, "workers": 1}
        self.shared = SharedProxies(
            store.documents,
            "here",
            store.server_state,
            identity,
            self.history,
            self.recent,
            self.health,
            owner=lambda: number == 0,
            clock=itertools.count(0.0, 10.0).__next__,
        )
        self.publisher, self.others, self.merged = self.shared.publisher, self.shared.others, self.shared.history

    def consume(self, *events: Event) -> None:
        for consumer in (self.history, self.recent, self.health):
            consumer.consume(events)

    def publish(self) -> None:
        self.publisher.publish(self.recent.newest(100), self.health.report())


def open_store(engine: RedisProcess) -> RedisStore:
    return RedisStore(
        parse("redis", f"//127.0.0.1:{engine.port}?prefix=merged{next(_prefixes)}&near=0&timeout=5"), 1 << 20
    )


@pytest.fixture
def store(engine: RedisProcess) -> Iterator[RedisStore]:
    with open_store(engine) as store:
        yield store


def same_rows(a: dict[Any, UsageRow], b: dict[Any, UsageRow]) -> bool:
    return a.keys() == b.keys() and all(same_usage(a[name], b[name]) for name in a)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(OUTCOMES),
            st.sampled_from(["a", "b", "c"]),
            st.floats(0.0, 10.0),
            st.sampled_from([0.0, 1.0, 59.0, 600.0, 3600.0, 90_000.0]),
            st.booleans(),
        ),
        max_size=25,
    )
)
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
def test_merged_numbers_are_the_sum_of_the_events_of_all_proxies(
    engine: RedisProcess, steps: list[tuple[int, str, str, float, float, bool]]
) -> None:
    clock = Clock(NOON)
    reference = History(None, dict, clock, UTC)
    with open_store(engine) as store:
        members = [Member(store, number, clock) for number in range(3)]
        for number, outcome, name, cost, pause, publish in steps:
            one = event(outcome, model=name, tenant=f"tenant-{name}", cost=cost, usd=cost)
            members[number].consume(one)
            reference.consume([one])
            if publish:
                members[number].publish()
                members[0].others.refresh()
            clock.now += pause
        for member in members:
            member.publish()
        for member in members:
            member.others.refresh()
            assert same_usage(member.merged.total(), reference.total())
            assert same_usage(member.merged.today(), reference.today())
            assert same_rows(member.merged.models(), reference.models())
            assert same_rows(member.merged.tenants(), reference.tenants())
            for span in (*SPANS, "all"):
                step, found = member.merged.points(span)
                assert step == reference.points(span)[0]
                assert same_rows(dict(found), dict(reference.points(span)[1]))
            assert (member.others.ignored, member.merged.since) == (0, NOON)
            counts = [row["requests"] for row in member.shared.report()["rows"]]
            assert (counts[0], sum(counts)) == (member.history.total().requests, len(steps))


def test_a_proxy_that_has_ended_stays_in_the_sums_and_is_not_listed(store: RedisStore) -> None:
    clock = Clock(NOON)
    first, second = (Member(store, number, clock) for number in range(2))
    second.consume(event("hit"), event("miss"))
    second.publish()
    first.others.refresh()
    assert [(row["host"], row["owner"], row["requests"], row["this"]) for row in first.shared.report()["rows"]] == [
        ("host-0", True, 0, True),
        ("host-1", False, 2, False),
    ]
    second.consume(event("hit"))
    second.publisher.close()
    first.others.refresh()
    assert [row["host"] for row in first.shared.report()["rows"]] == ["host-0"]
    assert (first.others.ended, first.merged.total().requests) == (1, 3)
    restarted = Member(store, 1, clock)  # with the same data directory; its history would be in a file
    restarted.consume(event("hit"))
    restarted.publish()
    first.others.refresh()
    assert (first.others.ended, first.merged.total().requests) == (0, 1)


def test_recent_requests_of_all_proxies_are_listed_once_with_their_proxy(store: RedisStore) -> None:
    clock = Clock(NOON)
    first, second = (Member(store, number, clock) for number in range(2))
    merged = first.shared.recent
    first.consume(event("miss", key="aa" * 32, time=1.0))
    second.consume(event("hit", key="aa" * 32, time=2.0), event("hit", key="bb" * 32, time=3.0))
    second.publish()
    first.consume(event("hit", key="aa" * 32, time=4.0))
    first.others.refresh()
    page = merged.after(0, 10)
    assert [row["proxy"] for row in page["rows"]] == ["host-0", "host-1", "host-1", "host-0"]
    serials = [row["serial"] for row in page["rows"]]
    assert serials == sorted(set(serials))
    assert serials[2] < page["serial"] < serials[3]  # what the second served since is not known yet
    assert [row["serial"] for row in merged.after(page["serial"], 10)["rows"]] == serials[3:]
    assert [row["serial"] for row in merged.after(0, 2)["rows"]] == serials[2:]
    assert len(merged.after(2**53 - 1, 10)["rows"]) == 4
    found = merged.find(serials[1])
    assert found is not None
    assert (found[0].time, found[1]) == (2.0, "host-1")
    assert merged.find(7) is None
    assert [one.time for one in merged.earlier(found[0])] == [1.0]


def test_an_upstream_that_fails_at_one_proxy_is_failing(store: RedisStore) -> None:
    clock = Clock(NOON)
    first, second = (Member(store, number, clock) for number in range(2))
    first.consume(event("miss"))
    second.consume(event("failed", attempts=(500,), error="connection refused"))
    second.publish()
    first.others.refresh()
    (row,) = first.shared.health.report()
    assert (row["state"], row["calls"], row["errors"], row["failed"]) == ("failing", 2, 1, 1)
    assert row["reason"] == "connection refused (seen by host-1)"
    assert first.health.report()[0]["state"] == "ok"


def status_of(member: Member, **changes: Any) -> bytes:
    recent = [{"serial": 1} | event("hit")._asdict()]
    fields = {**member.publisher.identity, "time": NOON, "owner": False, "requests": 1, "upstreams": []}
    return documents.compress(orjson.dumps({"version": 1, **fields, "recent": recent} | changes))


BAD_STATUSES: list[dict[str, Any]] = [
    {"version": 2},
    {"id": "../../x"},
    {"host": ""},
    {"host": "x" * 256},
    {"host": 7},
    {"time": -1.0},
    {"started": "now"},
    {"workers": 0},
    {"requests": -1},
    {"owner": 1},
    {"upstreams": {}},
    {"upstreams": [{"name": "a"}]},
    {"recent": [{"serial": 1}]},
    {"recent": [{"serial": 1} | event("hit")._asdict() | {"model": "x" * 2000}]},
    {"recent": [{"serial": 1} | event("hit")._asdict() | {"cost": None}]},
    {"recent": [{"serial": 1} | event("hit")._asdict()] * 101},
]


def test_a_valid_status_is_read_also_with_names_of_a_later_version(store: RedisStore) -> None:
    member = Member(store, 1, Clock(NOON))
    status = decode_status(status_of(member, later="x"))
    assert (status.host, status.events) == ("host-1", [(1, event("hit"))])
    sent = {
        **member.publisher.identity,
        "time": NOON,
        "owner": True,
        "requests": 0,
        "upstreams": member.health.report(),
    }
    assert decode_status(encode_status(sent, [])).upstreams[0].name == "openai"


@pytest.mark.parametrize("changes", BAD_STATUSES)
def test_a_status_that_is_not_valid_is_refused(store: RedisStore, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="not a status of version 1"):
        decode_status(status_of(Member(store, 1, Clock(NOON)), **changes))


def test_documents_that_are_not_valid_are_ignored_and_counted_once(store: RedisStore) -> None:
    clock = Clock(NOON)
    first, second = (Member(store, number, clock) for number in range(2))
    second.consume(event("hit"))
    second.publish()
    bomb = zlib.compress(b"0" * (documents.MAX_PLAIN + 1))
    part = documents.encode_part(second.history.boundary(), second.history.part(second.history.boundary()))
    table = orjson.loads(documents.decompress(part).split(b"\n", 1)[1])
    negative = table | {"total": [-1, *table["total"][1:]]}
    damaged = [
        b"",
        b"no zlib",
        bomb,
        part[:-5],
        documents.compress(b"1 2 3\n{}"),
        documents.compress(b"{}"),
    ]
    damaged.append(documents.compress(b"1 2 3\n" + orjson.dumps(negative)))
    for k, content in enumerate(damaged):
        store.documents.put("open", f"{k + 16:016x}", content, 60.0, limit=100)
        store.documents.put("status", f"{k + 16:016x}", content, 60.0, limit=100)
    store.documents.put("status", f"{99:016x}", status_of(second), 60.0, limit=100)  # another proxy's id
    for _ in range(2):
        first.others.refresh()
    assert first.others.ignored == 2 * len(damaged)
    assert [status.host for status in first.others.statuses] == ["host-1"]
    assert first.merged.total().requests == 1


def test_without_the_engine_a_proxy_shows_its_own_numbers_and_says_so(store: RedisStore) -> None:
    clock = Clock(NOON)
    first, second = (Member(store, number, clock) for number in range(2))
    first.consume(event("hit"))
    second.consume(event("hit"))
    second.publish()
    first.others.refresh()
    assert (first.merged.total().requests, first.shared.server()["state"]) == (2, "ok")
    store.close()
    first.publisher.publish([], [])
    first.others.refresh()
    engine = first.shared.server()
    assert (engine["state"], engine["reason"]) == ("away", "the store is closed")
    assert (first.merged.total().requests, len(first.shared.report()["rows"])) == (1, 1)


def test_a_part_that_is_too_large_has_fewer_rows(store: RedisStore) -> None:
    clock = Clock(NOON)
    first, second = (Member(store, number, clock) for number in range(2))
    table, last = first.history._table, first.history.boundary()
    names = [f"shadow-{k}" for k in range(40)]
    for k in range(1, 1001):
        for rows, end in ((table.minutes, last.minutes), (table.days, last.days)):
            row = rows[end - k] = UsageRow(requests=1, hits=1)
            row.shadows = {name: math.sin(k * n) + 1.0 for n, name in enumerate(names)}
    first.publish()
    second.others.refresh()
    assert second.others.ignored == 0
    published = second.others.tables[0]
    assert 100 < len(published.minutes) < 1000
    assert max(published.minutes) == last.minutes - 1
    assert 100 < len(published.days) < 1000
    assert sum(row.requests for row in published.days.values()) == 1000


def test_closed_parts_are_published_when_their_boundary_moves(store: RedisStore) -> None:
    clock = Clock(NOON)
    first, second = (Member(store, number, clock) for number in range(2))

    def ends() -> list[float]:
        return [store.documents.ends(kind, 9)[first.id] for kind in ("open", "minutes", "hours", "days")]

    first.consume(event("hit"))
    first.publish()
    before = ends()
    first.publish()
    assert ends() == before
    first.consume(event("hit"))
    first.publish()
    assert [a == b for a, b in zip(before, ends(), strict=True)] == [False, True, True, True]
    before = ends()
    clock.now += 600.0
    first.publish()
    assert [a == b for a, b in zip(before, ends(), strict=True)] == [False, False, True, True]
    clock.now += 86_400.0
    first.publish()
    second.others.refresh()
    assert second.merged.total().requests == 2


def test_a_document_is_read_again_only_if_it_has_changed(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (Member(store, number, Clock(NOON)) for number in range(2))
    get, kinds = store.documents.get, list[str]()

    def recorded(kind: str, name: str) -> bytes | None:
        kinds.append(kind)
        return get(kind, name)

    monkeypatch.setattr(store.documents, "get", recorded)

    def kinds_read() -> list[str]:
        second.publish()
        kinds.clear()
        first.others.refresh()
        return kinds

    second.consume(event("hit"))
    assert set(kinds_read()) == {"status", "open", "minutes", "hours", "days"}
    assert kinds_read() == ["status"]
    second.consume(event("hit"))
    assert kinds_read() == ["status", "open"]


def test_every_proxy_shows_the_sums_of_features_of_all_of_them(store: RedisStore) -> None:
    clock = Clock(NOON)
    members = [Member(store, number, clock) for number in range(3)]
    for number, member in enumerate(members):
        member.consume(*[event("miss", time=NOON, sample=SamplePart("a"))] * (number + 1))
        member.history.consume_notes([("sample", SampleNote(5)), ("unknown", SampleNote(7))])
        member.publish()
    for member in members:
        member.shared.refresh()
        assert member.merged.sums("sample") == (SampleTotals(6, 15),) * 2
        assert member.history.sums("sample")[1].requests < 6, "a part is a copy"
        assert not any(one.parts for _, one in member.others.statuses[0].events), "only sums are published"
    clock.now += 86_400.0
    assert members[0].merged.sums("sample") == (SampleTotals(), SampleTotals(6, 15))
