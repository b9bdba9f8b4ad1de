"""Keys of arguments: equal arguments have equal keys, different ones have different keys."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from knapcache import TypedSerializer, Uncacheable
from knapcache.cache.serialize.arguments import json_text, typed
from knapcache.keys import Keyer
from tests.cache.serialize import examples
from tests.cache.serialize.examples import VALUES, Color, Level, Pair, Part, Point, same
from tests.cache.serialize.test_typed_serializer import values

keyer = Keyer(bytes(16))


def key_of(value: Any) -> bytes:
    return keyer.call("f", {"x": typed(value)}).digest


@pytest.mark.parametrize("name", VALUES)
def test_a_copy_has_the_same_key(name: str) -> None:
    value = VALUES[name]
    serializer = TypedSerializer()
    assert key_of(value) == key_of(copy.deepcopy(value)) == key_of(serializer.loads(serializer.dumps(value)))


def test_different_values_have_different_keys() -> None:
    different: list[Any] = [
        *VALUES.values(), {1, 2}, frozenset({1, 2}), [1, 2], (1, 2), Point(1, 2), Pair(1, 2), {1: 2}, {"1": 2},
        {1.0: 2},
        Color.RED, "RED", "r", Level.LOW, 1, True, 1.0, Part(name="a"), Part(name="a", weight=None),
        {"name": "a", "weight": None}, math.nan, "nan", 10**80, -(10**80), "\ud800", bytearray(b"1"), b"1",
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


def test_order_does_not_count() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of({1: "x", 2: "y"}) == key_of({2: "y", 1: "x"})
    assert key_of({10, 9, "a"}) == key_of({"a", 9, 10})


@pytest.mark.parametrize("value", [object(), print, [lambda: 1], np.arange(2), np.float64(1)])
def test_other_values_have_no_key(value: Any) -> None:
    with pytest.raises(Uncacheable):
        typed(value)


def test_keys_of_0_1_are_unchanged() -> None:
    value = [None, True, 1, 2.5, "é", b"x", (1,), {"b": 1, "a": {"c": []}}, -0.0]
    assert typed(value) == [
        None, True, 1, {"float": "2.5"}, "é", {"bytes": "78"}, {"tuple": [1]},
        {"dict": [["a", {"dict": [["c", []]]}], ["b", 1]]}, {"float": "-0.0"},
    ]  # fmt: skip
