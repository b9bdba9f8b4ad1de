"""Public names and what they return. tests/surfaces/library.txt lists them."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import textwrap
import typing
from importlib.metadata import version
from typing import Any

import pytest

import knapcache
from knapcache.policy import registry


def test_package_names() -> None:
    for name in knapcache.__all__:
        assert getattr(knapcache, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Cash'"):
        knapcache.Cash  # noqa: B018 - the access raises


def test_version_is_that_of_the_distribution() -> None:
    assert knapcache.__version__ == version("knapcache")


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


def test_policies_that_know_the_future() -> None:
    assert {name for name, spec in registry.SPECS.items() if not spec.online} == {"offline", "static", "belady"}
