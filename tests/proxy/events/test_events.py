"""The event buffer, and the consumers that live in memory."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import TaskGroup
from collections.abc import Sequence

import pytest

from knapcache import Cache
from knapcache.cache.cache import internal_of
from knapcache.proxy.events import events as subject
from knapcache.proxy.events.events import MAX_TEXT, EventBuffer, Note, UpstreamTry
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.events.recent import MAX_RECENT, RecentRequests
from knapcache.proxy.features import Features
from knapcache.proxy.settings import Settings
from tests.support.events import EventList, SampleNote, SamplePart, event, traffic
from tests.support.timing import async_wait_until


@pytest.mark.parametrize(
    ("attempts", "error", "text"),
    [
        ((503, 0), "", "a: status 503, no response"),
        ((), "", "a: "),
        ((503,), "connection refused", "a: connection refused"),
    ],
)
def test_why_an_upstream_failed_in_words(attempts: tuple[int, ...], error: str, text: str) -> None:
    assert UpstreamTry("a", attempts, error, 0.0).text == text


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


def test_parts_are_short_where_many_events_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_DETAILED", 3)
    buffer, seen, recent = EventBuffer(), EventList(), RecentRequests()
    buffer.add_consumer(seen)
    buffer.add_consumer(recent)
    for _ in range(5):
        buffer.append(event("miss", sample=SamplePart("a", ((1, 2),)), other=SampleNote(1)))
    buffer.flush()
    assert [len(one.parts["sample"].pairs) for one in seen] == [1, 1, 1, 0, 0]
    assert {one.parts["sample"].text for one in seen} == {"a"}
    assert not any(one.parts["sample"].pairs for _, one in recent.newest(5))


def test_notes_follow_the_requests_that_they_are_about() -> None:
    class Consumer(EventList):
        def consume_notes(self, notes: Sequence[Note]) -> None:
            order.append((len(self), list(notes)))

    order: list[tuple[int, list[Note]]] = []
    buffer, consumer, plain = EventBuffer(), Consumer(), EventList()
    buffer.append_note("sample", SampleNote(1))
    buffer.flush()
    for each in (consumer, plain):
        buffer.add_consumer(each)
    for one in traffic(5):
        buffer.append(one)
    assert buffer.flush(3)
    assert order == [], "its request may be among those that wait"
    assert not buffer.flush(3)
    buffer.append_note("sample", SampleNote(2))
    buffer.flush()
    assert order == [(5, [("sample", SampleNote(1))]), (5, [("sample", SampleNote(2))])]
    assert len(plain) == 5


def test_notes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_NOTES", 2)
    buffer = EventBuffer()
    for _ in range(5):
        buffer.append_note("sample", SampleNote(1))
    assert buffer.dropped == 3


async def test_many_events_are_passed_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MIN_SLICE", 1)
    buffer, seen = EventBuffer(), EventList()
    buffer.add_consumer(seen)
    for one in traffic(50):
        buffer.append(one)
    async with TaskGroup() as tasks:
        flushing = tasks.create_task(buffer.flush_periodically())
        await async_wait_until(lambda: len(seen) == 50, seconds=20)
        flushing.cancel()


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


async def test_the_pipeline_passes_events_to_all_consumers() -> None:
    settings, seen = Settings(upstreams=[{"url": "http://127.0.0.1:9/v1"}]), EventList()
    with Cache("1MB", policy="lru", shadows=()) as cache:
        pipeline = EventPipeline(settings, None, internal_of(cache), EventBuffer(), Features())
        pipeline.add_consumer(seen)
        pipeline.consume([event()])
        pipeline.close()
    assert len(seen) == len(pipeline.recent.after(0, 10)["rows"]) == 1


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
