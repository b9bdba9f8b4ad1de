"""Events about prompt caches: bounded, restored from JSON, counted, saved, and shown in the summary and as metrics."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from knapcache.errors import InvalidInput
from knapcache.features.prefix.event import MAX_POSITIONS, PrefixEvent
from knapcache.features.prefix.request import Position
from knapcache.features.prefix.tier import logged_positions
from knapcache.features.prefix.totals import GROUPS, MAX_RULES, PrefixTotals, UpstreamTokens, collect_prefix
from knapcache.proxy.events.events import MAX_TEXT, Event
from knapcache.proxy.events.history import History
from knapcache.proxy.workers.owner_link import (
    MAX_BATCH,
    MAX_MESSAGE,
    WorkerMessage,
    decode_message,
    encode_batch,
    encode_message,
)
from tests.features.prefix.prefix_events import prefix_event
from tests.support.admin_context import AdminHarness
from tests.support.clock import Clock
from tests.support.events import event, older_document, traffic
from tests.support.metric_docs import documented, labels_of

TOTALS = {"prefix": PrefixTotals}


def miss(time: float = 1.7e9, upstream: str = "anthropic", **prefix: Any) -> Event:
    return event("miss", time=time, upstream=upstream, prefix=prefix_event(**prefix))


def totals(*events: Event) -> PrefixTotals:
    found = PrefixTotals()
    for one in events:
        found.count(one)
    return found


def test_tokens_are_summed_by_upstream_as_reported() -> None:
    found = totals(
        miss(),
        miss(input=100, read=0, short_written=0, long_written=0),
        miss(upstream="openai", tariff="", bills={}, input=50, read=30, short_written=0, long_written=0),
        event("hit"),
    )
    assert found.upstreams == {
        "anthropic": UpstreamTokens(2, 0, 10_100, 8_000, 1_000, 500),
        "openai": UpstreamTokens(1, 0, 50, 30, 0, 0),
    }
    assert [tokens.plain for tokens in found.upstreams.values()] == [600, 20]
    assert list(found.tariffs) == ["anthropic"], "nothing is decided for a provider without a tariff"
    assert found.since == 1.7e9


def test_a_request_whose_usage_is_unknown_adds_no_tokens_and_no_bill() -> None:
    found = totals(miss(reported=False, own_marks=False, input=0, read=0, short_written=0, long_written=0))
    assert found.upstreams["anthropic"] == UpstreamTokens(requests=1, unknown=1)
    tariff = found.tariffs["anthropic"]
    assert (tariff.requests, tariff.compared, tariff.groups) == (1, 0, {})


def test_bills_are_summed_by_what_the_tier_did() -> None:
    found = totals(
        miss(own_marks=False),
        miss(own_marks=False, usd_per_token=None),
        miss(),
        miss(mode="on", own_marks=False, marked=True),
        miss(mode="on", own_marks=False, below=True),
        miss(mode="manage", own_marks=True, marked=True),
        miss(mode="on"),
        miss(mode="manage"),
    ).tariffs["anthropic"]
    assert {name: group.requests for name, group in found.groups.items()} == {"observed": 2, "own": 3, "placed": 3}
    observed = found.groups["observed"]
    assert (observed.priced, observed.tokens["learned"], observed.tokens["none"]) == (1, 4_600.0, 20_000.0)
    assert observed.usd["learned"] == pytest.approx(2_300 * 3e-6)
    assert (found.requests, found.marked, found.own_marks, found.below) == (8, 2, 4, 1)


def test_reads_are_compared_only_for_requests_with_marks() -> None:
    found = totals(
        miss(own_marks=False, predicted=5_000, read=0),
        miss(predicted=7_900, read=8_000),
        miss(mode="on", own_marks=False, marked=True, predicted=100, read=0),
    ).tariffs["anthropic"]
    assert (found.compared, found.predicted, found.reported) == (2, 8_000, 8_000)


def test_the_newest_request_tells_the_rule_and_the_mode() -> None:
    newest = miss(time=20.0, rule="last-5m", mode="on")
    for events in ([miss(time=10.0), newest], [newest, miss(time=10.0)]):
        found = totals(*events).tariffs["anthropic"]
        assert (found.rule, found.mode, found.latest) == ("last-5m", "on", 20.0)


# A power of two, so that dollars are exact in any order.
prefixes = st.builds(
    prefix_event,
    mode=st.sampled_from(["off", "observe", "on", "manage"]),
    tariff=st.sampled_from(["", "anthropic", "openai-5.6"]),
    marked=st.booleans(),
    own_marks=st.booleans(),
    below=st.booleans(),
    reported=st.booleans(),
    usd_per_token=st.sampled_from([None, 2.0**-18]),
)
events = st.lists(
    st.builds(
        lambda time, upstream, prefix: event("miss", time=float(time), upstream=upstream, prefix=prefix),
        st.integers(1, 10**6),
        st.sampled_from(["a", "b"]),
        prefixes,
    ),
    max_size=8,
)


@given(events, events)
def test_sums_of_parts_are_the_sum_of_all(one: list[Event], other: list[Event]) -> None:
    added = totals(*one)
    added.add(totals(*other))
    whole = totals(*one, *other)
    assert orjson.dumps(added.to_json(), option=orjson.OPT_SORT_KEYS) == orjson.dumps(
        whole.to_json(), option=orjson.OPT_SORT_KEYS
    )
    assert PrefixTotals.from_json(orjson.loads(orjson.dumps(whole.to_json()))) == whole
    for tariff in whole.tariffs.values():
        assert set(tariff.groups) <= set(GROUPS)
        assert sum(group.requests for group in tariff.groups.values()) <= tariff.requests


def test_the_number_of_names_is_bounded() -> None:
    found = PrefixTotals()
    for k in range(3 * MAX_RULES):
        found.count(miss(tariff=f"t{k}"))
        found.count(miss(tariff="t0", bills={f"r{k}": 1.0}))
    for k in range(500):
        found.count(miss(upstream=f"u{k}"))
    assert len(found.tariffs) == len(found.tariffs["t0"].groups["own"].tokens) == MAX_RULES
    assert len(found.upstreams) <= 201
    assert sum(tokens.requests for tokens in found.upstreams.values()) == 6 * MAX_RULES + 500
    PrefixTotals.from_json(orjson.loads(orjson.dumps(found.to_json())))


GOOD = totals(miss()).to_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"since": -1.0},
        {"since": None},
        {"upstreams": []},
        {"upstreams": {"a": [1, 2]}},
        {"upstreams": {"a": [1, 0, 5, 6, 0, 0]}},
        {"upstreams": {"a": [1, 0, 5.5, 0, 0, 0]}},
        {"upstreams": {"a\n": [1, 0, 5, 0, 0, 0]}},
        {"upstreams": {"a": [1, 2, 5, 0, 0, 0]}},
        {"tariffs": {"a": {}}},
        {"tariffs": {"a": GOOD["tariffs"]["anthropic"] | {"newest": [1.0, "x" * 1000, "on"]}}},
        {"tariffs": {"a": GOOD["tariffs"]["anthropic"] | {"numbers": [1] * 6}}},
        {"tariffs": {"a": GOOD["tariffs"]["anthropic"] | {"groups": {"other": [1, 1, {}, {}]}}}},
        {"tariffs": {"a": GOOD["tariffs"]["anthropic"] | {"groups": {"own": [1, 1, {"none": -1.0}, {}]}}}},
        {"tariffs": {f"t{k}": GOOD["tariffs"]["anthropic"] for k in range(MAX_RULES + 1)}},
    ],
)
def test_other_documents_are_refused(changes: dict[str, Any]) -> None:
    PrefixTotals.from_json(GOOD)
    with pytest.raises(InvalidInput):
        PrefixTotals.from_json(GOOD | changes)


def test_a_file_of_version_2_is_still_read(tmp_path: Path) -> None:
    history = History(tmp_path, dict, Clock(), totals=TOTALS)
    history.consume([miss()])
    history.close()
    path = tmp_path / "history.json"
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps(older_document(document, 2, "prefix", "semantic")))
    again = History(tmp_path, dict, Clock(), totals=TOTALS)
    assert again.total().requests == 1
    assert not again.sums("prefix")[1]


def test_metrics() -> None:
    counted = totals(miss(), miss(mode="on", own_marks=False, marked=True), miss(reported=False))
    families = list(collect_prefix(counted))
    assert labels_of(families) == documented("knapcache_prefix_")
    found = {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }
    for key, value in {
        ("tokens_total", "anthropic", "read"): 16_000,
        ("tokens_total", "anthropic", "short_written"): 2_000,
        ("tokens_total", "anthropic", "long_written"): 1_000,
        ("tokens_total", "anthropic", "plain"): 1_000,
        ("requests_total", "anthropic", "reported"): 2,
        ("requests_total", "anthropic", "unknown"): 1,
        ("decisions_total", "anthropic"): 3,
        ("marked_total", "anthropic"): 1,
        ("own_marks_total", "anthropic"): 2,
        ("below_minimum_total", "anthropic"): 0,
        ("predicted_tokens_total", "anthropic"): 15_800,
        ("reported_tokens_total", "anthropic"): 16_000,
        ("bill_tokens_total", "anthropic", "own", "none"): 10_000,
        ("bill_tokens_total", "anthropic", "placed", "paid"): 3_550,
    }.items():
        assert found["knapcache_prefix_" + key[0], frozenset(key[1:])] == value, key
    usd = found["knapcache_prefix_bill_usd_total", frozenset({"anthropic", "own", "learned"})]
    assert usd == pytest.approx(2_300 * 3e-6)


def test_without_the_tier_the_summary_has_nothing_of_it() -> None:
    with contextlib.closing(AdminHarness(prefix="off")) as harness:
        assert "prefix" not in harness.client().get("/admin/v1/summary").raise_for_status().json()


def test_the_summary_has_prompt_caching_at_providers() -> None:
    with contextlib.closing(AdminHarness()) as harness:
        check_summary(harness, harness.client())


def check_summary(harness: AdminHarness, client: TestClient) -> None:
    empty = client.get("/admin/v1/summary").raise_for_status().json()["prefix"]
    assert empty == {
        "mode": "observe",
        "since": None,
        **{key: {"upstreams": [], "tariffs": []} for key in ("today", "all")},
    }
    now = time.time()
    harness.events.append(event("miss", time=now, upstream="fake", prefix=prefix_event()))
    found = client.get("/admin/v1/summary").raise_for_status().json()["prefix"]
    assert (found["since"], found["today"]) == (now, found["all"])
    assert found["all"]["upstreams"] == [
        {"name": "fake", "requests": 1, "unknown": 0, "input": 10_000, "read": 8_000, "short_written": 1_000,
         "long_written": 500, "plain": 500}
    ]  # fmt: skip
    (tariff,) = found["all"]["tariffs"]
    bills = prefix_event().bills
    usd = {rule: pytest.approx(tokens * 3e-6) for rule, tokens in bills.items()}
    assert tariff.pop("bills") == [{"kind": "own", "requests": 1, "priced": 1, "tokens": bills, "usd": usd}]
    assert tariff == {
        "name": "anthropic", "rule": "learned", "mode": "observe", "latest": now, "requests": 1, "marked": 0,
        "own_marks": 1, "below": 0, "compared": 1, "predicted": 7_900, "reported": 8_000,
    }  # fmt: skip


def test_positions_that_take_too_much_memory_are_dropped() -> None:
    positions = [Position(bytes([k % 256]) * 8, k, k) for k in range(MAX_POSITIONS + 1)]
    assert (len(logged_positions(positions[1:])), logged_positions(positions)) == (MAX_POSITIONS, ())
    assert prefix_event(positions=((1, 2),)).shortened() == prefix_event(positions=())


def test_prefix_events_cross_processes() -> None:
    events = [event("miss", prefix=prefix_event()), event("miss", prefix=PrefixEvent(mode="off"))]
    message = WorkerMessage(events, [], 0)
    assert decode_message(encode_message(message), {"prefix": PrefixEvent}, {}) == message


def test_a_message_has_as_many_events_as_fit() -> None:
    positions = tuple((2**62 + k, k) for k in range(MAX_POSITIONS))
    events = [event("miss", model="m" * MAX_TEXT, prefix=prefix_event(positions=positions)) for _ in range(400)]
    count, message = encode_batch(events, 3)
    assert 10 < count < 400
    assert len(message) <= MAX_MESSAGE
    assert decode_message(message, {"prefix": PrefixEvent}, {}) == WorkerMessage(events[:count], [], 3)
    assert encode_batch(traffic(MAX_BATCH + 1), 0)[0] == MAX_BATCH
