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

Rows of a shadow take 24 to 136 bytes an id. So when more than MAX_EXACT_IDS ids are in use, shadows see a sample, one
key in RATE, with as much less capacity (key_sample.py; Waldspurger et al., SHARDS, FAST 2015). They start again with
the entries of the cache, as after a restart. What the cache itself pays for the sample is known, too, so only the
difference is estimated:

    spent = what the cache paid + RATE · (what the shadow paid for the sample − what the cache paid for the sample)

Popular keys that both hold do not change it, whether they are in the sample or not. bench/shadow_sampling.py measures
an error of 0.06 to 0.6 points of the cost without a cache. RATE · (what the shadow paid) has about 1.5 times that in
large caches, and two to seven times in small ones. A sample of few entries says little, so caches of less than
MIN_ENTRIES entries do not sample.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.cache import huge_pages
from knapcache.cache.entry_index import EntryIndex
from knapcache.cache.ids import MIN_IDS, IdTable
from knapcache.cache.key_sample import RATE, KeySample
from knapcache.errors import InvalidInput
from knapcache.kernel import COMPILED, Records, kernel
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache.uncompiled import uncompiled

BATCH = 512 if COMPILED else 1
"""Requests of one call of a loop. With KNAPCACHE_COMPILE=0 the loops are never compiled."""
MAX_EXACT_IDS = MIN_IDS
MIN_ENTRIES = 1 << 14
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
    """Shadow policies by name. The caller holds the controller's lock.

    live    the policy of the cache, which knows what is resident
    index   has the costs and times of the entries
    """

    def __init__(self, names: tuple[str, ...], live: Policy, ids: IdTable, index: EntryIndex) -> None:
        self.names = names
        self.compiled = True
        """Whether the loops are compiled. It may be changed between two calls."""
        self._live, self._table, self._index = live, ids, index
        self._sample: KeySample | None = None
        self._next_check = MAX_EXACT_IDS
        """The id whose first request decides whether to sample."""
        self._policies = self._build(live.capacity, ids.max_ids)
        self._spent = dict.fromkeys(("none", *names), 0.0)
        """By the shadows since the start, or since they see a sample."""
        self._exact = dict(self._spent)
        """By the shadows until they saw a sample."""
        self._cost = self._own_cost = self._own_sample_cost = 0.0
        """Since then: of all requests, what the cache paid for them, and what it paid for those of the sample."""
        self._start_batch()

    def _build(self, capacity: int, ids: int) -> dict[str, Policy]:
        parsed = {name: parse_shadow(name) for name in self.names}
        built = {name: spec.build(max(1, int(capacity * times)), ids) for name, (spec, times) in parsed.items()}
        huge_pages.disable_for(*(policy.rows for policy in built.values()))
        return built

    @property
    def rate(self) -> int:
        """Shadows simulate one key in `rate`."""
        return 1 if self._sample is None else RATE

    def settle(self, i: int, size: int, cost: float, *, imported: bool = False) -> None:
        """Buffer a request for id i that the cache has paid for. For an imported one, no shadow pays either."""
        if not imported:
            self.observe(i, size, cost, paid=cost)
            return
        if not self._policies:
            return
        number = i if self._sample is None else self._sample.number(i)
        if number >= 0:
            self._append(number, size, cost, paid=False)

    def observe(self, i: int, size: int, cost: float, *, paid: float = 0.0) -> None:
        """Buffer a request for id i, whose answer has this size and cost. paid: what the cache has paid for it."""
        if self._sample is None and i >= self._next_check and self.compiled:
            self._next_check += MAX_EXACT_IDS
            self._sample_if_large()
        if self._sample is not None:
            self._cost += cost
            self._own_cost += paid
            i = self._sample.number(i)
            if i < 0:
                return
            self._own_sample_cost += paid
        self._append(i, size, cost)

    def seed(self) -> None:
        """Show every shadow the entries of the cache, oldest first. Nothing is paid for them."""
        if len(self._table) <= MAX_EXACT_IDS or not self._sample_if_large():
            self._seed(self._residents())

    def forget(self, i: int) -> None:
        """Forget the entry of id i: it expired or was purged."""
        number = i if self._sample is None else self._sample.known(i)
        if number >= 0:
            self._append(number, FORGET, 0.0)

    def recycle(self, i: int) -> None:
        """Forget the entry of id i, which now belongs to another key."""
        self.forget(i)
        if self._sample is not None:
            self._sample.release(i)

    def spent(self) -> dict[str, float]:
        """Return what each shadow would have paid, in the policy's unit of cost."""
        self._run_batch()
        if self._sample is None:
            return dict(self._spent)
        found = {
            name: min(max(0.0, self._own_cost + RATE * (cost - self._own_sample_cost)), self._cost)
            for name, cost in self._spent.items()
        }
        return {name: self._exact[name] + cost for name, cost in (found | {"none": self._cost}).items()}

    def report(self) -> dict[str, Any]:
        """Return the fields of `CacheStats` about shadows."""
        return {"shadows": self.spent(), "shadow_rate": self.rate}

    def check(self) -> None:
        """Check every shadow policy."""
        self._run_batch()
        for policy in self._policies.values():
            policy.check()
        if self._sample is not None:
            self._sample.check()

    def _residents(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self._live.rows["resident"][: len(self._table)])

    def _sample_if_large(self) -> bool:
        """Begin to sample, with the entries that the cache has now, if it has enough of them. Return whether."""
        residents = self._residents()
        if len(residents) < MIN_ENTRIES:
            return False
        self._exact = self.spent()
        self._spent = dict.fromkeys(self._spent, 0.0)
        self._sample = KeySample(self._table)
        self._policies = self._build(self._live.capacity // RATE, self._sample.size)
        self._seed(self._sample.select(residents))
        return True

    def _seed(self, ids: npt.NDArray[np.int64]) -> None:
        records = self._index.records
        ids = ids[np.argsort(records["created"][ids], kind="stable")]
        sizes, costs = self._live.rows["entry_size"][ids], records["cost"][ids]
        if self._sample is not None:
            ids = np.array([self._sample.number(i) for i in ids.tolist()], np.int64)
        shown = ids >= 0
        self._run_batch()
        self._ids.extend(ids[shown].tolist())
        self._sizes.extend(sizes[shown].tolist())
        self._costs.extend(costs[shown].tolist())
        self._paid.extend([False] * len(self._ids))
        self._run_batch()

    def _append(self, number: int, size: int, cost: float, *, paid: bool = True) -> None:
        self._ids.append(number)
        self._sizes.append(size)
        self._costs.append(cost)
        self._paid.append(paid)
        if len(self._ids) >= BATCH or not self.compiled:
            self._run_batch()

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
