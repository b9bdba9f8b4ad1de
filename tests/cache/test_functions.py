"""Cached functions: which calls share a result, and clear errors for functions that cannot be cached."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from knapcache import InvalidInput
from tests.support.caches import run_python, small_cache


def test_how_arguments_are_passed_does_not_matter() -> None:
    calls: list[Any] = []
    with small_cache() as cache:

        @cache.cached
        def f(a: Any, b: Any = 2, *rest: Any, c: Any = None, **more: Any) -> Any:
            """Doc."""
            calls.append((a, b, rest, c, more))
            return {"a": a, "b": b}

        assert f(1) == f(a=1) == f(1, 2) == f(b=2, a=1) == f(1, 2, c=None) == {"a": 1, "b": 2}
        assert len(calls) == 1
        f(1, 2, x=1, y=2)
        f(1, y=2, x=1)
        assert len(calls) == 2
        assert (f.__name__, f.__doc__) == ("f", "Doc.")
        with pytest.raises(TypeError, match="missing a required argument: 'a'"):
            f()  # type: ignore[call-arg]
        cache.check()


def test_functions_do_not_share_results() -> None:
    with small_cache() as cache:

        def one(x: int) -> int:
            return x

        def two(x: int) -> int:
            return -x

        assert cache.cached(one)(5) == 5
        assert cache.cached(two)(5) == -5
        assert cache.cached(name="shared")(one)(5) == 5
        assert cache.cached(name="shared")(two)(5) == 5
        assert cache.cached(name="shared", namespace="other")(two)(5) == -5


def test_waiters_for_such_a_result_call_the_function() -> None:
    with small_cache() as cache:

        @cache.cached
        def f() -> Any:
            time.sleep(0.05)
            return print

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: f(), range(4))) == [print] * 4


def test_generators_are_rejected() -> None:
    with small_cache() as cache:

        def stream() -> Any:
            yield 1

        with pytest.raises(InvalidInput, match="is a generator"):
            cache.cached(stream)
        with pytest.raises(InvalidInput, match="ttl must be"):
            cache.cached(ttl=-1)


def test_an_error_is_raised_and_not_stored() -> None:
    calls: list[int] = []
    with small_cache() as cache:

        @cache.cached
        def f() -> int:
            calls.append(1)
            raise LookupError("no")

        for _ in range(2):
            with pytest.raises(LookupError):
                f()
        assert len(calls) == 2


def test_a_function_may_raise_stop_iteration() -> None:
    with small_cache() as cache:

        @cache.cached
        def f() -> int:
            return next(iter(()))

        with pytest.raises(StopIteration):
            f()
        assert cache.stats().failed == 1


def test_cost_is_time() -> None:
    with small_cache() as cache:

        @cache.cached
        def f() -> int:
            time.sleep(0.05)
            return 1

        f()
        f()
        stats = cache.stats()
        assert stats.seconds_saved == stats.seconds_spent >= 0.05
        assert stats.cost_spent == stats.seconds_spent
        (row,) = (row for label, row in stats.by_model.items() if label.endswith("test_cost_is_time.<locals>.f"))
        assert row.hits == 1


def test_closure_data_is_part_of_the_key() -> None:
    with small_cache() as cache:

        def times(factor: Any, calls: list[Any] | None = None) -> Any:
            later: Any

            @cache.cached
            def product(x: int) -> Any:
                if calls is not None:
                    calls.append(x)
                return [factor, x, later is None]

            later = object()
            return product

        def pair(factor: Any) -> Any:
            return cache.cached(name="pair")(lambda x: [factor, x])

        assert [times(factor)(7) for factor in (2, 2.0, "2", [2], 2**70, "\ud800")] == [
            [2, 7, False], [2.0, 7, False], ["2", 7, False], [[2], 7, False], [2**70, 7, False], ["\ud800", 7, False],
        ]  # fmt: skip
        calls: list[Any] = []
        same_again = times(3, calls), times(3, [])
        assert [product(7) for product in same_again] == [[3, 7, False]] * 2
        assert calls == [7], "the same data, decorated twice, is the same function"
        assert pair(2)(7) == pair(3)(7) == [2, 7], "functions with the same name= share results"


SCRIPT = """
import sys
from tests.support.caches import small_cache

with small_cache(path=sys.argv[1]) as cache:

    @cache.cached
    def area(r):
        print("computed", end=" ")
        return r * r

    area(3)
    print(sorted(cache.stats().by_model))
"""


def test_scripts_do_not_share_results(tmp_path: Path) -> None:
    def run(*words: object) -> str:
        return run_python(*words, tmp_path / "answers.db", paths=(tmp_path,)).stdout

    (tmp_path / "elsewhere").mkdir()
    circle, square, moved = (tmp_path / name for name in ("circle.py", "square.py", "elsewhere/circle.py"))
    for path in (circle, square, moved):
        path.write_text(SCRIPT)
    assert run(circle) == "computed ['function circle.py:area']\n"
    assert run(circle) == "['function circle.py:area']\n"
    assert run(square) == "computed ['function square.py:area']\n"
    assert run(moved) == "['function circle.py:area']\n", "the directory of a script does not count"
    assert run("-m", "circle") == "computed ['function circle.area']\n"
    assert run("-c", "import circle") == "['function circle.area']\n", (
        "run by -m, it has the name that it is imported by"
    )
    assert run("-c", SCRIPT) == "computed ['function __main__.area']\n"


def test_functions_without_a_unique_name_are_rejected() -> None:
    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def times(self, x: int) -> int:
            return self.factor * x

        @classmethod
        def made(cls, x: int) -> int:
            return x

    with small_cache() as cache:
        for function, why in (
            (lambda x: x, "has no name"),
            (Scale(2).times, "is bound to an object"),
            (Scale.made, "is bound to an object"),
            ("a".join, "is bound to an object"),
        ):
            with pytest.raises(InvalidInput, match=why):
                cache.cached(function)
        with pytest.raises(InvalidInput, match="has no signature"):
            cache.cached(dict)
        twice = cache.cached(name="twice")(Scale(2).times)
        assert twice(4) == twice(4) == 8
        assert cache.cached(len)([1, 2]) == 2
        assert cache.stats().hits == 1
