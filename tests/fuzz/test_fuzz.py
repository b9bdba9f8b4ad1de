"""Mutated inputs of every parser that reads bytes from outside, each with a judge (tests/support/fuzzing)."""

from __future__ import annotations

import pytest

from tests.support.fuzzing.admin import fuzz_admin
from tests.support.fuzzing.heads import fuzz_heads
from tests.support.fuzzing.keys import fuzz_keys
from tests.support.fuzzing.sse import fuzz_sse


def test_keys() -> None:
    counts = fuzz_keys(3000, 1)
    assert counts["keyed"] > 500
    assert counts["refused"] > 500
    assert counts["respelled"] > 50


def test_server_sent_events() -> None:
    counts = fuzz_sse(3000, 1)
    assert counts["events"] > 2000
    assert counts["oversized"] > 20


def test_request_heads() -> None:
    counts = fuzz_heads(1500, 1)
    assert counts["requests"] > 200
    assert counts["refused"] > 500
    assert counts["incomplete"] > 50


def test_the_admin_api() -> None:
    counts = fuzz_admin(800, 1)
    assert counts["succeeded"] > 50
    assert counts["refused"] > 200
    assert counts["refused_without_token"] > 50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 5))
def test_keys_for_long(seed: int) -> None:
    print(fuzz_keys(100_000, seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 7))
def test_server_sent_events_for_long(seed: int) -> None:
    print(fuzz_sse(100_000, seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
def test_request_heads_for_long(seed: int) -> None:
    print(fuzz_heads(50_000, seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 4))
def test_the_admin_api_for_long(seed: int) -> None:
    print(fuzz_admin(25_000, seed))
