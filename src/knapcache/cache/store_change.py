"""A decision on its way to the store, and kernels ready before the first decision."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from knapcache.policy import registry
from knapcache.store.base import Entry


@functools.cache
def warm_up(name: str) -> None:
    """Compile a policy's kernels, or load them, before a request has to wait for it."""
    policy = registry.find(name).build(1, 2)
    policy.arrive(0)
    policy.settle(0, 1, 1.0)
    policy.settle(1, 1, 1.0)
    policy.forget(0)
    policy.forget(1)
    if type(policy).recycle_kernel is not None:
        policy.recycle()


class StoreChange:
    """What comes, what goes."""

    __slots__ = ("error", "evict", "i", "put", "serial", "snapshot")

    def __init__(
        self, put: Entry | None, evict: Sequence[bytes], i: int = -1, serial: int = 0, snapshot: bytes | None = None
    ) -> None:
        self.put = put
        self.evict = evict
        self.i = i
        self.serial = serial
        self.snapshot = snapshot
        self.error: BaseException | None = None
