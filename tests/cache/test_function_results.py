"""Cached functions with results and arguments beyond JSON, with other serializers, and in several processes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from openai.types.chat import ChatCompletion

from knapcache import Cache, InvalidInput, PickleSerializer, Serializer, TypedSerializer
from tests.cache.serialize.examples import Part, Point, completion, same
from tests.cache.serialize.test_typed_serializer import forged
from tests.support.caches import run_python, small_cache


@dataclasses.dataclass(frozen=True)
class Query:
    text: str
    limit: int = 5


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_results_of_all_kinds_are_hits(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Any] = []
    results = {
        "completion": completion,
        "tuple": (1, Point(1)),
        "all": {"a": [Part(name="x"), {1, 2}, b"x"]},
    }
    with small_cache() as cache:

        @cache.cached
        def f(name: str) -> Any:
            calls.append(name)
            return results[name]

        for name, result in results.items():
            assert f(name) is result
            assert same(f(name), result)
            assert f(name) is not f(name)
        assert type(f("completion")) is ChatCompletion
        assert calls == list(results)
        assert warnings(caplog) == []
        cache.check()


def test_arguments_of_all_kinds_have_keys() -> None:
    calls: list[Any] = []
    with small_cache() as cache:

        @cache.cached
        def f(*args: Any) -> int:
            calls.append(args)
            return len(calls)

        for make in (
            lambda: (Query("a"), Part(name="x"), {3, 1}),
            lambda: (Path("/x"), {1: "a"}, Point(1)),
        ):
            assert f(*make()) == f(*make())
        assert len(calls) == 2
        assert f(Query("a")) != f(Query("b"))


def test_methods_are_cached_by_the_fields_of_their_object() -> None:
    with small_cache() as cache:
        calls: list[Any] = []

        @dataclasses.dataclass
        class Client:
            name: str

            @cache.cached
            def ask(self, text: str) -> tuple[str, str]:
                calls.append(text)
                return self.name, text

        assert Client("a").ask("x") == Client("a").ask("x") == ("a", "x")
        assert Client("b").ask("x") == ("b", "x")
        assert len(calls) == 2


async def test_coroutines_share_a_call_for_such_a_result() -> None:
    calls: list[int] = []
    async with small_cache() as cache:

        @cache.cached
        async def f(query: Query) -> tuple[int, Query]:
            calls.append(1)
            await asyncio.sleep(0.02)
            return 1, query

        found = await asyncio.gather(*(f(Query("a")) for _ in range(20)))
        assert found == [(1, Query("a"))] * 20
        assert await f(Query("a")) == (1, Query("a"))
        assert len(calls) == 1
        assert len(await f(object())) == 2  # type: ignore[arg-type]
        assert len(calls) == 2


def test_a_call_without_a_key_goes_to_the_function_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Any] = []
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    with small_cache() as cache:

        @cache.cached
        def f(thing: Any) -> int:
            calls.append(thing)
            return 7

        assert [f(wrong) for wrong in (object(), [print], cyclic, {object(): 1})] == [7] * 4
        assert len(calls) == 4
        (warning,) = warnings(caplog)
        assert "test_function_results" in warning
        assert "f is not cached: a builtins.object has no form that can be part of a key at argument thing" in warning
        assert cache.stats().bypasses == 4
        cache.check()


@pytest.mark.parametrize("nested", [False, True])
def test_a_function_over_an_array_is_not_cached(nested: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Functions over different arrays must not share results, and an array has no form in a key."""
    with small_cache() as cache:

        def make(row: Any) -> Any:
            @cache.cached
            def total() -> int:
                return int(sum(row["x"] if nested else row))

            return total

        rows = [{"x": np.array(row)} if nested else np.array(row) for row in ([1, 2], [3, 4])]
        functions = [make(row) for row in rows]
        assert [f() for f in (*functions, *functions)] == [3, 7, 3, 7]
        assert cache.stats().bypasses == 4
        (warning,) = warnings(caplog)
        assert "numpy.ndarray has no form that can be part of a key: TypedSerializer.register adds one" in warning
        assert warning.endswith("at closure variable row")


# Stored results that cannot be read.


def stored_in(path: Path, payload: bytes) -> Cache:
    """Return a cache whose function `f` has this payload as the stored result of f(1)."""
    cache = small_cache(path=path)

    class Fixed:
        def dumps(self, _value: Any) -> bytes:
            return b"x"

        def loads(self, _data: bytes) -> Any:
            raise AssertionError

    cache.cached(name="f", serializer=Fixed())(lambda x: x)(1)
    (row,) = cache.entries().rows
    entry = cache._internal.coordinator.store.get(bytes.fromhex(row.key))
    assert entry is not None
    entry = entry._replace(payload=payload)
    entry = entry._replace(size=cache._internal.coordinator.store.entry_size(entry))
    cache._internal.coordinator.store.apply(entry).result()
    return cache


