"""Shadows: what other policies would have cost on the same requests.

A shadow is a policy of the registry over the same ids. It stores no answers. It sees each request whose cost is known
once, when the answer is returned: a hit with the size and cost of the entry, a miss with those just paid. Where the
shadow would have missed, it pays that cost. A coalesced request counts as one that came after the call, which favours
the shadow. "none" pays for every request. A name may give a capacity: "adaptive@2x" has twice the cache's, so the
difference to the cache's own cost is what doubling the capacity would save.

Requests are buffered; one compiled loop per shadow runs over BATCH of them, or when `spent` is called. With one call
per request the two default shadows took a sixth of a hit. While the loops are not compiled (`uncompiled.py`), they
run after every request: a batch would take half a second, and everything else would wait for it.

Requests without a key, failed calls and answers that may not be stored cost every policy the same, and are left out.
When an id is recycled, shadows forget its entry; statistics that they keep by id stay with the id. What expired or was
purged is forgotten by all. When a cache is opened, its shadows start with its entries. Imported entries and their
requests are shown to shadows, too, and none pays for them. So while nothing is evicted, a shadow of the same or more
capacity pays exactly what the cache pays.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.kernel import COMPILED, Records, kernel
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache.uncompiled import uncompiled

BATCH = 512 if COMPILED else 1
"""Requests of one call of a loop. With KNAPCACHE_COMPILE=0 the loops are never compiled."""
FORGET = 0
"""A size that no entry has. It marks an id to forget."""


@functools.cache
def shadow_loop(
    arrive: Callable[..., Any], settle: Callable[..., Any], release: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the compiled loop around a policy's kernels."""

    @kernel
    def loop(
        head: Records,
        rows: Records,
        ids: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        costs: npt.NDArray[np.float64],
        paid: npt.NDArray[np.int8],
    ) -> float:
        """Return what the policy pays for these requests."""
        spent = 0.0
        for k in range(len(ids)):
            i = ids[k]
            if sizes[k] == FORGET:
                if rows[i].resident:
                    release(head, rows, i)
            elif not arrive(head, rows, i):
                spent += costs[k] * paid[k]
                settle(head, rows, i, sizes[k], costs[k])
        return spent

    return loop


def parse_shadow(name: str) -> tuple[registry.Spec, float]:
    """Return the policy of a shadow and its capacity relative to the cache: "lru" has 1, "adaptive@2x" has 2."""
    policy, at, factor = name.partition("@") if isinstance(name, str) else ("", "", "")
    spec = registry.find(policy)
    if not spec.online:
        raise InvalidInput(f"{name!r} needs to know future requests: it can be replayed, but not run as a shadow")
    times = float(factor[:-1]) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?x", factor) else 0.0
    if at and not times:
        raise InvalidInput(f"a shadow must be a policy, or a policy and a capacity such as 'adaptive@2x', not {name!r}")
    return spec, times if at else 1.0


class Shadows:
    """Shadow policies by name. The caller holds the controller's lock."""

    def __init__(self, names: tuple[str, ...], capacity: int, ids: int) -> None:
        self.names = names
        self.compiled = True
        """Whether the loops are compiled. It may be changed between two calls."""
        self._policies = {}
        for name in names:
            spec, times = parse_shadow(name)
            self._policies[name] = spec.build(max(1, int(capacity * times)), ids)
        self._spent = dict.fromkeys(("none", *names), 0.0)
        self._start_batch()

    def observe(self, i: int, size: int, cost: float, *, paid: bool = True) -> None:
        """Buffer a request for id i, whose answer has this size and cost. An imported one is not paid for."""
        self._ids.append(i)
        self._sizes.append(size)
        self._costs.append(cost)
        self._paid.append(paid)
        if len(self._ids) >= BATCH or not self.compiled:
            self._run_batch()

    def seed(self, policy: Policy, records: Records) -> None:
        """Show every shadow the entries that the cache starts with, oldest first. Nothing is paid for them.

        policy    the live policy, which knows what is resident
        records   of the entries, by id (entry_index.py)
        """
        residents = np.flatnonzero(policy.rows["resident"][: len(records)])
        residents = residents[np.argsort(records["created"][residents], kind="stable")]
        sizes = policy.rows["entry_size"][residents]
        self._ids.extend(residents.tolist())
        self._sizes.extend(sizes.tolist())
        self._costs.extend(records["cost"][residents].tolist())
        self._paid.extend([False] * len(residents))
        self._run_batch()

    def forget(self, i: int) -> None:
        """Forget the entry of id i: it was purged, or the id was recycled."""
        self.observe(i, FORGET, 0.0)

    def spent(self) -> dict[str, float]:
        """Return what each shadow would have paid, in the policy's unit of cost."""
        self._run_batch()
        return dict(self._spent)

    def check(self) -> None:
        """Check every shadow policy."""
        self._run_batch()
        for policy in self._policies.values():
            policy.check()

    def _start_batch(self) -> None:
        self._ids, self._sizes, self._costs, self._paid = array("q"), array("q"), array("d"), array("b")

    def _run_batch(self) -> None:
        batch = np.array(self._ids), np.array(self._sizes), np.array(self._costs), np.array(self._paid)
        self._start_batch()
        self._spent["none"] += float((batch[2] * batch[3]).sum())
        for name, policy in self._policies.items():
            kind = type(policy)
            loop = shadow_loop(kind.arrive_kernel, kind.settle_kernel, kind.release_kernel)
            run = loop if self.compiled else uncompiled(loop)
            self._spent[name] += float(run(policy.head, policy.rows, *batch))
