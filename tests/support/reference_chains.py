"""The adaptive policy for chains by its definition: slow, in plain Python, without code of `knapcache.policy.chains`.

A block is a tuple: its parent is the tuple without the last element. All request times of a block are kept, and its
value is computed from them. A cache is a set, and its next victim the least of all its leaves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

Block = tuple[int, ...]
HALF_LIVES = (200, 500, 2000, 8000)
CERTAINTY = 2.0
NAMES = ["lru", "seen-twice"]
NAMES += [f"half-life-{h}" for h in HALF_LIVES] + [f"half-life-{h}-returning" for h in HALF_LIVES]


class ReferenceChains:
    """Residents, the leader, and the residents of every expert."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.now = 0
        self.times: dict[Block, list[int]] = {}
        self.turn: dict[Block, int] = {}
        self.odds: dict[Block, float] = {}
        self.seen: dict[tuple[int, int], list[int]] = {}
        """Blocks of a class, and those of them that returned."""
        self.number: dict[Block, int] = {}
        self.found: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
        """Time and blocks found, by expert."""
        self.shadows: dict[str, set[Block]] = {name: set() for name in NAMES}
        self.live: set[Block] = set()
        self.pinned: set[Block] = set()
        self.leader = "lru"

    def start_request(self) -> None:
        score = {name: self._decayed([n for _, n in self.found[name]]) for name in NAMES}
        best = max(NAMES, key=lambda name: score[name])
        lead = score[best] - score[self.leader]
        chance = CERTAINTY * math.sqrt(self._noise(best)) if self.leader == "lru" else 0.0
        if lead > 0.02 * score[self.leader] and lead > chance:
            self.leader = best
        self.now += 1

    def _decayed(self, values: list[int]) -> float:
        """Return the sum of values, one for each request, that count 1/e after 2,000 requests."""
        times = [t for t, _ in self.found["lru"]]
        return math.fsum(value * math.exp((t - self.now) / 2000) for t, value in zip(times, values, strict=True))

    def _noise(self, name: str) -> float:
        both = zip(self.found[name], self.found["lru"], strict=True)
        return self._decayed([(n - by_lru) ** 2 for (_, n), (_, by_lru) in both])

    def count(self, chain: Sequence[Block], after: Block | None = None) -> None:
        for name, shadow in self.shadows.items():
            if after is None:
                missing = [k for k, block in enumerate(chain) if block not in shadow]
                self.found[name].append((self.now, min(missing, default=len(chain))))
        for block in chain:
            self._count(block)
        for name, shadow in self.shadows.items():
            for block in chain:
                if block not in shadow:
                    if len(shadow) >= self.capacity:
                        shadow.remove(self._first(name, shadow, ()))
                    shadow.add(block)

    def _count(self, block: Block) -> None:
        parent, depth = block[:-1], len(block) - 1
        if block not in self.times:
            self.number[block] = len(self.number)
            continued = len(self.times.get(parent, ())) > 1
            self.turn[block] = min(3, self.turn.get(parent, 0) + continued)
        seen = self.seen.setdefault((self.turn[block], min(7, (depth + 1).bit_length() - 1)), [2, 1])
        times = self.times.setdefault(block, [])
        times.append(self.now)
        if len(times) == 1:
            self.odds[block] = seen[1] / seen[0]
            seen[0] += 1
        elif len(times) == 2:
            seen[1] += 1

    def _value(self, name: str, block: Block) -> tuple[float, ...]:
        times = self.times[block]
        if name == "lru":
            return (times[-1],)
        if name == "seen-twice":
            return (len(times) > 1, times[-1])
        half_life = int(name.split("-")[2])
        value = math.fsum(2.0 ** ((t - self.now) / half_life) for t in times)
        return (value * self.odds[block] if name.endswith("returning") and len(times) == 1 else value,)

    def _first(self, name: str, residents: set[Block], spared: Collection[Block]) -> Block:
        """Return the leaf to evict; raises ValueError if there is none."""
        parents = {block[:-1] for block in residents}
        leaves = [block for block in residents if block not in parents and block not in spared]
        return min(leaves, key=lambda block: (*rounded(self._value(name, block)), -len(block), self.number[block]))

    def evict(self, n: int, protected: Collection[Block] = ()) -> list[Block] | None:
        residents, victims = set(self.live), []
        for _ in range(n):
            try:
                victims.append(self._first(self.leader, residents, {*protected, *self.pinned}))
            except ValueError:
                return None
            residents.remove(victims[-1])
        self.live = residents
        return victims


def rounded(value: tuple[float, ...]) -> tuple[float, ...]:
    """Return a value without the last bits: equal sums of different terms must be equal."""
    return tuple(float(f"{part:.11g}") for part in value)
