"""What is counted about blocks, and the experts' ranks.

A block is a fixed number of tokens of a prompt. Its key stands for these tokens and all before them, so a block has one
*parent*, the block before it, and requests form a tree. Time is counted in requests. The experts rank blocks, and a
cache evicts the leaf of least rank:

    LRU          the last request for the block
    SEEN_TWICE   the same, after all blocks with a single request
    half-lives   log2 F, where F counts requests, and a request counts half after every H further ones
    … · r        the same, where a block with a single request counts r < 1, the probability that it returns

F(now) = Σ 2^(−(now − t)/H) over the requests t for a block. All F decay by the same factor, so their order does not
depend on the time at which they are compared. The rank is log2 F at time 0, which grows only with requests:

    rank ← log2(2^rank + 2^(now/H))

r is estimated from the blocks that were seen so far, by class: the depth of the block, and the number of earlier
requests that its request continues. A block keeps the r of its first request until the second one.
"""

from __future__ import annotations

import math

from knapcache.kernel import Records, inlined

HALF_LIVES = (200.0, 500.0, 2000.0, 8000.0)
"""In requests."""
HALF_LIFE_COUNT = len(HALF_LIVES)
LRU, SEEN_TWICE, FREQUENCY, RETURNING = 0, 1, 2, 2 + HALF_LIFE_COUNT
"""The first expert of each kind."""
NAMES = (
    "lru",
    "seen-twice",
    *(f"half-life-{h:g}" for h in HALF_LIVES),
    *(f"half-life-{h:g}-returning" for h in HALF_LIVES),
)
EXPERT_COUNT = len(NAMES)
AFTER_ALL = 2.0**52
"""Added to the rank of a block that was seen twice: more than any time."""
TURNS, DEPTHS = 4, 8
CLASSES = TURNS * DEPTHS
MAX_SEEN = 10_000.0
"""Blocks of a class that count for r. At this number all counts are halved, because traffic changes."""

COUNT_HEAD = [
    ("now", "i8"),  # requests so far
    ("seen", f"({CLASSES},)f8"),  # blocks by class,
    ("returned", f"({CLASSES},)f8"),  # and those of them with a second request
]
COUNT_ROW = [
    ("parent", "i4"),  # −1: none, or forgotten
    ("depth", "i4"),  # blocks before it
    ("requests", "i4"),
    ("last", "i8"),  # time of the last request
    ("turn", "i1"),  # requests that the first request for the block continued, below TURNS
    ("log_return", "f8"),  # log2 r of a block with a single request, else 0
    ("rank", f"({HALF_LIFE_COUNT},)f8"),
]


def start_counts(head: Records) -> None:
    """Begin with r = 1/2 in every class."""
    head["seen"], head["returned"] = 2.0, 1.0


@inlined
def class_of(rows: Records, i: int) -> int:
    """Return the class of a block."""
    return rows[i].turn * DEPTHS + min(DEPTHS - 1, int(math.log2(1.0 + rows[i].depth)))  # type: ignore[no-any-return]


@inlined
def count_block(head: Records, rows: Records, i: int) -> None:
    """Count a request for block i. The one for its parent must have been counted."""
    h, q = head[0], rows[i]
    q.requests += 1
    if q.requests == 1:
        if q.parent >= 0:
            continued = int(rows[q.parent].requests > 1)  # the request leaves the known blocks here
            q.turn = min(TURNS - 1, rows[q.parent].turn + continued)
        c = class_of(rows, i)
        q.log_return = math.log2(h.returned[c] / h.seen[c])
        h.seen[c] += 1.0
        if h.seen[c] > MAX_SEEN:
            h.seen[c] /= 2.0
            h.returned[c] /= 2.0
    elif q.requests == 2:
        h.returned[class_of(rows, i)] += 1.0
        q.log_return = 0.0
    for k in range(HALF_LIFE_COUNT):
        one = h.now / HALF_LIVES[k]
        q.rank[k] = one if q.requests == 1 else one + math.log2(1.0 + 2.0 ** (q.rank[k] - one))
    q.last = h.now


@inlined
def rank_of(rows: Records, i: int, expert: int) -> float:
    """Return an expert's rank of block i. It does not change but by requests for i, which never lower it."""
    if expert >= RETURNING:
        return rows[i].rank[expert - RETURNING] + rows[i].log_return  # type: ignore[no-any-return]
    if expert >= FREQUENCY:
        return rows[i].rank[expert - FREQUENCY]  # type: ignore[no-any-return]
    if expert == SEEN_TWICE and rows[i].requests > 1:
        return rows[i].last + AFTER_ALL  # type: ignore[no-any-return]
    return float(rows[i].last)
