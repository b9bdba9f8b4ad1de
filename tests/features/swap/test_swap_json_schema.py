"""Answers and JSON schemas, against the package jsonschema; and schemas that would take long."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from knapcache.features.swap.json_schema import MAX_STEPS, fits
from tests.support.examples import examples
from tests.support.timing import check_seconds

NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.one_of(st.none(), st.booleans(), st.sampled_from([0, 1, 2, 0.5, 1.0]), st.sampled_from(["", "x", "y"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)
KINDS = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])


def keywords(inner: Any) -> Any:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.one_of(KINDS, st.lists(KINDS, min_size=1, max_size=2, unique=True)),
            "enum": st.lists(SCALARS, min_size=1, max_size=3),
            "const": SCALARS,
            "required": st.lists(NAMES, max_size=2, unique=True),
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
        },
    )


SCHEMAS = keywords(st.recursive(keywords(st.booleans()), keywords, max_leaves=4))


@given(SCHEMAS, VALUES)
@settings(max_examples=examples(60, 2000), deadline=None)
def test_the_same_as_a_reference(schema: Any, value: Any) -> None:
    assert fits(value, schema) == Draft202012Validator(schema).is_valid(value)


TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
    "required": ["name", "next"],
    "additionalProperties": False,
}


def test_definitions() -> None:
    schema = {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}
    assert fits({"name": "a", "next": {"name": "b", "next": None}}, schema)
    assert not fits({"name": "a", "next": {"name": 7, "next": None}}, schema)
    assert fits([7], {"type": "array", "items": {"$ref": "#/elsewhere"}}), "what is not known is not checked"
    assert fits({"a": []}, {"properties": {"a": {"items": {"$ref": "#"}}}})


@pytest.mark.parametrize(
    "schema", [None, 7, [], "x", True, {"type": "tuple"}, {"type": 7}, {"enum": 7}, {"required": 7}]
)
def test_what_is_no_schema_prescribes_nothing(schema: Any) -> None:
    assert fits({"a": 1}, schema)


def deep(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = {"next": value, "name": "x"}
    return value


LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (LOOP, 1),
        ({"$ref": "#", "type": "integer"}, 1),
        ({"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}, deep(900)),
        ({"items": {"enum": list(range(10_000))}}, [-1] * 10_000),
        ({"pattern": "(a+)+$"}, "a" * 50_000 + "!"),
        ({"items": {"type": "integer"}}, list(range(100_000))),
    ],
)
def test_a_hostile_schema_takes_no_time(schema: Any, value: Any) -> None:
    started = time.process_time()
    assert isinstance(fits(value, schema), bool)
    check_seconds(time.process_time() - started, 0.5, f"{MAX_STEPS} steps")
