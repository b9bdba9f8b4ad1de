"""Keys of arguments: equal arguments have equal keys, different ones have different keys."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given

from knapcache import TypedSerializer, Uncacheable
from knapcache.cache.serialize.arguments import json_text, typed
from knapcache.keys import Keyer
from tests.cache.serialize import examples
from tests.cache.serialize.examples import FRAMES, Color, Level, Pair, Part, Point, same
from tests.cache.serialize.test_typed_serializer import EXAMPLES, values

keyer = Keyer(bytes(16))


def key_of(value: Any) -> bytes:
    return keyer.call("f", {"x": typed(value)}).digest


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_copy_has_the_same_key(name: str) -> None:
    value = EXAMPLES[name]
    serializer = TypedSerializer()
    assert key_of(value) == key_of(copy.deepcopy(value)) == key_of(serializer.loads(serializer.dumps(value)))


def test_different_values_have_different_keys() -> None:
    different: list[Any] = [
        *EXAMPLES.values(), {1, 2}, frozenset({1, 2}), [1, 2], (1, 2), Point(1, 2), Pair(1, 2), {1: 2}, {"1": 2},
        {1.0: 2},
        Color.RED, "RED", "r", Level.LOW, 1, True, 1.0, np.int64(1), np.int32(1), np.array(1), np.array([1]),
        np.array([[1]]), np.array([1.0]), np.array([1], ">i8"), Part(name="a"), Part(name="a", weight=None),
        {"name": "a", "weight": None}, math.nan, "nan", 10**80, -(10**80), "\ud800", bytearray(b"1"), b"1",
        pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]}), pd.DataFrame({"a": [1.0]}),
        pd.DataFrame({"a": [1]}, index=[1]),
        pd.Series([1]), pl.DataFrame({"a": [1]}), pl.DataFrame({"a": [None]}), pl.Series("a", [1]),
    ]  # fmt: skip
    keys = [key_of(value) for value in different]
    assert len(set(keys)) == len(different)


@given(values, values)
def test_keys_are_equal_exactly_if_values_are(a: Any, b: Any) -> None:
    assert (json_text(typed(a)) == json_text(typed(b))) == same(ordered(a), ordered(b))
    assert key_of(a) == key_of(copy.deepcopy(a))


def ordered(value: Any) -> Any:
    """Return a value with the items of dicts and sets in one order."""
    if type(value) is dict:
        return {name: ordered(value[name]) for name in sorted(value, key=repr)}
    if type(value) in (set, frozenset):
        return type(value), sorted(map(repr, value))
    if type(value) in (list, tuple):
        return type(value)(map(ordered, value))
    if type(value) is Pair:
        return Pair(ordered(value.first), ordered(value.second))
    if type(value) is examples.Outer:
        return type(value), value.inner, ordered(value.many)
    if type(value) is Part:
        return type(value), value.name, ordered(value.weight), value.model_fields_set
    return value


def test_order_and_memory_layout_do_not_count() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of({1: "x", 2: "y"}) == key_of({2: "y", 1: "x"})
    assert key_of({10, 9, "a"}) == key_of({"a", 9, 10})
    matrix = np.arange(6).reshape(2, 3)
    assert key_of(matrix) == key_of(np.asfortranarray(matrix)) == key_of(np.arange(12)[::2].reshape(2, 3) // 2)
    frame = FRAMES["plain"]
    assert key_of(frame) == key_of(pd.concat([frame.iloc[:1], frame.iloc[1:]]))
    halves = FRAMES["polars"]
    assert key_of(halves) == key_of(pl.concat([halves[:1], halves[1:]], rechunk=False))


def test_large_arrays_take_little_space_in_a_key() -> None:
    for value in (np.zeros(100_000), pd.DataFrame({"a": np.zeros(100_000)}), pl.DataFrame({"a": np.zeros(100_000)})):
        assert len(keyer.call("f", {"x": typed(value)}).canonical) < 500


@pytest.mark.parametrize("value", [object(), print, [lambda: 1], np.array([object()]), np.ma.masked_array([1])])
def test_other_values_have_no_key(value: Any) -> None:
    with pytest.raises(Uncacheable):
        typed(value)


def test_keys_of_0_1_are_unchanged() -> None:
    value = [None, True, 1, 2.5, "é", b"x", (1,), {"b": 1, "a": {"c": []}}, -0.0]
    assert typed(value) == [
        None, True, 1, {"float": "2.5"}, "é", {"bytes": "78"}, {"tuple": [1]},
        {"dict": [["a", {"dict": [["c", []]]}], ["b", 1]]}, {"float": "-0.0"},
    ]  # fmt: skip
