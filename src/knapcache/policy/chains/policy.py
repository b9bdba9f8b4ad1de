"""The adaptive policy for chains of blocks: a tournament of rules, simulated beside the live cache.

No rule suits all traffic. LRU is best for agents, whose next request continues the last one. In chat, most
conversations end, and blocks with several requests should stay longer, by a half-life that depends on the traffic. So
every expert (experts.py) is simulated as a *shadow*: a cache of the same capacity that gets the same requests, without
data. Its score is the number of blocks that it would have found, where a block counts only with its whole prefix.
Scores decay. The live cache ranks its blocks by the leader, which starts as LRU. Another expert becomes the leader if
its score is higher by 2 %. To replace LRU, the lead must also be more than chance: above two standard deviations, which
follow from the differences of single requests. Without that, short traces found up to 4 % less than with LRU.

Counts outlive eviction: a block that returns after its eviction is ranked by all its requests. The table has at most
max(400,000, 8 · capacity) keys. The one whose last request is the longest ago is dropped first.

The policy cannot refuse a block. The caller inserts what it likes, and asks for evictions when its memory is full. A
block of low rank is then the next to be evicted, also for later blocks of the same request.

    start_request()                a request begins: time advances
    count(chain, after)            its blocks, in order, and later those that it generates
    insert(key), remove(key)       a block is stored; it was lost
    pin(key), unpin(key)           it must not be evicted, for a time
    evict(n, protected)            decide on exactly n blocks to evict, which are leaves
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np

from knapcache.errors import CorruptState, InvalidInput
from knapcache.kernel import Records, kernel, records
from knapcache.oracle.problem import Floats, Ints
from knapcache.policy.chains.experts import EXPERT_COUNT, LRU, NAMES, count_block, start_counts
from knapcache.policy.chains.leaf_caches import (
    CACHE_HEAD,
    CACHE_ROW,
    CACHES,
    LIVE,
    check_cache,
    evict_leaves,
    rank_again,
    set_resident,
    spare,
    store_in_shadow,
    update_leaf,
)
from knapcache.policy.structures.linked_list import LINK_ROW, clear, linked_ids, oldest, push, unlink

MIN_KEYS, KEYS_PER_BLOCK = 400_000, 8
"""Minimum keys of the table, and minimum keys per block of capacity."""
WINDOW = 2000.0
"""Requests after which a score counts 1/e."""
LEAD, CERTAINTY = 0.02, 2.0
"""A score must be higher by this share of the leader's for a change, and to replace LRU by this many standard
deviations."""
DECAY = math.exp(-1.0 / WINDOW)
NO_PARENT = -1
HEAD = [
    *CACHE_HEAD,
    ("score", f"({EXPERT_COUNT},)f8"),  # blocks found; decays
    ("noise", f"({EXPERT_COUNT},)f8"),  # sum of squared differences to LRU, one for each request; decays
]
ROW = [
    *CACHE_ROW,
    *LINK_ROW,  # from the oldest last request to the newest
    ("known", "?"),  # linked
    ("children", "i4"),  # blocks in the table whose parent it is
]

Key = TypeVar("Key", bound=Hashable)


@kernel
def choose_leader(head: Records, rows: Records, keys: Floats, ids: Ints) -> None:
    """Begin a request: let scores decay, and follow another expert if its score is clearly higher."""
    h = head[0]
    best = h.leader
    for e in range(EXPERT_COUNT):
        if h.score[e] > h.score[best]:
            best = e
    lead = h.score[best] - h.score[h.leader]
    if lead > LEAD * h.score[h.leader] and (h.leader != LRU or lead > CERTAINTY * math.sqrt(h.noise[best])):
        h.leader = best
        rank_again(head, rows, keys, ids)
    h.now += 1
    for e in range(EXPERT_COUNT):
        h.score[e] *= DECAY
        h.noise[e] *= DECAY


@kernel
def link(rows: Records, i: int, parent: int) -> None:
    """Add the row of a new block to the table."""
    rows[i].known = True
    rows[i].parent = parent
    if parent >= 0:
        rows[i].depth = rows[parent].depth + 1
        rows[parent].children += 1
    push(rows, i)


@kernel
def update_live(head: Records, rows: Records, keys: Floats, ids: Ints, inserted: Ints, unpinned: Ints) -> None:
    """Insert blocks into the live cache, and allow the eviction of others."""
    for k in range(len(inserted)):
        set_resident(head, rows, keys, ids, LIVE, inserted[k], True)
    for k in range(len(unpinned)):
        update_leaf(head, rows, keys, ids, LIVE, unpinned[k])


@kernel
def refresh(rows: Records, chain: Ints) -> None:
    """Make the blocks of a chain the last ones to be dropped from the table, and the deepest the first of them."""
    for k in range(len(chain) - 1, -1, -1):
        unlink(rows, chain[k])
        push(rows, chain[k])


@kernel
def count_chain(
    head: Records, rows: Records, keys: Floats, ids: Ints, chain: Ints, parent: int, looked_up: bool
) -> None:
    """Count the blocks of a request, and pass them to the shadows. parent: the block before them."""
    for k in range(len(chain)):
        if not rows[chain[k]].known:
            link(rows, chain[k], chain[k - 1] if k > 0 else parent)
    if looked_up:
        by_lru = 0
        for e in range(EXPERT_COUNT):
            found = 0
            while found < len(chain) and rows[chain[found]].resident[e]:
                found += 1
            by_lru = found if e == LRU else by_lru
            head[0].score[e] += found
            head[0].noise[e] += (found - by_lru) ** 2
    for k in range(len(chain)):
        count_block(head, rows, chain[k])
    refresh(rows, chain)
    for e in range(EXPERT_COUNT):
        store_in_shadow(head, rows, keys, ids, e, chain)


@kernel
def drop_oldest(head: Records, rows: Records, keys: Floats, ids: Ints) -> int:
    """Drop a block that is not resident from the table, the oldest if possible, and return its id.

    Children are older than their parent, except those that a request has generated. So a block with children stays,
    unless every block has some.
    """
    end = len(rows) - 1
    for any_block in (False, True):
        for _ in range(end):
            i = oldest(rows)
            unlink(rows, i)
            q = rows[i]
            if q.resident[LIVE] or q.spared or (q.children > 0 and not any_block):
                push(rows, i)
                continue
            for e in range(EXPERT_COUNT):
                if q.resident[e]:
                    set_resident(head, rows, keys, ids, e, i, False)
            if q.children > 0:
                for child in range(end):
                    if rows[child].known and rows[child].parent == i:
                        rows[child].parent = NO_PARENT
            if q.parent >= 0:
                rows[q.parent].children -= 1
            return i
    return -1


class ChainPolicy(Generic[Key]):
    """Decides which blocks of a KV cache to evict. Keys may be of any hashable type."""

    def __init__(self, capacity: int, *, max_keys: int | None = None) -> None:
        """`capacity` is in blocks. `max_keys` limits the table; it must be above 2 · capacity."""
        if capacity < 1:
            raise InvalidInput(f"capacity must be at least 1 block, not {capacity}")
        self.max_keys = max(MIN_KEYS, KEYS_PER_BLOCK * capacity) if max_keys is None else max_keys
        if not 2 * capacity < self.max_keys < 2**31:
            raise InvalidInput(f"max_keys must be above twice the capacity and below 2^31, not {max_keys}")
        self.capacity = capacity
        self.clear()

    def clear(self) -> None:
        """Forget all blocks and all counts."""
        self._head, self._rows = records(HEAD, 1), records(ROW, self.max_keys + 1)
        self._keys, self._ids = np.zeros((CACHES, self.capacity)), np.zeros((CACHES, self.capacity), np.int64)
        self._state = (self._head, self._rows, self._keys, self._ids)
        self._head["capacity"] = self.capacity
        start_counts(self._head)
        clear(self._rows)
        self._id_of: dict[Key, int] = {}
        self._key_of: list[Key] = []
        self._residents: set[Key] = set()
        self._pinned = self._rows["pinned"]  # one column
        self._inserted: list[int] = []
        self._unpinned: list[int] = []

    def start_request(self) -> None:
        """Begin a request, before its blocks are counted."""
        self._flush()
        choose_leader(*self._state)

    def count(self, chain: Sequence[Key], after: Key | None = None) -> None:
        """Count the blocks of the request in order, or more blocks of it that follow the block `after`.

        A request looks up its blocks from the first one on. Blocks that follow later were generated: no cache could
        have had them. Of more blocks than half of the table, the rest is ignored.
        """
        chain = chain[: self.max_keys // 2]
        if not chain:
            return
        found = [self._id_of.get(key, -1) for key in chain]
        parent = NO_PARENT if after is None else self._id_of.get(after, NO_PARENT)
        if -1 in found:
            known = np.array([i for i in (parent, *found) if i >= 0], np.int64)
            spare(self._rows, known, True)
            found = [i if i >= 0 else self._new_id(key) for i, key in zip(found, chain, strict=True)]
            spare(self._rows, known, False)
        count_chain(*self._state, np.array(found, np.int64), parent, after is None)

    def insert(self, key: Key, *, pinned: bool = False) -> None:
        """Add a block to the cache."""
        if key in self._residents:
            raise InvalidInput(f"block {key!r} is resident")
        if len(self._residents) >= self.capacity:
            raise InvalidInput(f"the cache has {self.capacity} blocks already")
        i = self._id_of.get(key, -1)
        if i < 0:  # it was never counted, or dropped since
            i = self._new_id(key)
            link(self._rows, i, NO_PARENT)
        self._residents.add(key)
        self._pinned[i] = pinned
        self._inserted.append(i)

    def remove(self, key: Key) -> None:
        """Remove a block that was lost from the cache."""
        i = self._resident_id(key)
        self._flush()
        self._residents.remove(key)
        self._pinned[i] = False
        set_resident(*self._state, LIVE, i, False)

    def pin(self, key: Key) -> None:
        """Exclude a block from eviction."""
        self._pinned[self._resident_id(key)] = True

    def unpin(self, key: Key) -> None:
        """Allow the eviction of a block."""
        i = self._resident_id(key)
        self._pinned[i] = False
        self._unpinned.append(i)

    def evict(self, n: int, protected: Collection[Key] = ()) -> list[Key] | None:
        """Evict exactly n blocks without a resident child, neither pinned nor protected; None if there are fewer.

        A block whose children are evicted by the same call has none. None changes nothing.
        """
        spared = [self._id_of[key] for key in protected if key in self._residents]
        victims = np.zeros(n, np.int64)
        self._flush()
        if not evict_leaves(*self._state, np.array(spared, np.int64), victims):
            return None
        evicted = [self._key_of[i] for i in victims.tolist()]
        self._residents.difference_update(evicted)
        return evicted

    def __contains__(self, key: Key) -> bool:
        return key in self._residents

    def __len__(self) -> int:
        """Return the number of resident blocks."""
        return len(self._residents)

    @property
    def leader(self) -> str:
        """Name of the expert that ranks the blocks."""
        return NAMES[int(self._head["leader"][0])]

    def _new_id(self, key: Key) -> int:
        """Give an id to a new key, that of the oldest one if the table is full."""
        i = len(self._key_of)
        if i < self.max_keys:
            self._key_of.append(key)
        else:
            self._flush()
            i = int(drop_oldest(*self._state))
            del self._id_of[self._key_of[i]]
            self._rows[i] = np.zeros((), self._rows.dtype)
            self._key_of[i] = key
        self._id_of[key] = i
        return i

    def _flush(self) -> None:
        """Apply insertions and the end of pins. A call of a kernel for each of them would take most of the time."""
        if self._inserted or self._unpinned:
            update_live(*self._state, np.array(self._inserted, np.int64), np.array(self._unpinned, np.int64))
            self._inserted.clear()
            self._unpinned.clear()

    def _resident_id(self, key: Key) -> int:
        if key not in self._residents:
            raise InvalidInput(f"block {key!r} is not resident")
        return self._id_of[key]

    def check(self) -> None:
        """Recompute the state of all caches; raise CorruptState if it differs."""
        self._flush()
        n = len(self._key_of)
        rows = self._rows[:n]
        if [self._id_of.get(key) for key in self._key_of] != list(range(n)):
            raise CorruptState("the ids of keys are inconsistent")
        if sorted(linked_ids(self._rows)) != np.flatnonzero(rows["known"]).tolist():
            raise CorruptState("the list of blocks and the table differ")
        if self._residents != {self._key_of[i] for i in np.flatnonzero(rows["resident"][:, LIVE]).tolist()}:
            raise CorruptState("the residents are inconsistent")
        parents = rows["parent"][rows["known"] & (rows["parent"] >= 0)]
        if not np.array_equal(rows["children"], np.bincount(parents, minlength=n)):
            raise CorruptState("the numbers of children are inconsistent")
        for c in range(CACHES):
            check_cache(self._head, rows, self._keys, self._ids, c)


def warm_up() -> None:
    """Compile the kernels, which takes half a minute, once on a machine. A server calls it before its first request."""
    policy = ChainPolicy[int](2, max_keys=5)
    for request in range(3):
        policy.start_request()
        policy.count((3 * request, 3 * request + 1), after=0 if request else None)  # the third one fills the table
    policy.insert(7, pinned=True)
    policy.unpin(7)
    policy.pin(7)
    policy.remove(7)
    policy.evict(0)
