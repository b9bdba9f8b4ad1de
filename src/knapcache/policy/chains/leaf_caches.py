"""Caches of blocks that evict leaves only: the live one, and a shadow of each expert.

A block is of use only if all blocks before it are resident. So a cache evicts leaves: blocks without a resident child.
Among leaves of equal rank, the deepest leaves first; then the one with the smaller id. Each cache has its leaves in a
binary heap, in row c of two arrays, and three columns of `rows`:

    keys[c, k], ids[c, k]   rank and id at position k of the heap of cache c
    rows[i].position[c]     position + 1 of block i; 0: not in the heap
    rows[i].resident[c]
    rows[i].kids[c]         resident blocks whose parent is i, which need not be resident itself

A request raises the rank of a block without moving it: keys[c, k] is a lower bound. If the id at the top still has the
rank that it was placed with, no other can be below it. Otherwise it is moved down first.
"""

from __future__ import annotations

import numpy as np

from knapcache.errors import CorruptState
from knapcache.kernel import Records, inlined, kernel
from knapcache.oracle.problem import Floats, Ints
from knapcache.policy.chains.experts import COUNT_HEAD, COUNT_ROW, EXPERT_COUNT, rank_of

LIVE = EXPERT_COUNT
"""The live cache. The cache of expert e is e."""
CACHES = EXPERT_COUNT + 1
CACHE_HEAD = [
    *COUNT_HEAD,
    ("capacity", "i8"),  # blocks
    ("leader", "i8"),  # the expert that ranks the blocks of the live cache
    ("used", f"({CACHES},)i8"),  # resident blocks
    ("leaves", f"({CACHES},)i8"),  # blocks in the heap
]
CACHE_ROW = [
    *COUNT_ROW,
    ("pinned", "?"),  # not to be evicted from the live cache
    ("spared", "?"),  # the same, during one call; nor dropped from the table
    ("resident", f"({CACHES},)u1"),  # 0 or 1: Numba has no nested arrays of booleans
    ("kids", f"({CACHES},)i4"),
    ("position", f"({CACHES},)i4"),
]


@inlined
def rank_in(head: Records, rows: Records, c: int, i: int) -> float:
    """Return the rank of block i in cache c."""
    return rank_of(rows, i, head[0].leader if c == LIVE else c)


@inlined
def precedes(rows: Records, key: float, i: int, other_key: float, j: int) -> bool:
    """Return whether block i, with this key, leaves before block j."""
    if key != other_key:
        return key < other_key
    if rows[i].depth != rows[j].depth:
        return rows[i].depth > rows[j].depth  # type: ignore[no-any-return]
    return i < j


@kernel
def sift(head: Records, rows: Records, keys: Floats, ids: Ints, c: int, k: int, key: float, i: int) -> None:
    """Put block i with `key` into the free position k of the heap of c, and move it up or down."""
    while k > 0:
        above = (k - 1) >> 1
        if not precedes(rows, key, i, keys[c, above], ids[c, above]):
            break
        keys[c, k], ids[c, k] = keys[c, above], ids[c, above]
        rows[ids[c, k]].position[c] = k + 1
        k = above
    n = head[0].leaves[c]
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        if child + 1 < n and precedes(rows, keys[c, child + 1], ids[c, child + 1], keys[c, child], ids[c, child]):
            child += 1
        if not precedes(rows, keys[c, child], ids[c, child], key, i):
            break
        keys[c, k], ids[c, k] = keys[c, child], ids[c, child]
        rows[ids[c, k]].position[c] = k + 1
        k = child
    keys[c, k], ids[c, k] = key, i
    rows[i].position[c] = k + 1


@kernel
def update_leaf(head: Records, rows: Records, keys: Floats, ids: Ints, c: int, i: int) -> None:
    """Add block i to the heap of c, or remove it, by whether it is a leaf that may be evicted."""
    q, leaves = rows[i], head[0].leaves
    wanted = q.resident[c] and q.kids[c] == 0 and not (c == LIVE and (q.pinned or q.spared))
    at = q.position[c] - 1
    if wanted and at < 0:
        leaves[c] += 1
        sift(head, rows, keys, ids, c, leaves[c] - 1, rank_in(head, rows, c, i), i)
    elif at >= 0 and not wanted:
        leaves[c] -= 1
        q.position[c] = 0
        n = leaves[c]
        if at < n:  # the last one takes its place
            sift(head, rows, keys, ids, c, at, keys[c, n], ids[c, n])


