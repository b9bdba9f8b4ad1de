"""What events say about prompt caches: bounded, and restored from JSON."""

from __future__ import annotations

import pytest

from knapcache.features.prefix import event as subject
from knapcache.features.prefix.event import MAX_POSITIONS, PrefixEvent
from knapcache.proxy.events.events import MAX_TEXT
from knapcache.proxy.workers.owner_link import (
    MAX_BATCH,
    MAX_MESSAGE,
    WorkerMessage,
    decode_message,
    encode_batch,
    encode_message,
)
from tests.features.prefix.prefix_events import prefix_event
from tests.support.events import event, traffic


@pytest.mark.parametrize(
    ("count", "waiting", "kept"), [(MAX_POSITIONS, 0, True), (MAX_POSITIONS + 1, 0, False), (2, 3, False)]
)
def test_positions_that_take_too_much_memory_are_dropped(
    count: int, waiting: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MAX_DETAILED", 3)
    found = prefix_event(positions=tuple((k, k) for k in range(count))).shortened(waiting)
    assert (len(found.positions), found.read) == (count if kept else 0, 8_000)


def test_prefix_events_cross_processes() -> None:
    events = [event("miss", prefix=prefix_event()), event("miss", prefix=PrefixEvent(mode="off"))]
    message = WorkerMessage(events, [], [], 0)
    assert decode_message(encode_message(message), {"prefix": PrefixEvent}, {}) == message


def test_a_message_has_as_many_events_as_fit() -> None:
    positions = tuple((2**62 + k, k) for k in range(MAX_POSITIONS))
    events = [event("miss", model="m" * MAX_TEXT, prefix=prefix_event(positions=positions)) for _ in range(800)]
    count, message = encode_batch(events, 3)
    assert 10 < count < 800
    assert len(message) <= MAX_MESSAGE
    assert decode_message(message, {"prefix": PrefixEvent}, {}) == WorkerMessage(events[:count], [], [], 3)
    assert encode_batch(traffic(MAX_BATCH + 1), 0)[0] == MAX_BATCH
