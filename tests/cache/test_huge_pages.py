"""A live cache has no huge pages in its tables."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from knapcache import Cache
from knapcache.cache import huge_pages
from knapcache.cache.cache import internal_of
from knapcache.cache.roles import Owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has them")


def may_be_huge(array: npt.NDArray[Any]) -> bool:
    """Return whether the kernel may use huge pages in the middle of an array."""
    middle, inside = array.ctypes.data + array.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= middle < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "nh" not in line.split()
    raise AssertionError("the array is nowhere")


def test_only_the_given_arrays_have_none() -> None:
    array, other = np.zeros(1 << 24, np.uint8), np.zeros(1 << 24, np.uint8)
    huge_pages.disable_for(array, np.zeros(10))
    assert (may_be_huge(array), may_be_huge(other)) == (False, True)
    assert not array.any()


def test_tables_of_a_cache_have_none() -> None:
    with Cache("1GB", shadows=("lru",)) as cache:
        role = internal_of(cache).coordinator.role
        assert isinstance(role, Owner)
        admission = role.admission
        (shadow,) = admission.shadows._policies.values()
        for table in (admission.policy.rows, shadow.rows, admission.index.records):
            assert table.nbytes > 4 << 20
            assert not may_be_huge(table)
