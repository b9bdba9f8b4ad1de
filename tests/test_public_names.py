"""Public names and signatures. A change here changes the public contract."""

from __future__ import annotations

import dataclasses
import inspect
from importlib.metadata import version

import pytest

import knapcache
from knapcache.policy import registry


def test_package_names() -> None:
    assert sorted(knapcache.__all__) == [
        "Answer",
        "Cache",
        "ClusterFailed",
        "CorruptState",
        "Decision",
        "Endpoint",
        "InvalidInput",
        "KnapcacheError",
        "MissingExtra",
        "NotCached",
        "NotOwner",
        "PickleSerializer",
        "Reply",
        "Selection",
        "Serializer",
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