@kernel
def set_resident(head: Records, rows: Records, keys: Floats, ids: Ints, c: int, i: int, resident: bool) -> None:
    """Insert block i into cache c, or remove it."""
    change = 1 if resident else -1
    rows[i].resident[c] = int(resident)
    head[0].used[c] += change
    update_leaf(head, rows, keys, ids, c, i)
    parent = rows[i].parent
    if parent >= 0:
        rows[parent].kids[c] += change
        update_leaf(head, rows, keys, ids, c, parent)


@kernel
def first_leaf(head: Records, rows: Records, keys: Floats, ids: Ints, c: int) -> int:
    """Return the leaf that leaves first. The heap must not be empty."""
    while True:
        i = ids[c, 0]
        key = rank_in(head, rows, c, i)
        if key == keys[c, 0]:
            return i  # type: ignore[no-any-return]
        sift(head, rows, keys, ids, c, 0, key, i)


@kernel
def spare(rows: Records, blocks: Ints, spared: bool) -> None:
    """Set whether blocks are spared."""
    for k in range(len(blocks)):
        rows[blocks[k]].spared = spared


@kernel
def evict_leaves(head: Records, rows: Records, keys: Floats, ids: Ints, protected: Ints, victims: Ints) -> bool:
    """Fill `victims` with blocks that are not protected, and evict them. False: there are fewer; nothing changed."""
    spare(rows, protected, True)
    found = 0
    while found < len(victims) and head[0].leaves[LIVE] > 0:
        i = first_leaf(head, rows, keys, ids, LIVE)
        if rows[i].spared or rows[i].pinned:
            update_leaf(head, rows, keys, ids, LIVE, i)  # out of the heap until the end, or until it is not pinned
        else:
            set_resident(head, rows, keys, ids, LIVE, i, False)
            victims[found] = i
            found += 1
    enough = found == len(victims)
    if not enough:
        for k in range(found - 1, -1, -1):
            set_resident(head, rows, keys, ids, LIVE, victims[k], True)
    spare(rows, protected, False)
    for k in range(len(protected)):
        update_leaf(head, rows, keys, ids, LIVE, protected[k])
    return enough


@kernel
def store_in_shadow(head: Records, rows: Records, keys: Floats, ids: Ints, c: int, chain: Ints) -> None:
    """Insert the blocks of a request into the cache of an expert, in order."""
    for k in range(len(chain)):
        i = chain[k]
        if not rows[i].resident[c]:
            if head[0].used[c] >= head[0].capacity:
                set_resident(head, rows, keys, ids, c, first_leaf(head, rows, keys, ids, c), False)
            set_resident(head, rows, keys, ids, c, i, True)


@kernel
def rank_again(head: Records, rows: Records, keys: Floats, ids: Ints) -> None:
    """Restore the heap of the live cache after the leader has changed."""
    leaves, n = head[0].leaves, head[0].leaves[LIVE]
    for k in range(n):
        leaves[LIVE] = k + 1  # the heap of the first k + 1 is in order
        i = ids[LIVE, k]
        sift(head, rows, keys, ids, LIVE, k, rank_in(head, rows, LIVE, i), i)


def check_cache(head: Records, rows: Records, keys: Floats, ids: Ints, c: int) -> None:
    """Raise CorruptState unless the totals, the children and the heap of cache c agree with its residents."""
    resident = rows["resident"][:, c] != 0
    used, leaves = int(head["used"][0, c]), int(head["leaves"][0, c])
    if used != np.count_nonzero(resident) or used > head["capacity"][0]:
        raise CorruptState(f"cache {c}: {used} blocks are used, {np.count_nonzero(resident)} are resident")
    parents = rows["parent"][resident]
    if not np.array_equal(rows["kids"][:, c], np.bincount(parents[parents >= 0], minlength=len(rows))):
        raise CorruptState(f"cache {c}: the numbers of resident children are inconsistent")
    evictable = set(np.flatnonzero(resident & (rows["kids"][:, c] == 0)).tolist())
    heap = ids[c, :leaves]
    pinned = set(np.flatnonzero(rows["pinned"]).tolist()) if c == LIVE else set()  # may be in the heap
    if len(set(heap.tolist())) != leaves or not evictable - pinned <= set(heap.tolist()) <= evictable:
        raise CorruptState(f"cache {c}: the heap and the leaves differ")
    if not np.array_equal(rows["position"][heap, c], np.arange(1, leaves + 1)):
        raise CorruptState(f"cache {c}: positions in the heap are inconsistent")
    for k in range(leaves):
        i, above = int(heap[k]), (k - 1) >> 1
        if keys[c, k] > rank_in(head, rows, c, i):
            raise CorruptState(f"cache {c}: block {i} has a rank below the one that it was placed with")
        if k and precedes(rows, keys[c, k], i, keys[c, above], int(heap[above])):
            raise CorruptState(f"cache {c}: block {i} is below a block that should leave after it")