@pytest.mark.parametrize(
    "payload",
    [
        b'\x01\x26\x00\x00\x00[{"dataclass":["os:system",{"dict":{}}]}]',
        b"\x01",
        b"{",
        b"\xff" * 40,
        b"\x02",
        b"\x0217:builtins:xxxxxxxx,{}",
        b"cos\nsystem\n(S'true'\ntR.",
    ],
    ids=range(7),
)
def test_a_result_that_cannot_be_read_is_a_miss_and_is_replaced(
    payload: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    with stored_in(tmp_path / "answers.db", payload) as cache:

        @cache.cached(name="f")
        def f(x: int) -> tuple[int, int]:
            calls.append(x)
            return x, x

        assert [f(1), f(1), f(1)] == [(1, 1)] * 3
        assert calls == [1]
        (warning,) = warnings(caplog)
        assert "a stored result of function f cannot be read, the function is called:" in warning
        assert cache.stats().unreadable_results == 1


def test_a_result_without_a_serializer_is_returned_with_one_error(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    with small_cache() as cache:

        @cache.cached(name="f")
        def f(x: int) -> Any:
            calls.append(x)
            return {"row": np.full(3, x)}

        assert [f(x)["row"].tolist() for x in (1, 1, 2)] == [[1] * 3, [1] * 3, [2] * 3]
        assert calls == [1, 1, 2]
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert record.getMessage() == (
            "result of function f is not stored: a numpy.ndarray has no serializer: pass one that stores it, "
            "cached(serializer=…), or add the class with TypedSerializer.register"
        )
        cache.check()


NPY = b"\x93NUMPY\x02\x00t\x00\x00\x00{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }".ljust(128) + bytes(8)
REMOVED = {  # as 0.2.0 of 2026-11-16 stored them
    "ndarray": forged({"ndarray": {"bytes": 0}}, NPY),
    "scalar": forged({"dict": {"x": [{"scalar": {"bytes": 0}}]}}, NPY),
    "pandas.Series": forged(
        {"pandas.Series": [["numpy", {"ndarray": {"bytes": 0}}], ["range", 0, 1, 1, None], None, {"dict": {}}]}, NPY
    ),
    "polars.DataFrame": forged({"polars.DataFrame": [[["a", ["Int64"], {"ndarray": {"bytes": 0}}, None]], 1]}, NPY),
}


@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.parametrize("storable", [True, False])
def test_what_a_removed_serializer_stored_is_a_miss(
    name: str, storable: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    with stored_in(tmp_path / "answers.db", REMOVED[name]) as cache:
        before = cache.stats()

        @cache.cached(name="f")
        def f(x: int) -> Any:
            calls.append(x)
            return [x] if storable else np.array([x])

        assert [list(f(1)) for _ in range(4)] == [[1]] * 4
        assert len(calls) == (1 if storable else 4)
        read = [text for text in warnings(caplog) if "cannot be read, the function is called" in text]
        assert len(read) == 1
        after = cache.stats()
        assert after.unreadable_results == 1
        assert after.misses - before.misses == len(calls)
        assert after.hits - before.hits == (4 if storable else 1), "it is not read again and again"
        if storable:  # otherwise the entry has the size that `stored_in` gave it, and the policy has another
            cache.check()


def test_a_result_that_can_be_stored_again_is_a_hit(tmp_path: Path) -> None:
    results: list[Any] = [np.arange(2), "text"]
    with stored_in(tmp_path / "answers.db", REMOVED["ndarray"]) as cache:
        f = cache.cached(name="f")(lambda _x: results.pop(0))
        assert f(1).tolist() == [0, 1]
        assert [f(1), f(1)] == ["text", "text"]


def test_results_of_0_1_are_read(tmp_path: Path) -> None:
    with stored_in(tmp_path / "answers.db", orjson.dumps({"a": [1, 2.5, None]})) as cache:
        f = cache.cached(name="f")(lambda x: pytest.fail(f"called with {x}"))
        assert f(1) == {"a": [1, 2.5, None]}


# Other serializers.


class Lines:
    """A serializer of lists of lines."""

    def dumps(self, value: Any, /) -> bytes:
        return "\n".join(value).encode()

    def loads(self, data: bytes, /) -> Any:
        return data.decode().split("\n")


def test_a_serializer_of_the_caller_is_used(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Any] = []
    assert isinstance(Lines(), Serializer)

    def f(x: Any) -> Any:
        calls.append(x)
        return x

    with small_cache(serializer=Lines()) as cache:
        one = cache.cached(f)
        assert one(["a", "b"]) == one(["a", "b"]) == ["a", "b"]
        assert one([""]) == one([""]) == [""]
        assert len(calls) == 2
        assert one([1]) == one([1]) == [1]
        assert len(calls) == 4
        assert [text for text in warnings(caplog) if "is not stored" in text] == warnings(caplog) != []
    with small_cache() as cache:
        assert cache.cached(name="f", serializer=orjson)(f)([1]) == [1]
        assert cache.cached(name="f", serializer=orjson)(f)([1]) == [1]
        assert cache.cached(name="f", serializer=Lines())(f)([1]) == [1], "what another serializer wrote is not read"
        assert len(calls) == 6


def test_unusable_serializers_are_rejected() -> None:
    with small_cache() as cache:
        for wrong in (object(), Lines, 3, "pickle"):
            with pytest.raises(InvalidInput, match="must be an object with dumps and loads"):
                cache.cached(serializer=wrong)  # type: ignore[call-overload]
        with pytest.raises(InvalidInput, match="use PickleSerializer"):
            cache.cached(serializer=pickle)
    with pytest.raises(InvalidInput, match="must be an object with dumps and loads"):
        small_cache(serializer=3)


def test_a_serializer_that_returns_text_stores_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with small_cache() as cache:
        f = cache.cached(name="f", serializer=json)(lambda: [1])  # type: ignore[arg-type]
        assert f() == f() == [1]
        assert warnings(caplog) == [
            "result of function f is not stored: dumps of builtins:module returned a str, not bytes"
        ]


def test_signed_pickles(caplog: pytest.LogCaptureFixture) -> None:
    signed, other = PickleSerializer(b"a" * 16), PickleSerializer(b"b" * 16)
    value = {"slice": slice(1, 2), "error": ValueError("x").args}
    data = signed.dumps(value)
    assert signed.loads(data) == value
    for wrong in (other.dumps(value), data[:-1], b"", data[32:], data[:40] + bytes([data[40] ^ 1]) + data[41:]):
        with pytest.raises(ValueError, match="no valid signature"):
            signed.loads(wrong)
    with small_cache() as cache:
        f = cache.cached(name="f", serializer=signed)(lambda: value)
        assert f() is value
        assert f() == value
        assert f() is not value
        g = cache.cached(name="f", serializer=other)(lambda: "called")
        assert g() == "called"
        assert "no valid signature" in warnings(caplog)[0]
    with pytest.raises(InvalidInput, match="the secret must be 16 to 64 bytes, not str"):
        PickleSerializer("secret")  # type: ignore[arg-type]


# Several processes, and encryption.

SCRIPT = """
import sys
from dataclasses import dataclass
from tests.support.caches import small_cache

@dataclass
class Result:
    text: str
    parts: tuple

with small_cache(path=sys.argv[1]) as cache:

    @cache.cached(name="f")
    def f(x):
        print("called", end=" ")
        return Result("a", (x, b"y"))

    print(f(3), f(3))
"""


def test_another_process_reads_what_one_has_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script, path = tmp_path / "script.py", tmp_path / "answers.db"
    script.write_text(SCRIPT)

    def run() -> tuple[str, str]:
        done = run_python(script, path)
        return done.stdout, done.stderr

    shown = "Result(text='a', parts=(3, b'y')) Result(text='a', parts=(3, b'y'))\n"
    assert run() == (f"called {shown}", "")
    assert run() == (shown, ""), "the class is one of the function's module"
    with small_cache(path=path) as cache:  # a process that does not know the class
        f = cache.cached(name="f")(lambda x: ("called", x))
        assert [f(3), f(3)] == [("called", 3)] * 2
        (warning,) = warnings(caplog)
        assert "its class script.py:Result is not known in this process" in warning
        assert (cache.stats().hits, cache.stats().misses) == (2, 1)
        cache.check()


def test_results_survive_in_an_encrypted_file(path: Path) -> None:
    for calls in (1, 0):
        made: list[Any] = []

        def f(x: Query) -> tuple[Query, bytes]:
            made.append(x)  # noqa: B023
            return x, b"a secret result"

        with small_cache(path=path, encryption_key=b"k" * 32) as cache:
            assert cache.cached(name="f")(f)(Query("a secret question")) == (
                Query("a secret question"),
                b"a secret result",
            )
            assert len(made) == calls
        assert b"a secret" not in path.read_bytes()


def test_the_default_serializer_is_shared_by_all_functions_of_a_cache() -> None:
    serializer = TypedSerializer(types=[Query])
    data = TypedSerializer().dumps(Query("x"))
    assert serializer.loads(data) == Query("x")
    with small_cache(serializer=serializer) as cache:
        assert cache.cached(name="f")(lambda _: Query("v"))(Query("k")) == Query("v")
        assert cache.cached(name="f")(lambda _: Query("w"))(Query("k")) == Query("v")
