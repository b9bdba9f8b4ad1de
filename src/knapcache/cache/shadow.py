"""What other policies would have cost, live: their books on the same requests, without answers.

A shadow is a policy of the registry over the same table of ids. It sees every request whose cost is known, once, when
the answer is given: a hit of ours brings the size and cost the answer was kept with, a miss those that were just paid.
If the shadow would have missed, it pays that cost. A request that waited for another's call counts as one that
came after it, to the advantage of the shadow. "none" pays for every request.

Requests without a key, calls that failed and answers that may not be kept cost everyone the same, and are left out.
When a number is taken from a key, shadows forget its answer; counts that they keep by number stay with the number.
"""

from __future__ import annotations

from knapcache.policy import registry


class Shadows:
    """Policies by name. The caller's lock is around every call."""

    def __init__(self, names: tuple[str, ...], capacity: int, ids: int) -> None:
        self._policies = {name: registry.find(name).build(capacity, ids) for name in names}
        self.spent = dict.fromkeys(("none", *names), 0.0)
        """What each would have paid, in the policy's unit of cost."""

    def see(self, i: int, size: int, cost: float) -> None:
        """A request for id i, whose answer takes `size` and costs `cost`."""
        self.spent["none"] += cost
        for name, policy in self._policies.items():
            if not policy.arrive(i):
                self.spent[name] += cost
                policy.settle(i, size, cost)

    def forget(self, i: int) -> None:
        """The number means another key from now on, or the answer was purged."""
        for policy in self._policies.values():
            policy.forget(i)

    def check(self) -> None:
        """Each of them."""
        for policy in self._policies.values():
            policy.check()
