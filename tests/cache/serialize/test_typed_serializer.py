"""The default serializer: what goes in comes out with its types, in this process and in others."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import math
import pathlib
import subprocess
import sys
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from knapcache import InvalidInput, TypedSerializer, Unserializable
from knapcache.cache.serialize import classes
from tests.cache.serialize import examples
from tests.cache.serialize.examples import VALUES, Lazy, Outer, Part, same

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5)
    | st.decimals(allow_nan=False) | st.fractions() | st.complex_numbers(allow_nan=False) | st.uuids() | st.dates()
    | st.datetimes(timezones=st.none() | st.timezones()) | st.timedeltas() | st.times()
    | st.sampled_from([*examples.Color, *examples.Level, examples.Access.READ, pathlib.Path("/x"), range(3), "\ud800"])
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(st.integers() | st.tuples(st.text(max_size=2)) | st.binary(max_size=2), inner, max_size=3)
        | st.builds(examples.Pair, inner, inner)
        | st.builds(Outer, st.builds(examples.Inner, st.datetimes()), st.tuples(inner))
        | st.builds(Part.model_construct, name=st.text(max_size=3), weight=inner)
        | st.sets(st.integers() | st.text(max_size=2), max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_with_its_types(name: str) -> None:
    serializer, value = TypedSerializer(), VALUES[name]
    data = serializer.dumps(value)
    assert type(data) is bytes
    found = serializer.loads(data)
    assert same(found, value)
    assert found is not value
    assert serializer.dumps({"in": [value, (value,)]})
    assert same(serializer.loads(serializer.dumps({"in": [value, (value,)]})), {"in": [value, (value,)]})


@given(values)
def test_any_value_comes_back(value: Any) -> None:
    serializer = TypedSerializer()
    assert same(serializer.loads(serializer.dumps(value)), value)


@given(st.recursive(st.none() | st.integers(0, 9) | st.text(max_size=3), st.lists, max_leaves=5))
def test_json_values_are_stored_as_in_0_1(value: Any) -> None:
    assert TypedSerializer().dumps(value) == orjson.dumps(value)
    assert TypedSerializer().loads(orjson.dumps(value)) == value


def test_cached_properties_are_computed_again() -> None:
    serializer, lazy = TypedSerializer(), Lazy(3)
    assert lazy.square == 9
    found = serializer.loads(serializer.dumps(lazy))
    assert vars(found) == {"n": 3}
    assert found.square == 9


def test_neither_constructors_nor_validators_run() -> None:
    runs: list[str] = []

    @dataclasses.dataclass
    class Noisy:
        x: int

        def __post_init__(self) -> None:
            runs.append("post_init")

    class Loud(pydantic.BaseModel):
        x: int

        def model_post_init(self, _context: Any) -> None:
            runs.append("model_post_init")

        @pydantic.field_validator("x")
        @classmethod
        def check(cls, x: int) -> int:
            runs.append("validator")
            return x

    serializer, before = TypedSerializer(), [Noisy(1), Loud(x=2)]
    data = serializer.dumps(before)
    runs.clear()
    assert serializer.loads(data) == before
    assert runs == []


class MyInt(int):
    pass


@dataclasses.dataclass
class Extra:
    x: int


@dataclasses.dataclass
class Failure(Exception):  # noqa: N818
    x: int = 1


class Sticky(pydantic.BaseModel):
    x: int

    def model_post_init(self, _context: Any) -> None:
        self.__dict__["more"] = 1


class SlotBase:
    __slots__ = ("hidden",)


@dataclasses.dataclass
class Slotted(SlotBase):
    x: int = 1


class NamedZone(dt.tzinfo):
    def utcoffset(self, _moment: dt.datetime | None, /) -> dt.timedelta:
        return dt.timedelta(0)

    dst = utcoffset

    def tzname(self, _moment: dt.datetime | None, /) -> str:
        return "zone"


def with_attribute(value: Any) -> Any:
    value.more = 1
    return value


def cyclic() -> Any:
    inside: list[Any] = []
    inside.append(inside)
    return inside


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "builtins.object has no serializer"),
        (MyInt(3), "MyInt has no serializer"),
        (lambda: 1, "function has no serializer"),
        ([examples], "module has no serializer"),
        (cyclic(), "more than 200 levels"),
        (with_attribute(Extra(1)), "attributes that are not fields: more"),
        (Failure(), "derived from a built-in type"),
        (Slotted(), "slots that are not fields"),
        (dt.datetime(2024, 1, 1, tzinfo=NamedZone()), "time zone of type"),
        (np.arange(2), "numpy.ndarray has no serializer: pass one that stores it"),
        ([np.float64(1)], "numpy.float64 has no serializer"),
        (Sticky(x=1), "attributes that are not fields: more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_values_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(Unserializable, match=reason):
        TypedSerializer().dumps(value)


def test_a_registered_class_comes_back() -> None:
    class Money:
        def __init__(self, amount: Decimal, currency: str) -> None:
            self.amount, self.currency = amount, currency

    serializer = TypedSerializer()
    serializer.register(Money, "money", lambda m: [m.amount, m.currency], lambda parts: Money(*parts))
    found = serializer.loads(serializer.dumps({"price": Money(Decimal("1.20"), "EUR")}))["price"]
    assert (type(found), found.amount, found.currency) == (Money, Decimal("1.20"), "EUR")
    with pytest.raises(InvalidInput, match="'money' is registered already"):
        serializer.register(MyInt, "money", int, MyInt)
    with pytest.raises(Unserializable, match="unknown kind money:custom"):
        TypedSerializer().loads(serializer.dumps(Money(Decimal(1), "EUR")))


def test_only_classes_with_fields_may_be_given() -> None:
    with pytest.raises(InvalidInput, match="types must be dataclasses, pydantic models, named tuples or enums"):
        TypedSerializer(types=[subprocess.Popen])


# Which classes a stored value may name.


def test_a_class_is_known_where_its_values_were_stored() -> None:
    data = TypedSerializer().dumps(VALUES["dataclass"])
    with pytest.raises(Unserializable, match=r"examples:\w+ is not known in this process: annotate"):
        TypedSerializer().loads(data)
    assert same(TypedSerializer(types=[Outer, examples.Inner]).loads(data), VALUES["dataclass"])


def test_classes_of_fields_are_known_with_their_class() -> None:
    data = TypedSerializer().dumps(VALUES["model"])
    assert same(TypedSerializer(types=[examples.Model]).loads(data), VALUES["model"])


def test_classes_of_a_loaded_sdk_are_known() -> None:
    data = TypedSerializer().dumps(examples.completion)
    found: Any = TypedSerializer().loads(data)
    assert type(found) is ChatCompletion
    found = found.model_copy()
    assert type(found.choices[0].message.tool_calls[0].function).__name__ == "Function"
    assert found.choices[0].message.reasoning_content == "a field that the SDK does not know"
    assert found.to_dict() == examples.completion.to_dict()


def annotated() -> list[tuple[str, Part]] | None: ...


class Elsewhere(enum.Enum):
    ONE = 1


def test_classes_of_a_function_are_known() -> None:
    serializer = TypedSerializer()
    for value in (Part(name="a"), Elsewhere.ONE, Extra(1)):
        with pytest.raises(Unserializable, match="not known"):
            serializer.loads(TypedSerializer().dumps([value]))
    serializer.known.add_function(annotated)
    for value in (Part(name="a"), Elsewhere.ONE, Extra(1)):
        assert serializer.loads(TypedSerializer().dumps([value])) == [value]


def test_a_class_whose_fields_changed_is_a_miss() -> None:
    def version(**fields: Any) -> Any:
        return dataclasses.make_dataclass("Changing", fields, namespace={"__module__": __name__})

    old, new = version(a=int), version(a=int, b=int)
    data = TypedSerializer().dumps(old(1))
    with pytest.raises(Unserializable, match="other fields than when the value was stored"):
        TypedSerializer(types=[new]).loads(data)
    Changing = enum.Enum("Changing", "A", module=__name__)
    with pytest.raises(Unserializable, match="another kind of class now"):
        TypedSerializer(types=[Changing]).loads(data)


# Hostile values.


def forged(tree: Any, *buffers: bytes) -> bytes:
    """Return a stored value with this tree."""
    text = orjson.dumps([tree, [len(buffer) for buffer in buffers]])
    return b"\x01" + len(text).to_bytes(4, "little") + text + b"".join(buffers)


def nested(depth: int) -> bytes:
    text = b"[" + b'{"tuple":[' * depth + b"]}" * depth + b",[]]"
    return b"\x01" + len(text).to_bytes(4, "little") + text


PART: list[Any] = [classes.class_name(Part), {"dict": {"name": "a", "weight": None}}, [], None, []]

HOSTILE = {
    "a function": forged({"dataclass": ["os:system", {"dict": {"command": "true"}}]}),
    "a module": forged({"model": ["os", {"dict": {}}, [], None, [], None, {"dict": {}}]}),
    "a class with side effects": forged({"dataclass": ["subprocess:Popen", {"dict": {"args": "true"}}]}),
    "a private class of an SDK": forged({"enum": ["openai:os.system", "x"]}),
    "a class of an SDK without fields": forged(
        {"model": ["openai:OpenAI", {"dict": {}}, [], None, [], None, {"dict": {}}]}
    ),
    "a known class of another kind": forged({"enum": [classes.class_name(Part), "name"]}),
    "missing fields": forged({"model": [classes.class_name(Part), {"dict": {}}, [], None, [], None, {"dict": {}}]}),
    "other private attributes": forged({"model": [*PART, {"dict": {"x": 1}}, {"dict": {}}]}),
    "an attribute in place of a method": forged({"model": [*PART, None, {"dict": {"_iter": 1}}]}),
    "an attribute in place of a public method": forged({"model": [*PART, None, {"dict": {"model_dump": 1}}]}),
    "fields that are none": forged({"dataclass": [classes.class_name(Extra), {"dict": {"__class__": 1}}]}),
    "no member": forged({"enum": [classes.class_name(Elsewhere), "__class__"]}),
    "no such tag": forged({"pickle": "x"}),
    "two tags": forged({"tuple": [], "set": []}),
    "no buffer": forged({"bytes": 0}),
    "a negative buffer": forged({"bytes": -1}, b"x"),
    "a list as the name of an item": forged({"items": [[[], 1]]}),
    "a set of lists": forged({"set": [[]]}),
    "text in place of a list": forged({"tuple": "abc"}),
    "a huge range": forged({"tuple": {"range": [0, 10**15, 1]}}),
    "an absolute zone": forged({"datetime": ["2024-01-01T00:00:00", 0, "/etc/passwd"]}),
    "a path of another system": forged({"path": ["WindowsPath", "c:"]}),
    "a path of no class": forged({"path": ["system", "c:"]}),
    "a deep value": nested(240),
    "a very deep value": nested(100_000),
    "no text": b"\x01",
    "a length beyond the end": b"\x01\xff\xff\xff\xff[]",
    "another layout": b"\x03" + forged(1)[1:],
    "bytes after the end": forged(1) + b"x",
    "a pickle": b"\x80\x04\x95\x1c\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_value_is_an_error_and_runs_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serializer, loaded = TypedSerializer(types=[Part, Extra, Elsewhere]), set(sys.modules)
    monkeypatch.setattr("os.system", lambda _: pytest.fail("code was run"))
    with pytest.raises(Unserializable):
        serializer.loads(HOSTILE[name])
    assert set(sys.modules) - loaded == set()


@given(st.sampled_from(sorted(VALUES)), st.data())
def test_a_damaged_value_is_an_error_or_another_value(name: str, data: st.DataObject) -> None:
    """The store's checksum finds damage. Here only: nothing but Unserializable is raised."""
    serializer = TypedSerializer()
    stored = bytearray(serializer.dumps(VALUES[name]))
    for _ in range(data.draw(st.integers(1, 4))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Unserializable):
        serializer.loads(bytes(stored))


def test_not_a_number_comes_back() -> None:
    serializer = TypedSerializer()
    assert math.isnan(serializer.loads(serializer.dumps(math.nan)))
    assert serializer.loads(serializer.dumps(uuid.UUID(int=1))) == uuid.UUID(int=1)
