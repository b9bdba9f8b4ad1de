"""Classes and values for the tests of serializers."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import math
import pathlib
import uuid
import zoneinfo
from collections import namedtuple
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar

import pydantic
from openai.types.chat import ChatCompletion

T = TypeVar("T")


class Color(enum.Enum):
    RED = "r"
    BLUE = ("b", 2)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


Pair = namedtuple("Pair", "first second")


@dataclass
class Inner:
    when: dt.datetime
    color: Color = Color.RED


@dataclass(frozen=True, slots=True)
class Outer(Generic[T]):
    inner: Inner
    many: tuple[T, ...] = ()
    total: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", len(self.many))

    @property
    def double(self) -> int:
        return 2 * self.total


@dataclass
class Lazy:
    n: int

    @functools.cached_property
    def square(self) -> int:
        return self.n**2


class Part(pydantic.BaseModel):
    name: str
    weight: Decimal | None = None


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    parts: list[Part]
    point: Point | None = None
    path: pathlib.PurePosixPath = pathlib.PurePosixPath("a/b")
    _secret: int = pydantic.PrivateAttr(default=3)

    @pydantic.field_validator("parts")
    @classmethod
    def doubled(cls, parts: list[Part]) -> list[Part]:
        """A validator that must not run again."""
        return parts * 2


Names = pydantic.RootModel[list[str]]

COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "gpt-4o",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning_content": "a field that the SDK does not know",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}
completion = ChatCompletion.construct(**COMPLETION)
completion._request_id = "req_1"
"""As the SDK makes it, without validation."""

UTC_PLUS_2 = dt.timezone(dt.timedelta(hours=2))
PARIS = zoneinfo.ZoneInfo("Europe/Paris")
fold = dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=PARIS)

VALUES: dict[str, Any] = {
    "tuple": (1, (2.0, "x"), []),
    "named tuple": [Point(1, 2.5), Pair("a", (1,))],
    "sets": [{1, "a", (2, 3)}, frozenset({None, 1.5}), set()],
    "bytes": {"a": b"\x00\xff", "b": bytearray(b"xyz"), "c": b""},
    "numbers": [2**70, -(2**200), math.inf, -math.inf, -0.0, 1e-320, 1 + 2j, Fraction(1, 3), Decimal("1.50")],
    "decimals": [Decimal("NaN"), Decimal("-Infinity"), Decimal("1E+400"), Decimal("-0")],
    "surrogates": ["\ud800", {"\ud800": "é"}],
    "other names": {1: "a", (2, "b"): None, None: 3, 1.5: {}},
    "times": [
        dt.date(2024, 2, 29),
        dt.datetime(2024, 1, 2, 3, 4, 5, 6),
        fold,
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 1, tzinfo=UTC_PLUS_2),
        dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=-1), "name")),
        dt.time(1, 2, tzinfo=UTC_PLUS_2),
        dt.timedelta(days=-1, microseconds=5),
    ],
    "uuid": uuid.UUID(int=5),
    "range": range(1, 10, 3),
    "paths": [pathlib.Path("/a/b"), pathlib.PurePosixPath("c"), pathlib.PureWindowsPath("c:/d")],
    "enums": [Color.BLUE, Level.LOW, Word.YES, Access.READ | Access.WRITE, Access(0)],
    "dataclass": Outer(Inner(fold, Color.BLUE), (1, "a")),
    "model": Model(parts=[Part(name="a", weight=Decimal("1.0"))], point=Point(1), more={"x": (1,)}),  # type: ignore[call-arg]
    "root model": Names(["a", "b"]),
    "model without a value": Part.model_construct(weight=1),
    "completion": completion,
    "kinds look-alike": [{"tuple": [1]}, {"dict": {"bytes": 0}}, {"model": "os:system"}, (), {"float": "nan"}],
}


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, with the types of everything in them. NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, pydantic.BaseModel):
        states = [(m.__dict__, m.__pydantic_extra__, m.__pydantic_private__, m.model_fields_set) for m in (a, b)]
        return same(*states)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(list(a), list(b)) and same(a[name], b[name]) for name in a)
    if is_dataclass(a):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    if isinstance(a, (set, frozenset)):
        return a == b and sorted(map(repr, a)) == sorted(map(repr, b))
    if isinstance(a, dt.datetime):
        return a.replace(tzinfo=None) == b.replace(tzinfo=None) and repr(a) == repr(b)
    return repr(a) == repr(b) and (a == b or a != a)
