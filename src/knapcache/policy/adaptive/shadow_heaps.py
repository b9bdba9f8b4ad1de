"""The heaps of the shadow caches: binary, with lazy increase-key, one for each expert in columns of `head`.

    shadow_key[m, k]        key at position k of expert m's heap, as of when it was placed
    shadow_slot[m, k]       slot at that position
    shadow_position[s, m]   position + 1 of slot s; 0: not held
    slot_key[s, m]          current key of slot s         Invariant: shadow_key at its position is never above it

A hit raises the key of its slot in most shadows that hold it. That only writes `slot_key`: what is in the heap is a
lower bound. If the slot on top has the key it was placed with, no other one can be below it. If not, `settle_top` moves
it down first. So a slot with ten hits between two evictions moves at most once. Arrays that a hit visits are ordered by
slot, so that one slot of all experts is in few cache lines.
"""

from __future__ import annotations

from knapcache.kernel import Records, inlined, kernel
from knapcache.oracle.problem import Floats, Ints


@kernel
def sift(keys: Floats, slots: Ints, positions: Ints, n: int, m: int, k: int, key: float, s: int) -> None:
    """Put slot s with `key` into the free position k of m's heap of n, and move it up or down."""
    while k > 0:
        above = (k - 1) >> 1
        if not key < keys[m, above]:
            break
        keys[m, k] = keys[m, above]
        slots[m, k] = slots[m, above]
        positions[slots[m, k], m] = k + 1
        k = above
    while True:
        c = 2 * k + 1
        if c >= n:
            break
        if c + 1 < n and keys[m, c + 1] < keys[m, c]:
            c += 1
        if not keys[m, c] < key:
            break
        keys[m, k] = keys[m, c]
        slots[m, k] = slots[m, c]
        positions[slots[m, k], m] = k + 1
        k = c
    keys[m, k] = key
    slots[m, k] = s
    positions[s, m] = k + 1


@inlined
def set_key(head: Records, m: int, s: int, key: float) -> None:
    """Change the key of slot s, which shadow m holds."""
    h = head[0]
    before = h.slot_key[s, m]
    h.slot_key[s, m] = key
    if key < before:  # otherwise the heap's key, which was not above it, need not be read
        k = h.shadow_position[s, m] - 1
        if key < h.shadow_key[m, k]:
            sift(h.shadow_key, h.shadow_slot, h.shadow_position, h.shadow_count[m], m, k, key, s)


@inlined
def settle_top(head: Records, m: int, n: int) -> None:
    """Move slots down from the top of m's heap of n until the one on top has its current key."""
    h = head[0]
    while True:
        s = h.shadow_slot[m, 0]
        if h.slot_key[s, m] == h.shadow_key[m, 0]:
            break
        sift(h.shadow_key, h.shadow_slot, h.shadow_position, n, m, 0, h.slot_key[s, m], s)
