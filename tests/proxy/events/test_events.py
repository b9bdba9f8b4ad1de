"""The event buffer, and the consumers that live in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from knapcache.proxy.events import events as subject
from knapcache.proxy.events.events import MAX_POSITIONS, MAX_QUESTION, MAX_TEXT, EventBuffer, VerdictEvent
from knapcache.proxy.events.recent import MAX_RECENT, RecentRequests
from tests.support.events import EventList, event, prefix_event, semantic_event, traffic, verdict_event


def test_a_flush_passes_every_event_once_to_every_consumer() -> None:
    buffer, consumers = EventBuffer(), (EventList(), EventList())
    events = traffic(10)
    buffer.append(events[0])
    buffer.flush()
    for consumer in consumers:
        buffer.add_consumer(consumer)
    for one in events[1:5]:
        buffer.append(one)
    buffer.flush()
    buffer.flush()
    assert consumers[0] == consumers[1] == events[:5], "without consumers events stay in the buffer"
    buffer.remove_consumer(consumers[1])
    for one in events[5:]:
        buffer.append(one)
    buffer.flush()
    assert (len(consumers[0]), len(consumers[1])) == (10, 5)


def test_the_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_BUFFERED", 10)
    buffer, seen = EventBuffer(), EventList()
    events = traffic(25)
    for one in events:
        buffer.append(one)
    assert buffer.dropped == 15
    buffer.add_consumer(seen)
    buffer.flush()
    assert seen == events[:10]


def test_texts_of_clients_are_cut_off() -> None:
    buffer, seen = EventBuffer(), EventList()
    buffer.add_consumer(seen)
    buffer.append(event(model="m" * 10**6, trace="t" * 10**6))
    buffer.flush()
    assert (seen[0].model, seen[0].trace) == ("m" * MAX_TEXT, "t" * MAX_TEXT)


def test_the_positions_of_a_request_with_too_many_are_dropped() -> None:
    buffer, seen = EventBuffer(), EventList()
    buffer.add_consumer(seen)
    for count in (MAX_POSITIONS, MAX_POSITIONS + 1):
        buffer.append(event("miss", prefix=prefix_event(positions=tuple((k, k) for k in range(count)))))
    buffer.flush()
    prefixes = [one.parts["prefix"] for one in seen if "prefix" in one.parts]
    assert [(len(one.positions), one.read) for one in prefixes] == [(MAX_POSITIONS, 8_000), (0, 8_000)]


def test_positions_are_kept_for_few_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_DETAILED", 3)
    buffer, seen, recent = EventBuffer(), EventList(), RecentRequests()
    buffer.add_consumer(seen)
    buffer.add_consumer(recent)
    for _ in range(5):
        buffer.append(event("miss", prefix=prefix_event()))
    buffer.flush()
    prefixes = [one.parts["prefix"] for one in seen if "prefix" in one.parts]
    assert [len(one.positions) for one in prefixes] == [2, 2, 2, 0, 0]
    assert {one.read for one in prefixes} == {8_000}
    assert not any("prefix" in one.parts and one.parts["prefix"].positions for _, one in recent.newest(5))


def test_verdicts_follow_the_requests_that_they_are_about() -> None:
    class Consumer(EventList):
        def consume_verdicts(self, verdicts: Sequence[VerdictEvent]) -> None:
            order.append((len(self), list(verdicts)))

    order: list[tuple[int, list[VerdictEvent]]] = []
    buffer, consumer, plain = EventBuffer(), Consumer(), EventList()
    buffer.append_verdict(verdict_event())
    buffer.flush()
    for each in (consumer, plain):
        buffer.add_consumer(each)
    for one in traffic(5):
        buffer.append(one)
    assert buffer.flush(3)
    assert order == [], "its request may be among those that wait"
    assert not buffer.flush(3)
    buffer.append_verdict(verdict_event(verdict="different"))
    buffer.flush()
    assert order == [(5, [verdict_event()]), (5, [verdict_event(verdict="different")])]
    assert len(plain) == 5


def test_verdicts_and_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_VERDICTS", 2)
    buffer, seen = EventBuffer(), EventList()
    buffer.add_consumer(seen)
    for _ in range(5):
        buffer.append_verdict(verdict_event())
    assert buffer.dropped == 3
    buffer.append(event("similar", semantic=semantic_event(question="q" * 10**6, matched_question="m" * 10**6)))
    buffer.flush()
    found = seen[0].parts["semantic"]
    assert found is not None
    assert (found.question, found.matched_question) == ("q" * MAX_QUESTION, "m" * MAX_QUESTION)


async def test_the_last_events_are_flushed_at_the_end() -> None:
    buffer, seen = EventBuffer(), EventList()
    buffer.add_consumer(seen)
    task = asyncio.create_task(buffer.flush_periodically())
    await asyncio.sleep(0)
    buffer.append(event())
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert len(seen) == 1


def test_recent_requests_are_bounded_and_numbered() -> None:
    recent = RecentRequests()
    recent.consume(traffic(MAX_RECENT + 50))
    found = recent.after(0, 10**6)
    assert found["serial"] == MAX_RECENT + 50
    assert [row["serial"] for row in found["rows"]] == list(range(51, MAX_RECENT + 51))
    assert "trace" not in found["rows"][0]


def test_recent_requests_are_in_the_order_of_their_arrival() -> None:
    recent = RecentRequests()
    recent.consume([event("miss", time=at) for at in (2.0, 1.0, 3.0)])
    found = recent.after(0, 3)["rows"]
    assert [(row["time"], row["serial"]) for row in found] == [(1.0, 2), (2.0, 1), (3.0, 3)]
