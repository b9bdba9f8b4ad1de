"""The cost of a miss for the policy: that of the model that would answer it now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache.cache.admission import AdmissionController
from knapcache.cache.roles import Owner
from knapcache.features.swap import frame, prices
from tests.features.swap.two_models import ASKED, CHEAPER, SwapClient, new_question, swapping
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
