"""A count-min sketch of 4-bit counters with aging (Einziger, Friedman, Manes 2017), in two columns of `rows`.

Each id has one counter in each of four rows of the sketch. The estimate is the least of the four: ids share
counters, so a counter may be too large but never too small. Counters saturate at 15. When the additions since the last
halving reach W, all counters are halved, so that old requests fade. As in Caffeine, a request that raises no counter
is not an addition, and halving corrects for odd counters, which lose a half each:

    additions ← (additions − odd counters / 4) / 2

    rows[k].counters   k-th counter of each of the four rows, 4 bits each
    rows[k].halvings   how often these were halved
    head.histogram     number of counters with each value 1 … 15

Halving is lazy: a counter is updated when it is read. Halving all at once would scan every id, however few answers
the cache holds. The histogram gives the number of odd counters without a scan.

The sketch is as wide as there are ids. Caffeine's is as wide as there are cached entries, and more keys share counters.
"""

from __future__ import annotations

from knapcache.kernel import Records, kernel

SKETCH_HEAD = [("additions", "i8"), ("halvings", "i8"), ("histogram", "(16,)i8")]
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
    h = head[0]
    raised = False
    for d in range(4):
        k = counter(head, rows, width, i, d)
        value = (rows[k].counters >> 4 * d) & 15
        if value < 15:
            rows[k].counters += 1 << 4 * d
            h.histogram[value] -= value > 0
            h.histogram[value + 1] += 1
            raised = True
    if raised:
        h.additions += 1
        if h.additions >= sample:
            halve(head)


@kernel
def halve(head: Records) -> None:
    """Halve all counters, and the additions without what odd counters lose."""
    h = head[0]
    odd = 0
    for value in range(1, 16):
        n = h.histogram[value]
        h.histogram[value] = 0
        h.histogram[value >> 1] += n
        odd += n * (value & 1)
    h.histogram[0] = 0
    h.additions = (h.additions - odd // 4) // 2
    h.halvings += 1
