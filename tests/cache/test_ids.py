"""The clock hand of the table of ids."""

from __future__ import annotations

import pytest

from knapcache.cache import ids
from knapcache.policy import registry


@pytest.mark.parametrize("free", [None, 0, ids.MAX_STEPS - 1, ids.MAX_STEPS])
def test_a_new_key_passes_a_limited_number_of_ids(free: int | None) -> None:
    n = 2 * ids.MAX_STEPS
    policy = registry.find("fifo").build(n, n)
    policy.compiled = False
    for i in range(n):
        policy.settle(i, 1, 1.0)
    if free is not None:
        policy.forget(free)
    table = ids.IdTable(policy)
    table.load([b"%d" % i for i in range(n)])
    within = free is not None and free < ids.MAX_STEPS
    expected = free if within else ids.MAX_STEPS
    assert table.intern(b"new") == (expected, True, None if within else b"%d" % ids.MAX_STEPS)
    policy.check()
