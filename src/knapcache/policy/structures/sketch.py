"""A count-min sketch of 4-bit counters with aging (Einziger, Friedman, Manes 2017), in two columns of `rows`.

Each id has one counter in each of four rows of the sketch. The estimate is the least of the four: ids share
counters, so a counter may be too large but never too small. Counters saturate at 15. After every W additions all
counters are halved, so that old requests fade.

    rows[k].counters   k-th counter of each of the four rows, 4 bits each
    rows[k].halvings   how often these were halved

Halving is lazy: a counter is updated when it is read. Halving all at once would scan every id, however few answers
the cache holds.
"""

from __future__ import annotations

from knapcache.kernel import Records, kernel

SKETCH_HEAD = [("additions", "i8"), ("halvings", "i8")]
SKETCH_ROW = [("counters", "i8"), ("halvings", "i8")]
MULTIPLIERS = (1_103_515_245, 1_566_083_941, 1_812_433_253, 2_024_337_845)  # below 2^31 like ids: nothing overflows


@kernel
def counter(head: Records, rows: Records, width: int, i: int, d: int) -> int:
    """Return the position of the counter of id i in row d, after updating it."""
    k = (i + 1) * MULTIPLIERS[d] % 2_147_483_647 % width
    pending = head[0].halvings - rows[k].halvings
    if pending > 0:
        for _ in range(min(pending, 4)):
            rows[k].counters = (rows[k].counters >> 1) & 0x7777
        rows[k].halvings = head[0].halvings
    return int(k)


@kernel
def estimate(head: Records, rows: Records, width: int, i: int) -> int:
    """Return the recent number of requests for i, at most 15."""
    least = 15
    for d in range(4):
        k = counter(head, rows, width, i, d)
        least = min(least, (rows[k].counters >> 4 * d) & 15)
    return least


@kernel
def count(head: Records, rows: Records, width: int, i: int, sample: int) -> None:
    """Count a request for i. `sample` is W, the additions between two halvings."""
    for d in range(4):
        k = counter(head, rows, width, i, d)
        if (rows[k].counters >> 4 * d) & 15 < 15:
            rows[k].counters += 1 << 4 * d
    head[0].additions += 1
    if head[0].additions >= sample:
        head[0].additions //= 2
        head[0].halvings += 1
