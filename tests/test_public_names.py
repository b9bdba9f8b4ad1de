"""Public names and signatures. A change here changes the public contract."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
import textwrap
import typing
from importlib.metadata import version
from typing import Any

import pytest

import knapcache
from knapcache.policy import registry


def test_package_names() -> None:
    assert sorted(knapcache.__all__) == [
        "Answer",
        "Bill",
        "BreakerStats",
        "Cache",
        "CacheStats",
        "CachedEntry",
        "ClusterFailed",
        "CorruptState",
        "Decision",
        "Endpoint",
        "EntryContent",
        "EntryListing",
        "InputTokens",
        "InvalidInput",
        "KnapcacheError",
        "MissingExtra",
        "NotCached",
        "NotOwner",
        "PickleSerializer",
        "Reply",
        "RequestTotals",
        "Selection",
        "Serializer",
        "SimilarMatch",
        "StoreError",
        "TypedSerializer",
        "Uncacheable",
        "Unserializable",
        "__version__",
        "oracle",
        "testing",
    ]
    for name in knapcache.__all__:
        assert getattr(knapcache, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Cash'"):
        knapcache.Cash  # noqa: B018 - the access raises


def test_version_is_that_of_the_distribution() -> None:
    assert knapcache.__version__ == version("knapcache")


KEYED = "namespace: str | None = None, context: Mapping[str, str] | None = None"
REQUEST = "self, endpoint: Endpoint | str, request: bytes | str | dict[str, Any]"
FETCH = "refresh: bool = False, store: bool = True, only_cached: bool = False, max_age: float | None = None"
# Without quotes: annotations are text, and defaults may be.
SIGNATURES = {
    "__init__": "(self, capacity: int | str | None = None, *, path: str | os.PathLike[str] | None = None, "
    "store: Store | None = None, policy: str = adaptive, cost: str | Mapping[str, float] | Weights = usd, "
    "namespace: str = , ttl: float | None = None, "
    "prices: Mapping[str, Mapping[str, float] | None] | None = None, "
    "fallback: Mapping[str, float] | float | None = None, rules: Rules | None = None, secret: bytes | None = None, "
    "shadows: tuple[str, ...] = (lru, gdsf-cost), wait: float = 60.0, clock: Clock = wall_clock, "
    "ids: int | None = None, quotas: Mapping[str, int] | None = None, report_hits: bool = True, "
    "synchronous: str = normal, encryption_key: EncryptionKey = None, serializer: Serializer | None = None) -> None",
    "fetch": f"({REQUEST}, call: Callable[[], Reply], *, {KEYED}, {FETCH}) -> Answer",
    "afetch": f"({REQUEST}, call: Callable[[], Awaitable[Reply]], *, {KEYED}, {FETCH}) -> Answer",
    "get": f"({REQUEST}, *, {KEYED}, max_age: float | None = None) -> Answer | None",
    "aget": f"({REQUEST}, *, {KEYED}, max_age: float | None = None) -> Answer | None",
    "put": f"({REQUEST}, reply: Reply, *, {KEYED}) -> bool",
    "aput": f"({REQUEST}, reply: Reply, *, {KEYED}) -> bool",
    "cached": "(self, function: Callable[..., Any] | None = None, *, name: str | None = None, "
    "ttl: float | None = None, namespace: str | None = None, tags: str | Collection[str] = (), "
    "serializer: Serializer | None = None) -> Any",
    "purge": "(self, *, key: str | bytes | None = None, model: str | None = None, tenant: str | None = None, "
    "older_than: float | None = None, tags: str | Collection[str] | None = None, system: str | None = None, "
    "dry_run: bool = False) -> int",
    "entries": "(self, search: str = , *, model: str | None = None, tenant: str | None = None, "
    "tag: str | None = None, sort: str = value, descending: bool = True, offset: int = 0, limit: int = 50) "
    "-> EntryListing",
    "entry": "(self, key: str | bytes) -> EntryContent | None",
    "stats": "(self) -> CacheStats",
    "maintain": "(self) -> None",
    "check": "(self) -> None",
    "close": "(self) -> None",
    "__enter__": "(self) -> Self",
    "__exit__": "(self, *_: object) -> None",
    "__aenter__": "(self) -> Self",
    "__aexit__": "(self, *_: object) -> None",
    "__getattr__": "(self, name: str) -> Any",
}


def test_signatures_of_the_cache() -> None:
    found = {
        name: re.sub(r"<function (\w+) at \w+>", r"\1", str(inspect.signature(member)).replace("'", ""))
        for name, member in vars(knapcache.Cache).items()
        if inspect.isfunction(member)
    }
    assert found == SIGNATURES
    properties = [name for name, member in vars(knapcache.Cache).items() if isinstance(member, property)]
    assert properties == ["owner"]


def test_what_methods_of_the_cache_return_is_exported() -> None:
    exported = {getattr(knapcache, name) for name in knapcache.__all__ if inspect.isclass(getattr(knapcache, name))}
    found: set[type] = set()

    def visit(hint: Any) -> None:
        for part in typing.get_args(hint):
            visit(part)
        if inspect.isclass(hint) and hint.__module__.startswith("knapcache.") and hint not in found:
            found.add(hint)
            for part in typing.get_type_hints(hint).values():
                visit(part)

    for name, member in vars(knapcache.Cache).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            visit(typing.get_type_hints(member).get("return"))
    assert knapcache.CacheStats in found
    assert {kind.__name__ for kind in found - exported} == set()


def test_help_of_the_cache_begins_with_an_example() -> None:
    text = pydoc.plain(pydoc.render_doc(knapcache.Cache))
    summary, _, *example = inspect.cleandoc(knapcache.Cache.__doc__ or "").splitlines()[:5]
    assert summary.startswith("A cache of answers")
    assert all(line.startswith("    ") and line.strip() in text for line in example)
    names = {"request": {"model": "m", "prompt": "p"}, "call": lambda: knapcache.Reply(b"answer", cost=1.0)}
    code = (
        textwrap.dedent("\n".join(example)).replace('"answers.db"', "None").replace("chat/completions", "completions")
    )
    exec(code, {"Cache": knapcache.Cache, **names})


def test_oracle_signature() -> None:
    assert str(inspect.signature(knapcache.oracle.solve)).startswith(
        "(values: 'npt.ArrayLike', sizes: 'npt.ArrayLike', capacity"
    )
    parameters = inspect.signature(knapcache.oracle.solve).parameters
    assert [(p.name, p.default) for p in parameters.values() if p.kind is p.KEYWORD_ONLY] == [
        ("beta", 0.0),
        ("work_limit", None),
        ("tol", None),
    ]
    fields = [field.name for field in dataclasses.fields(knapcache.Selection)]
    assert fields == ["chosen", "value", "upper_bound", "gap", "proven", "price"]


def test_policy_names() -> None:
    names = (
        "adaptive vsocb vsocb-lazy vsocb-apx berkeley berkeley-multi offline lru lfu gdsf gdsf-cost gdsf-cost-history "
        "gdsf-cost-trial gds camp hyperbolic lhd lfu-da fifo sieve s3-fifo arc w-tinylfu horizon static belady"
    )
    assert list(registry.SPECS) == names.split()
    assert {name for name, spec in registry.SPECS.items() if not spec.online} == {"offline", "static", "belady"}
    assert list(registry.BOUNDS) == ["pfoo"]
