"""The cost of a miss for the policy: that of the model that would answer it now."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache.cache.admission import AdmissionController
from knapcache.cache.roles import Owner
from knapcache.features.swap import frame, prices
from knapcache.features.swap.prices import FramePrice
from knapcache.features.swap.tier import frame_name
from knapcache.proxy.settings.secrets import digest_of
from tests.features.swap.two_models import ASKED, CHEAPER, JUDGE, SwapClient, TwoModels, new_question, swapping
from tests.support.timing import wait_until


def admission_of(client: SwapClient) -> AdmissionController:
    role = client.running.proxy.cache.coordinator.role
    assert isinstance(role, Owner)
    return role.admission


def miss_costs(client: SwapClient, model: str) -> list[float]:
    """Return what a miss of each entry of a model costs for the policy, divided by what was paid."""
    admission = admission_of(client)
    with admission.deciding:
        rows, records = admission.policy.rows, admission.index.records
        ids = np.flatnonzero(rows["resident"])
        ids = ids[records["model"][ids] == admission.index.models.find(model)]
        found: list[float] = (rows["paid"][ids] / rows["misses"][ids] / records["cost"][ids]).tolist()
        return found


def test_stored_answers_have_the_price_of_the_model_that_would_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "AUDIT", 0.3)
    monkeypatch.setattr(prices, "CHECK_SECONDS", 0.05)
    with swapping(tmp_path, policy="gdsf-cost") as client:
        client.ask()
        wait_until(lambda: miss_costs(client, ASKED) == [1.0])
        asked = client.learn() + 1
        ratio = client.frames()[0]["price_ratio"]
        assert ratio > 5
        wait_until(lambda: miss_costs(client, ASKED).count(1.0) < asked / 2)  # answers of audits keep their price
        changed = [cost for cost in miss_costs(client, ASKED) if cost != 1.0]
        assert changed == pytest.approx([1 / ratio] * len(changed), rel=0.1)
        assert any(client.ask().swapped for _ in range(20))
        assert set(miss_costs(client, CHEAPER)) == {1.0}
        client.upstream.wrong_every = 1
        while client.state() == "certified":
            client.ask()
            client.settle_labels()
        wait_until(lambda: set(miss_costs(client, ASKED)) == {1.0})
        client.running.proxy.cache.check()


@pytest.mark.parametrize(
    ("changes", "cheaper"),
    [({}, True), ({"swap": "off"}, False), ({"swap": "shadow"}, False), ({"swap_judge": JUDGE}, False)],
    ids=["same settings", "off", "shadow", "another judge"],
)
@pytest.mark.parametrize("policy", ["gdsf-cost", "adaptive"])
def test_after_a_restart_only_a_certificate_gives_the_cheaper_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, changes: dict[str, Any], cheaper: bool
) -> None:
    monkeypatch.setattr(prices, "CHECK_SECONDS", 0.05)
    with TwoModels() as upstream:
        with swapping(tmp_path, upstream, policy=policy) as client:
            client.learn()
            wait_until(lambda: set(miss_costs(client, ASKED)) != {1.0})
            number = len(miss_costs(client, ASKED))
        with swapping(tmp_path, upstream, policy=policy, route_fields=changes) as client:
            assert len(miss_costs(client, ASKED)) == number
            if cheaper:
                wait_until(lambda: set(miss_costs(client, ASKED)) != {1.0})
            else:
                assert miss_costs(client, ASKED) == [1.0] * number
            client.running.proxy.cache.check()


def test_prices_are_restored_for_a_frame_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "CHECK_SECONDS", 0.05)
    with swapping(tmp_path, policy="gdsf-cost") as client:
        client.learn()
        wait_until(lambda: set(miss_costs(client, ASKED)) != {1.0})
        client.running.proxy.features.get("swap").tier.frames.clear()  # as if the log were lost
        wait_until(lambda: set(miss_costs(client, ASKED)) == {1.0})


def test_a_failure_is_logged_once_and_prices_are_updated_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prices, "CHECK_SECONDS", 0.01)
    failures = itertools.count()

    def fail(canonical: bytes) -> prices.FirstTurn | None:
        if next(failures) < 3:
            raise RuntimeError("broken")
        return read(canonical)

    read = prices.first_turn
    monkeypatch.setattr(prices, "first_turn", fail)
    with swapping(tmp_path, policy="gdsf-cost") as client:
        client.learn()
        wait_until(lambda: set(miss_costs(client, ASKED)) != {1.0})
    assert [record.message for record in caplog.records if "prices of misses" in record.message] == [
        "Swap: the prices of misses were not updated; this is tried again"
    ]


def test_entries_are_compared_with_owners_of_their_namespace_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that, a thousand tenants would make it a million comparisons for a thousand entries."""
    compared: Counter[str] = Counter()

    def counted(route: Any, tenant: str, *args: Any) -> str:
        compared[tenant] += 1
        return frame_name(route, tenant, *args)

    keys = {name: f"kc-{name}-xxxxxxxxxxxxxxxxxxxxxxxx" for name in ("team", "other")}
    tenants = [{"name": name, "keys": [digest_of(key)]} for name, key in keys.items()]
    with (
        swapping(tmp_path, tenants=tenants, key=keys["team"], policy="gdsf-cost") as team,
        SwapClient(team.running, team.upstream, keys["other"]) as other,
    ):
        for client, name, number in ((team, "team", 5), (other, "other", 3)):
            while not any(frame["labels"] for frame in client.frames() if frame["tenant"] == name):
                client.ask(system="To have a label.")
                client.settle_labels()
            for _ in range(number):
                client.ask()
        feature = team.running.proxy.features.get("swap")
        routes, frames = feature.tier.routes, feature.tier.frames.labelled
        found = {name: FramePrice(routes[each.route], each.tenant, each.namespace, 1.0) for name, each in frames}
        assert {price.tenant for price in found.values()} == {"team", "other"}
        monkeypatch.setattr(prices, "frame_name", counted)
        feature.prices._reprice(found)  # the thread of the proxy has nothing to do: no certificate starts or ends
        assert compared.total() == team.running.admin("/entries")["total"]


def test_entries_of_other_frames_and_later_turns_keep_their_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "AUDIT", 0.0)
    monkeypatch.setattr(prices, "CHECK_SECONDS", 0.05)
    with swapping(tmp_path, policy="gdsf-cost") as client:
        turns = [("user", new_question()), ("assistant", "right"), ("user", new_question())]
        others: list[dict[str, Any]] = [
            {"system": "You are a poet."},
            {"logprobs": True},
            {"messages": [{"role": role, "content": text} for role, text in turns]},
        ]
        for fields in others:
            client.ask(**fields)
        client.learn()
        wait_until(lambda: miss_costs(client, ASKED).count(1.0) == len(others))
