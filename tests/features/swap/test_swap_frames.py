"""The frames of a process: bounds, and what a caller with ever new frames can do to others."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from knapcache.features.swap import frames as frames_module
from knapcache.features.swap.frame import START_LABELS
from knapcache.features.swap.frames import Frames, LiveFrame
from knapcache.features.swap.labelling import MAX_PENDING, MAX_TENANT, Labeller
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.secrets import digest_of
from tests.features.swap.test_swap_log import label
from tests.features.swap.two_models import CHEAPER, SwapClient, swapping

ROUTE: Any = Settings(route=[{"name": "cheap", "swap": "on", "swap_model": "small", "swap_loss": 0.2}]).route[0]


@pytest.fixture(autouse=True)
def few_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "MAX_FRAMES", 20)
    monkeypatch.setattr(frames_module, "MAX_TENANT_FRAMES", 10)
    monkeypatch.setattr(frames_module, "MAX_REPLACED", 5)


def add_labels(frames: Frames, name: str, count: int, z: float = 0.0, tenant: str = "") -> LiveFrame | None:
    """Add labels of a frame as they come from the log."""
    found = None
    for k in range(count):
        found = frames.for_label(name, tenant, ROUTE, "large")
        if found is None:
            return None
        found.add(label(k, z), own=False)
    frames.labelled.check()
    frames.new.check()
    return found


def test_a_tenant_has_a_share_and_replaces_its_least_useful_frame() -> None:
    frames = Frames()
    add_labels(frames, "useful", 3, tenant="a")
    for k in range(50):
        assert frames.for_request(f"new {k}", "a", ROUTE, "large") is not None
        add_labels(frames, f"flood {k}", 1, tenant="a")
    assert frames.get("useful") is not None
    assert [name for name, _ in frames.labelled][1:] == [f"flood {k}" for k in range(41, 50)]
    assert [name for name, _ in frames.new] == [f"new {k}" for k in range(40, 50)]
    assert list(frames._tries) == [f"flood {k}" for k in range(36, 41)], "those that were replaced last"


def test_one_more_tenant_replaces_frames_of_the_largest() -> None:
    frames = Frames()
    for k in range(10):
        for tenant in ("a", "b"):
            add_labels(frames, f"{tenant} {k}", 2, tenant=tenant)
    for k in range(8):
        add_labels(frames, f"c {k}", 1, tenant="c")
    assert len(frames.labelled) == 20
    counts = {tenant: sum(frame.tenant == tenant for _, frame in frames.labelled) for tenant in "abc"}
    assert counts == {"a": 6, "b": 7, "c": 7}, "equal shares"


def test_a_certified_frame_is_never_replaced() -> None:
    frames = Frames()
    for k in range(10):
        found = add_labels(frames, f"certified {k}", 40)
        assert found is not None
        assert found.certified
    assert add_labels(frames, "one more", 1) is None
    assert frames.for_request("one more", "", ROUTE, "large") is None
    for tenant in ("b", "c"):
        for k in range(12):
            add_labels(frames, f"{tenant} {k}", 1, tenant=tenant)
    assert sum(frame.certified for _, frame in frames.labelled) == 10


def test_a_larger_tenant_replaces_no_frame_of_a_smaller_one() -> None:
    frames = Frames()
    add_labels(frames, "small", 1, tenant="a")
    for k in range(10):
        add_labels(frames, f"b {k}", 40, tenant="b")
    for k in range(9):
        add_labels(frames, f"c {k}", 40, tenant="c")
    assert add_labels(frames, "one more", 1, tenant="c") is None, "all frames of larger tenants are certified"
    assert frames.get("small") is not None


def test_a_frame_that_comes_back_needs_more_evidence() -> None:
    frames = Frames()
    first = add_labels(frames, "a", 3)
    assert first is not None
    needed = first.decision.certificate.needed
    for k in range(10):
        add_labels(frames, f"other {k}", 4)
    assert frames.get("a") is None
    again = add_labels(frames, "a", 1)
    assert again is not None
    certificate = again.decision.certificate
    assert (certificate.tries, certificate.labels) == (2, 1)
    assert certificate.needed > 6 * needed


@pytest.mark.parametrize("each", [1, 2, 5, 20])
def test_labels_of_ever_new_frames_stay_within_the_budget_of_tenant_and_route(each: int) -> None:
    """A system prompt with a name or a date makes a frame of few requests."""
    rng, frames, share, labels = random.Random(3), Frames(), 0.03, 0
    route = ROUTE.model_copy(update={"swap_budget": share})
    budget = frames.budget("a", route)
    for k in range(4000):
        name = f"frame {k // each}"
        live = frames.for_request(name, "a", route, "large")
        assert live is not None
        choice = live.decision.choose(rng.random())
        live.budget.count(1.0)
        if choice == "label":
            labels += 1
            labelled = frames.for_label(name, "a", route, "large")
            assert labelled is not None
            labelled.add(label(k, 0.0)._replace(cost=0.5), own=True)
        assert budget.label_cost == 0.5 * labels <= share * budget.asked_cost + 0.5 * START_LABELS
    assert budget.asked_cost == 4000.0
    assert labels >= share * 4000.0 / 0.5
    assert frames.budget("a", ROUTE) is budget
    assert frames.budget("b", route) is not budget


def test_labels_that_are_being_made_count_for_the_budget() -> None:
    budget = Frames().budget("a", ROUTE.model_copy(update={"swap_budget": 0.1}))
    budget.pending = START_LABELS
    assert not budget.allows_label(), "what a label costs is not known yet"
    budget.add_label(1.0)
    assert not budget.allows_label()
    budget.count(10.0)
    assert not budget.allows_label()
    budget.count(10.0)
    assert budget.allows_label()


async def test_the_labels_that_are_made_at_a_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    free, frames = asyncio.Event(), Frames()

    async def wait(*_: Any) -> None:
        await free.wait()

    monkeypatch.setattr(Labeller, "_label", wait)
    route: Any = SimpleNamespace(settings=ROUTE)
    tier: Any = SimpleNamespace(frames=frames)
    labeller = Labeller(Mock(), tier)

    def begin(tenant: str, source: str) -> int:
        for _ in range(MAX_TENANT + 3):
            call: Any = SimpleNamespace(exchange=Mock(), tenant=tenant)
            labeller.begin(route, "f", call, Mock(), source)
        return frames.budget(tenant, ROUTE).pending

    assert begin("a", "label") == START_LABELS, "the budget allows no more"
    assert begin("a", "audit") == MAX_TENANT, "audits are free"
    assert begin("b", "audit") == MAX_TENANT
    assert begin("c", "audit") == MAX_PENDING - 2 * MAX_TENANT == 0
    free.set()
    await asyncio.gather(*labeller._tasks)
    assert (labeller._pending.total(), frames.budget("a", ROUTE).pending) == (0, 0)


def test_a_request_whose_cheaper_answer_fails_a_check_costs_both_calls() -> None:
    found = Frames().for_label("a", "", ROUTE, "large")
    assert found is not None
    for k, rung in enumerate(("equal", "escalated")):
        found.add(label(k, 0.0)._replace(asked_answer=1.0, cheaper_answer=0.1, rung=rung, asked_cost=3.0), own=k == 0)
    assert found.answer_ratio == pytest.approx(10.0)
    assert found.price_ratio == pytest.approx(2.0 / (0.2 + 1.0))
    assert found.budget.asked_cost == 3.0, "this process has counted the cost of its own label before"


def test_a_caller_with_ever_new_prompts_pays_few_labels(tmp_path: Path) -> None:
    with swapping(tmp_path, route_fields={"swap_budget": 0.0}) as client:
        for k in range(100):
            client.ask(system=f"prompt {k}")
        client.settle_labels()
        answered = [model for model, _ in client.upstream.answered]
        assert answered.count(CHEAPER) == START_LABELS


def test_a_hostile_tenant_stops_no_frame_of_another(tmp_path: Path) -> None:
    keys = {name: f"kc-{name}-xxxxxxxxxxxxxxxxxxxxxxxx" for name in ("team", "hostile")}
    tenants = [{"name": name, "keys": [digest_of(key)]} for name, key in keys.items()]
    with (
        swapping(tmp_path, tenants=tenants, key=keys["team"]) as team,
        SwapClient(team.running, team.upstream, keys["hostile"]) as hostile,
    ):
        for k in range(15):
            hostile.ask(system=f"prompt {k}")
        for k in range(400):
            team.ask()
            hostile.ask(system=f"another prompt {k % 50}")
            if k % 10 < 9:
                continue
            team.settle_labels()
            if "certified" in {each["state"] for each in team.frames() if each["tenant"] == "team"}:
                break
        assert any(team.ask().swapped for _ in range(10))
        for k in range(15):
            hostile.ask(system=f"a third prompt {k}")
        assert any(team.ask().swapped for _ in range(10))


def test_a_caller_without_a_tenant_stops_no_certified_frame(tmp_path: Path) -> None:
    with swapping(tmp_path) as client:
        client.learn()
        for k in range(25):
            client.ask(system=f"prompt {k}")
        client.settle_labels()
        assert any(client.ask().swapped for _ in range(10))
        client.running.proxy.features.get("swap").tier.frames.labelled.check()
