"""Sums of swap: counted, saved, added over restarts and proxies, and bounded."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.features.swap import admin
from knapcache.features.swap.event import SWAP_KINDS, LabelNote, SwapEvent, SwapKind
from knapcache.features.swap.frames import MAX_FRAMES, Frames
from knapcache.features.swap.totals import MAX_REASONS, FrameSums, SwapCounts, SwapTotals
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.history import History
from knapcache.proxy.events.labels import OTHER
from knapcache.proxy.settings import Settings
from tests.features.swap.two_models import ASKED, CHEAPER, SwapClient, TwoModels, swapping
from tests.support.clock import Clock
from tests.support.events import event
from tests.support.redis_servers import RedisProcess
from tests.support.timing import wait_until


def swap_event(kind: SwapKind = "swap", frame: str = "f", reason: str = "", saved: float = 0.0) -> Event:
    return event("miss", swap=SwapEvent(kind, frame, CHEAPER, reason, saved))


def note(frame: str = "f", usd: float = 0.5) -> LabelNote:
    return LabelNote(frame, 0.0, "equal", usd)


def counted() -> SwapTotals:
    found = SwapTotals()
    for kind in SWAP_KINDS:
        found.count(swap_event(kind, reason="tools", saved=0.25))
    found.count(event("miss"))
    found.count_note(note())
    return found


def test_requests_are_counted_by_kind_and_labels_by_cost() -> None:
    found = counted()
    assert found.kinds == dict.fromkeys(SWAP_KINDS, 1)
    assert found.excluded == {"tools": 1}
    assert (found.labels, found.usd_labels, found.usd_saved) == (1, 0.5, 0.25 * len(SWAP_KINDS))
    assert found.since == swap_event().time
    found.count(swap_event()._replace(time=5.0))
    found.count(swap_event()._replace(time=6.0))
    assert found.since == 5.0


def test_sums_are_added_and_restored() -> None:
    total = SwapTotals()
    assert not total
    for _ in range(2):
        total.add(counted())
    total.add(SwapTotals(usd_saved=-100.0))
    assert total
    assert total.kinds["swap"] == total.excluded["tools"] == total.labels == 2
    assert total.usd_saved < 0.0, "a cheaper model that costs more"
    assert SwapTotals.from_json(json.loads(json.dumps(total.to_json()))) == total
    assert total.since == counted().since
    for since in (7.0, 8.0, 0.0):
        total.add(SwapTotals(since=since))
    assert total.since == 7.0


def test_the_report_has_the_frames_with_the_most_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "MAX_REPORTED", 3)
    settings: Any = Settings(route=[{"name": "cheap", "swap": "on", "swap_model": "small"}]).route[0]
    frames, sums = Frames(), FrameSums()
    for name, requests, labels in (("a", 1, 0), ("b", 2, 0), ("c", 1, 2), ("d", 1, 1), ("e", 0, 0)):
        for _ in range(requests):
            frames.for_request(name, "team", settings, "large")
            sums.count(SwapEvent("swap", name, CHEAPER, "", 0.5))
        for _ in range(labels):
            live = frames.for_label(name, "team", settings, "large")
            assert live is not None
            live.decision.add_label(0.0, 0.25)
    route = SimpleNamespace(model="small", settings=settings)
    tier: Any = SimpleNamespace(frames=frames, routes={"cheap": route}, failure="no labels")
    empty = admin.report(tier, sums, SwapTotals(), counted())
    assert [(row.frame, row.requests, row.swapped, row.labels, row.label_share) for row in empty.frames] == [
        ("b", 2, 2, 0, 0.0), ("c", 1, 1, 2, 0.0), ("d", 1, 1, 1, 0.0),
    ]  # fmt: skip
    assert (empty.more_frames, empty.problem, empty.since) == (1, "no labels", counted().since)
    assert (empty.today.requests, empty.all.requests) == (dict.fromkeys(SWAP_KINDS, 0), dict.fromkeys(SWAP_KINDS, 1))
    frames.budget("team", settings).asked_cost = 3.0
    found = admin.report(tier, sums, SwapTotals(), SwapTotals())
    assert ({row.label_share for row in found.frames}, found.since) == ({0.25}, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"since": -1.0},
        {"kinds": {"other": 1}},
        {"kinds": {"swap": -1}},
        {"excluded": {f"r{k}": 1 for k in range(MAX_REASONS + 2)}},
        {"labels": 0.5},
        {"usd_saved": "1"},
        {"usd_labels": -1.0},
    ],
)
def test_other_documents_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="sums of swap must have the form that knapcache writes"):
        SwapTotals.from_json(counted().to_json() | changes)
    with pytest.raises(InvalidInput):
        SwapTotals.from_json(None)


def test_reasons_and_frames_are_bounded() -> None:
    counts = SwapCounts()
    counts.consume([swap_event(frame="used")] * 3)
    counts.consume([swap_event("excluded", f"f{k}", f"reason {k}") for k in range(MAX_FRAMES + 50)])
    counts.consume_notes([note("used")])
    assert counts.totals.excluded[OTHER] == MAX_FRAMES + 50 - MAX_REASONS
    assert len(counts.totals.excluded) == MAX_REASONS + 1
    assert SwapTotals.from_json(counts.totals.to_json()) == counts.totals
    assert len(counts.frames._frames) == MAX_FRAMES
    assert (counts.frames.get("used").requests, counts.frames.get("used").usd_labels) == (3, 0.5)


def test_the_history_keeps_them(tmp_path: Path) -> None:
    for number in (1, 2):
        history = History(tmp_path, dict, Clock(1.8e9), totals={"swap": SwapTotals})
        history.consume([swap_event(saved=1.0)])
        history.consume_notes([("swap", note())])
        today, total = history.sums("swap")
        assert total.kinds == today.kinds == {"swap": number}
        assert (total.usd_saved, total.usd_labels) == (number, 0.5 * number)
        history.close()


def test_sums_outlive_a_restart(tmp_path: Path) -> None:
    with TwoModels() as upstream:
        with swapping(tmp_path, upstream) as client:
            client.learn()
            for _ in range(20):
                client.ask()
            client.settle_labels()
            wait_until(lambda: client.running.admin("/swap")["all"]["usd_saved"] > 0.0)
            before = client.running.admin("/swap")["all"]
            assert before["labels"] >= 10
            assert before["requests"]["swap"] > 0
            models = {row["name"]: row for row in client.running.admin("/summary")["models"]}
            labels = models[CHEAPER]["usd_spent"]
            assert 0.0 < labels <= before["usd_labels"], "of the model that was called; a request has the asked model"
            assert models[CHEAPER]["requests"] == 0
            assert models[ASKED]["usd_spent"] > 0.0
            ledger = client.running.proxy.storage.cache.stats()["by_model"]
            assert ledger[CHEAPER]["usd_spent"] > 0.0, "the ledger of the cache has the model that answered"
        with swapping(tmp_path, upstream) as client:
            report = client.running.admin("/swap")
            assert report["all"] == before
            assert report["since"] > 0.0


def test_proxies_on_one_server_add_their_sums(tmp_path: Path) -> None:
    with RedisProcess(tmp_path) as server, TwoModels() as upstream:
        shared: dict[str, Any] = {"store": server.url, "secret": "5a" * 32}
        with (
            swapping(tmp_path / "a", upstream, **shared) as first,
            swapping(tmp_path / "b", upstream, **shared) as second,
        ):
            for client in (first, second):
                client.ask(n=2)
            for client in (first, second):
                wait_until(partial(is_sum_of_both, client))


def is_sum_of_both(client: SwapClient) -> bool:
    return bool(client.running.admin("/swap")["all"]["excluded"] == {"several answers": 2})
