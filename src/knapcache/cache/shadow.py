"""What other policies would have cost, live: their books on the same requests, without answers.

A shadow is a policy of the registry over the same table of ids. It sees every request whose cost is known, once, when
the answer is given: a hit of ours brings the size and cost the answer was kept with, a miss those that were just paid.
If the shadow would have missed, it pays that cost. A request that waited for another's call counts as one that
came after it, to the advantage of the shadow. "none" pays for every request. A name may say how much room the shadow
has: "adaptive@2x" has twice ours, and what it pays less than ours is what doubling the room would save.

Nobody waits for what shadows think. So requests are written down, and after BATCH of them, or when somebody asks, one
compiled loop a shadow goes through them: by one call a request the two of the default took a sixth of a hit.

Requests without a key, calls that failed and answers that may not be kept cost everyone the same, and are left out.
When a number is taken from a key, shadows forget its answer; counts that they keep by number stay with the number.
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
from knapcache.kernel import Records, kernel
from knapcache.policy import registry

BATCH = 512
FORGET = 0
"""The size that stands for: forget this id. No answer has it."""


@functools.cache
def shadow_loop(
    arrive: Callable[..., Any], settle: Callable[..., Any], release: Callable[..., Any]
) -> Callable[..., Any]:
    """The loop around a policy's kernels."""

    @kernel
    def loop(
        head: Records,
        rows: Records,
        ids: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        costs: npt.NDArray[np.float64],
    ) -> float:
        """What the policy pays for these requests."""
        spent = 0.0
        for k in range(len(ids)):
            i = ids[k]
            if sizes[k] == FORGET:
                if rows[i].resident:
                    release(head, rows, i)
            elif not arrive(head, rows, i):
                spent += costs[k]
                settle(head, rows, i, sizes[k], costs[k])
        return spent

    return loop


def named(name: str) -> tuple[registry.Spec, float]:
    """The policy that a shadow's name stands for, and its room in caches of ours: "lru" is 1, "adaptive@2x" is 2."""
    policy, at, room = name.partition("@") if isinstance(name, str) else ("", "", "")
    spec = registry.find(policy)
    if not spec.online:
        raise InvalidInput(f"{name!r} sees the future: it can be replayed, but no cache can run it")
    times = float(room[:-1]) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?x", room) else 0.0
    if at and not times:
        raise InvalidInput(f"a shadow is a policy, or one with so much room, such as 'adaptive@2x', not {name!r}")
    return spec, times if at else 1.0


class Shadows:
    """Policies by name. The caller's lock is around every call."""

    def __init__(self, names: tuple[str, ...], capacity: int, ids: int) -> None:
        self._policies = {}
        for name in names:
            spec, times = named(name)
            self._policies[name] = spec.build(max(1, int(capacity * times)), ids)
        self._spent = dict.fromkeys(("none", *names), 0.0)
        self._ids, self._sizes, self._costs = array("q"), array("q"), array("d")
        self._catch_up()  # compiles, or loads

    def see(self, i: int, size: int, cost: float) -> None:
        """A request for id i, whose answer takes `size` and costs `cost`."""
        self._ids.append(i)
        self._sizes.append(size)
        self._costs.append(cost)
        if len(self._ids) >= BATCH:
            self._catch_up()

    def forget(self, i: int) -> None:
        """The number means another key from now on, or the answer was purged."""
        self.see(i, FORGET, 0.0)

    def spent(self) -> dict[str, float]:
        """What each would have paid, in the policy's unit of cost."""
        self._catch_up()
        return dict(self._spent)

    def check(self) -> None:
        """Each of them."""
        self._catch_up()
        for policy in self._policies.values():
            policy.check()

    def _catch_up(self) -> None:
        seen = np.array(self._ids), np.array(self._sizes), np.array(self._costs)
        self._ids, self._sizes, self._costs = array("q"), array("q"), array("d")
        self._spent["none"] += float(seen[2].sum())
        for name, policy in self._policies.items():
            kind = type(policy)
            loop = shadow_loop(kind.arrive_kernel, kind.settle_kernel, kind.release_kernel)
            self._spent[name] += float(loop(policy.head, policy.rows, *seen))
