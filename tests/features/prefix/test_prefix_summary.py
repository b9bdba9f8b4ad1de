"""Prompt caching at providers in GET /summary."""

from __future__ import annotations

import contextlib
import time

import pytest
from starlette.testclient import TestClient

from tests.features.prefix.prefix_events import prefix_event
from tests.support.admin_context import AdminHarness
from tests.support.events import event

API = "/admin/v1"


def test_the_summary_has_prompt_caching_at_providers() -> None:
    with contextlib.closing(AdminHarness()) as harness:
        check_summary(harness, harness.client())


def test_without_the_tier_the_summary_has_nothing_of_it() -> None:
    with contextlib.closing(AdminHarness(prefix="off")) as harness:
        assert "prefix" not in harness.client().get(f"{API}/summary").raise_for_status().json()


def check_summary(harness: AdminHarness, client: TestClient) -> None:
    empty = client.get(f"{API}/summary").raise_for_status().json()["prefix"]
    assert empty == {
        "mode": "observe",
        "since": None,
        **{key: {"upstreams": [], "tariffs": []} for key in ("today", "all")},
    }
    now = time.time()
    harness.events.append(event("miss", time=now, upstream="fake", prefix=prefix_event()))
    found = client.get(f"{API}/summary").raise_for_status().json()["prefix"]
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
