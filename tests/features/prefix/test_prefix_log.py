"""The prefix log: the lab reads every request, also while the log is being written."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from knapcache.features.prefix.event import LOGGED, PREFIX_HEADER, PrefixLog
from knapcache.features.prefix.lab.read import read_prefix_trace
from knapcache.features.prefix.tariff import ANTHROPIC
from knapcache.proxy.events.events import Event
from tests.features.prefix.prefix_events import prefix_event
from tests.support.events import event


def requests(count: int) -> list[Event]:
    """Return misses whose prefixes grow, as in a conversation."""
    return [
        event(
            "miss",
            time=1.7e9 + k,
            model='claude-sonnet-4-5, "the best"',
            prefix=prefix_event(
                positions=tuple((hash((k // 10, n)), 100 * (n + 1)) for n in range(k % 10 + 1)),
                tokens=100 * (k % 10 + 1) + 7,
                system=0,
                kind="tool" if k % 2 else "text",
            ),
        )
        for k in range(count)
    ]


def log_all(folder: Path, events: list[Event], capacity: int = 1 << 20) -> PrefixLog:
    log = PrefixLog(folder, capacity)
    log.consume(events)
    log.close()
    return log


def test_the_lab_reads_what_happened(tmp_path: Path) -> None:
    events = requests(30)
    log = log_all(tmp_path, [*events, event("hit"), event("miss", prefix=prefix_event(positions=()))])
    assert log.dropped == 0
    found = read_prefix_trace(tmp_path, ANTHROPIC.minimum_of)
    assert found.format == "log"
    assert [request.time for request in found.requests] == [one.time for one in events]
    for request, one in zip(found.requests, events, strict=True):
        prefix = one.parts["prefix"]
        assert tuple((each.id, each.tokens) for each in request.positions) == prefix.positions
        assert (request.tokens, request.system, request.kind) == (prefix.tokens, 0, prefix.kind)
        assert request.minimum == ANTHROPIC.minimum_of("claude-sonnet-4-5")


def test_a_line_has_what_the_provider_reported(tmp_path: Path) -> None:
    log = log_all(tmp_path, requests(1))
    (row,) = csv.DictReader(log.current.read_text().splitlines())
    assert (row["model"], row["outcome"]) == ('claude-sonnet-4-5, "the best"', "miss")
    prefix = json.loads(row["prefix"])
    assert tuple(prefix) == LOGGED
    assert (prefix["read"], prefix["rule"], prefix["reported"]) == (8_000, "learned", True)


def test_a_line_that_is_still_being_written_is_ignored(tmp_path: Path) -> None:
    log = log_all(tmp_path, requests(3))
    whole = log.current.read_bytes()
    lines = whole.splitlines(keepends=True)
    last = len(lines[-1])
    for cut in (1, last // 3, last - len(b",miss\n"), last - 5, last - 2):
        log.current.write_bytes(whole[:-cut])
        found = read_prefix_trace(log.current, ANTHROPIC.minimum_of)
        assert len(found.requests) in ((2, 3) if cut < len(b",miss\n") else (2,)), cut


def test_the_size_is_bounded_and_parts_are_read(tmp_path: Path) -> None:
    capacity = 1 << 17
    log = PrefixLog(tmp_path, capacity)
    for one in requests(1500):
        log.consume([one])
    log.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= capacity
    assert log.current.read_bytes().startswith(PREFIX_HEADER)
    assert len(list(tmp_path.glob("requests-*.csv.gz"))) >= 2
    times = [request.time for request in read_prefix_trace(tmp_path, ANTHROPIC.minimum_of).requests]
    assert times == sorted(times)
    assert times[-1] == 1.7e9 + 1499
