"""One key in RATE has a number of its own while it has its id."""

from __future__ import annotations

import random

import numpy as np
import pytest

from knapcache.cache.ids import IdTable
from knapcache.cache.key_sample import RATE, KeySample
from knapcache.errors import CorruptState
from knapcache.policy import registry


def table_of(count: int, ids: int | None = None) -> IdTable:
    table, rng = IdTable(registry.find("lru").build(100, ids or count)), random.Random(1)
    for _ in range(count):
        table.intern(rng.randbytes(32))
    return table


def test_one_key_in_eight_has_a_number() -> None:
    table = table_of(8000)
    sample = KeySample(table)
    numbers = [sample.number(i) for i in range(8000)]
    chosen = [number for number in numbers if number >= 0]
    assert 900 < len(chosen) < 1100
    assert chosen == list(range(len(chosen))), "numbers have no gaps"
    assert numbers == [sample.number(i) for i in range(8000)] == [sample.known(i) for i in range(8000)]
    assert sample.select(np.arange(8000)).tolist() == [i for i in range(8000) if numbers[i] >= 0]
    assert [table.key(i)[-1] % RATE == 0 for i in range(8000)] == [number >= 0 for number in numbers]
    sample.check()


def test_the_number_of_a_recycled_id_is_used_again() -> None:
    table, rng = table_of(200), random.Random(2)
    sample = KeySample(table)
    for _ in range(5000):
        i, recycled, _ = table.intern(rng.randbytes(32))
        assert recycled
        before = sample.known(i)
        sample.release(i)
        assert sample.known(i) == -1
        sample.number(i)
        assert before < sample.size
        sample.check()
    assert sample._used < 60


def test_keys_without_a_free_number_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knapcache.cache.key_sample.SPARE", -90)
    sample = KeySample(table_of(800))
    assert sample.size == 10
    numbers = [sample.number(i) for i in range(800)]
    assert max(numbers) == 9
    assert sum(number >= 0 for number in numbers) == 10
    sample.check()


def test_wrong_numbers_are_noticed() -> None:
    table = table_of(100)
    sample = KeySample(table)
    numbered = [i for i in range(100) if sample.number(i) >= 0]
    first, second = numbered[:2]
    sample._numbers[first] = sample._numbers[second]
    with pytest.raises(CorruptState, match="sampled keys"):
        sample.check()
    sample = KeySample(table)
    sample._numbers[next(i for i in range(100) if i not in numbered)] = 1
    sample._used = 1
    with pytest.raises(CorruptState, match="sampled keys"):
        sample.check()
