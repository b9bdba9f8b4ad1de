"""A tournament of caches that hold no answers.

Which half-life is right depends on the traffic, by a factor of thousands, and so does the temper. So every member
(members.py) runs beside the live cache as a *shadow*: only its books, on the same requests, in the same room. What
its misses would have cost is its loss; the live cache does as the member of least loss does.

Losses fade, at two speeds. A member takes the lead when it is clearly better over the last ten thousand requests, or
slightly better over the last forty thousand and not worse over ten. One window alone either lags behind sudden changes
or follows noise.

Shadows of a large cache would cost more than the cache. So they see a sample: ids whose hash lies below a limit, in
a cache smaller by the same factor (SHARDS, Waldspurger et al. 2015). An id takes one of SLOTS slots while any member
holds it. When slots run out the limit is halved: work and memory stay bounded, and small caches are simulated whole.

    Invariant: slot_holders[s] = how many members hold slot s; a slot without holders is on the stack of free ones.
    Invariant: filled[m] = Σ slot_room over what m holds ≤ scaled.
"""

from __future__ import annotations

import numpy as np

from knapcache.errors import CorruptState
from knapcache.estimate.costs import cost_of
from knapcache.kernel import Records, inlined, kernel
from knapcache.oracle.problem import Floats, Ints
from knapcache.policy.adaptive.admission_rules import ALWAYS, BEATS_SUM, value_now
from knapcache.policy.adaptive.experts import EXPERT_COUNT, EXPERT_RULE, GREEDY_DUAL, half_lives_at, key_of

SLOTS = 2048
ALL_HASHES = 1 << 62
WINDOWS = (10_000.0, 40_000.0)
"""Requests after which a loss counts 1/e, in each of the two accounts."""
CLEAR_LEAD, SLIGHT_LEAD = 0.99, 0.999
RESCALE_ABOVE = 1e100

TOURNAMENT_HEAD = [
    ("hash_limit", "i8"),  # ids whose hash is below it are in the sample
    ("shadow_capacity", "i8"),  # capacity of each shadow
    ("loss", f"(2,{EXPERT_COUNT})f8"),
    ("loss_weight", "(2,)f8"),  # what a loss counts now: it grows, instead of old losses fading
    ("loss_time", "i8"),  # t of `stake`
    ("slots_used", "i8"),
    ("free_slots", f"({SLOTS},)i8"),  # a stack; from slots_taken on the free ones
    ("slot_id", f"({SLOTS},)i8"),
    ("slot_size", f"({SLOTS},)i8"),
    ("slot_refs", f"({SLOTS},)i8"),
    ("shadow_used", f"({EXPERT_COUNT},)i8"),
    ("shadow_count", f"({EXPERT_COUNT},)i8"),
    ("shadow_key", f"({EXPERT_COUNT},{SLOTS})f8"),  # a binary heap a member: keys by position,
    ("shadow_slot", f"({EXPERT_COUNT},{SLOTS})i4"),  # slots by position,
    ("shadow_position", f"({EXPERT_COUNT},{SLOTS})i4"),  # position + 1 by slot; 0: not held
]
TOURNAMENT_ROW = [("shadow", "i4")]  # slot + 1; 0: none


def start_tournament(head: Records, capacity: int) -> None:
    """Every shadow empty, nobody has lost anything."""
    head["hash_limit"], head["shadow_capacity"], head["loss_weight"] = ALL_HASHES, capacity, 1.0
    head["free_slots"][0] = np.arange(SLOTS)


@inlined
def hash_of(i: int) -> int:
    """62 bits in which neighbours have nothing in common: the finaliser of SplitMix64, in 64-bit words."""
    x = np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((x ^ (x >> np.uint64(31))) >> np.uint64(2))


@kernel
def observe(head: Records, rows: Records, i: int, now: int) -> None:
    """All members see the request for i, whose size and cost are known by now."""
    h = head[0]
    if h.hash_limit < ALL_HASHES and hash_of(i) >= h.hash_limit:
        return
    s = slot_for(head, rows, i)
    if s < 0:
        return
    grow_loss_weight(head, now)
    size, cost = rows[i].entry_size, cost_of(head, rows, i)
    shadow_key, shadow_slot, shadow_position, shadow_used, shadow_count, loss = (
        h.shadow_key,
        h.shadow_slot,
        h.shadow_position,
        h.shadow_used,
        h.shadow_count,
        h.loss,
    )
    h.slot_refs[s] += 1  # ours while we look, so that the slot stays
    for m in range(EXPERT_COUNT):
        key = key_of(head, rows, i, m)
        if shadow_position[m, s] > 0:
            shadow_sift(shadow_key, shadow_slot, shadow_position, shadow_count[m], m, shadow_position[m, s] - 1, key, s)
            continue
        loss[0, m] += h.loss_weight[0] * cost
        loss[1, m] += h.loss_weight[1] * cost
        if size > h.shadow_capacity:
            continue
        if shadow_used[m] + size > h.shadow_capacity:
            if not shadow_admits(head, m, size, key, half_lives_at(now, m)):
                continue
            shadow_evict_until_fits(head, rows, m, size)
        shadow_count[m] += 1
        shadow_used[m] += size
        h.slot_refs[s] += 1
        shadow_sift(shadow_key, shadow_slot, shadow_position, shadow_count[m], m, shadow_count[m] - 1, key, s)
    h.slot_refs[s] -= 1
    free_if_unheld(head, rows, s)


@kernel
def slot_for(head: Records, rows: Records, i: int) -> int:
    """The slot of i, with its size of today; −1 when the sample had to be halved and i is no longer in it."""
    h = head[0]
    s = rows[i].shadow - 1
    if s < 0:
        while h.slots_used == SLOTS:
            halve_sample(head, rows)
            if hash_of(i) >= h.hash_limit:
                return -1
        s = h.free_slots[h.slots_used]
        h.slots_used += 1
        h.slot_id[s] = i
        rows[i].shadow = s + 1
        h.slot_size[s] = rows[i].entry_size
    elif h.slot_size[s] != rows[i].entry_size:
        resize(head, rows, s, rows[i].entry_size)
    return s  # type: ignore[no-any-return]


@kernel
def resize(head: Records, rows: Records, s: int, size: int) -> None:
    """The answer in slot s was replaced by one of another size: in every shadow that holds it."""
    h = head[0]
    more = size - h.slot_size[s]
    h.slot_size[s] = size
    h.slot_refs[s] += 1
    for m in range(EXPERT_COUNT):
        if h.shadow_position[m, s] > 0:
            h.shadow_used[m] += more
            shadow_evict_until_fits(head, rows, m, 0)
    h.slot_refs[s] -= 1


@inlined
def grow_loss_weight(head: Records, now: int) -> None:
    """What happens from now on counts more than what has been."""
    h = head[0]
    for a in range(2):
        h.loss_weight[a] *= 1.0 + (now - h.loss_time) / WINDOWS[a]
        if h.loss_weight[a] > RESCALE_ABOVE:
            for m in range(EXPERT_COUNT):
                h.loss[a, m] /= h.loss_weight[a]
            h.loss_weight[a] = 1.0
    h.loss_time = now


@kernel
def shadow_sift(
    shadow_key: Floats, shadow_slot: Ints, shadow_position: Ints, n: int, m: int, k: int, key: float, s: int
) -> None:
    """Position k in m's heap of n is open for slot s: move it up or down to where `key` belongs."""
    while k > 0:
        above = (k - 1) >> 1
        if not key < shadow_key[m, above]:
            break
        shadow_key[m, k] = shadow_key[m, above]
        shadow_slot[m, k] = shadow_slot[m, above]
        shadow_position[m, shadow_slot[m, k]] = k + 1
        k = above
    while True:
        c = 2 * k + 1
        if c >= n:
            break
        if c + 1 < n and shadow_key[m, c + 1] < shadow_key[m, c]:
            c += 1
        if not shadow_key[m, c] < key:
            break
        shadow_key[m, k] = shadow_key[m, c]
        shadow_slot[m, k] = shadow_slot[m, c]
        shadow_position[m, shadow_slot[m, k]] = k + 1
        k = c
    shadow_key[m, k] = key
    shadow_slot[m, k] = s
    shadow_position[m, s] = k + 1


@kernel
def shadow_remove(head: Records, m: int, s: int) -> None:
    """Member m lets slot s go."""
    h = head[0]
    shadow_key, shadow_slot, shadow_position = h.shadow_key, h.shadow_slot, h.shadow_position
    k = shadow_position[m, s] - 1
    shadow_position[m, s] = 0
    n = h.shadow_count[m] - 1
    h.shadow_count[m] = n
    h.shadow_used[m] -= h.slot_size[s]
    h.slot_refs[s] -= 1
    if k < n:
        shadow_sift(shadow_key, shadow_slot, shadow_position, n, m, k, shadow_key[m, n], shadow_slot[m, n])


@inlined
def free_if_unheld(head: Records, rows: Records, s: int) -> None:
    """A slot that nobody holds any more goes back on the stack."""
    h = head[0]
    if h.slot_refs[s] == 0:
        rows[h.slot_id[s]].shadow = 0
        h.slots_used -= 1
        h.free_slots[h.slots_used] = s


@kernel
def shadow_evict_until_fits(head: Records, rows: Records, m: int, size: int) -> None:
    """Member m lets the least go until `room` more fits."""
    h = head[0]
    while h.shadow_used[m] + size > h.shadow_capacity:
        if m == GREEDY_DUAL:
            h.clock = max(h.clock, h.shadow_key[m, 0])
        s = h.shadow_slot[m, 0]
        shadow_remove(head, m, s)
        free_if_unheld(head, rows, s)


@kernel
def shadow_admits(head: Records, m: int, size: int, key: float, now: float) -> bool:
    """Would member m, which is full, make way for a newcomer of `room` and `key`?

    The victims leave the heap one by one to be looked at, are laid down behind it, as in a heap sort, and come back.
    """
    h = head[0]
    if EXPERT_RULE[m] == ALWAYS:
        return True
    shadow_key, shadow_slot, shadow_position = h.shadow_key, h.shadow_slot, h.shadow_position
    gain = value_now(key, size, now) if EXPERT_RULE[m] == BEATS_SUM else 0.0
    space = h.shadow_capacity - h.shadow_used[m]
    n = h.shadow_count[m]
    left = n
    while True:
        least, s = shadow_key[m, 0], shadow_slot[m, 0]
        if EXPERT_RULE[m] == BEATS_SUM:
            gain -= value_now(least, h.slot_size[s], now)
        elif least > key:
            gain = -1.0
        space += h.slot_size[s]
        if gain < 0.0 or space >= size:
            break
        left -= 1
        shadow_sift(shadow_key, shadow_slot, shadow_position, left, m, 0, shadow_key[m, left], shadow_slot[m, left])
        shadow_key[m, left] = least
        shadow_slot[m, left] = s
    while left < n:
        shadow_sift(
            shadow_key, shadow_slot, shadow_position, left + 1, m, left, shadow_key[m, left], shadow_slot[m, left]
        )
        left += 1
    if gain < 0.0 and m == GREEDY_DUAL:
        h.clock = max(h.clock, key)  # the newcomer itself was the least
    return bool(gain >= 0.0)


@kernel
def halve_sample(head: Records, rows: Records) -> None:
    """Half the ids, in half the room."""
    h = head[0]
    h.hash_limit >>= 1
    h.shadow_capacity = max(1, int(h.capacity * (h.hash_limit / ALL_HASHES)))
    for s in range(SLOTS):
        if h.slot_refs[s] > 0 and hash_of(h.slot_id[s]) >= h.hash_limit:
            drop_from_shadows(head, rows, h.slot_id[s])
    for m in range(EXPERT_COUNT):
        shadow_evict_until_fits(head, rows, m, 0)


@kernel
def drop_from_shadows(head: Records, rows: Records, i: int) -> None:
    """No shadow holds i any more."""
    s = rows[i].shadow - 1
    if s < 0:
        return
    for m in range(EXPERT_COUNT):
        if head[0].shadow_position[m, s] > 0:
            shadow_remove(head, m, s)
    free_if_unheld(head, rows, s)


@kernel
def leader_after(head: Records, leader: int) -> int:
    """Who leads from now on, after `leader`."""
    loss = head[0].loss
    for account in range(2):
        best = leader
        for m in range(EXPERT_COUNT):
            if loss[account, m] < loss[account, best]:
                best = m
        if account == 0 and loss[0, best] < CLEAR_LEAD * loss[0, leader]:
            return best
        if account == 1 and loss[1, best] < SLIGHT_LEAD * loss[1, leader] and loss[0, best] <= loss[0, leader]:
            return best
    return leader


def check_tournament(head: Records, rows: Records) -> None:
    """Count anew what the shadows hold."""
    h = {name: head[name][0] for name in head.dtype.names}
    shadow_count = h["shadow_position"] > 0
    taken = set(range(SLOTS)) - set(h["free_slots"][h["slots_used"] :].tolist())
    if (shadow_count.sum(0) != h["slot_refs"]).any() or set(np.flatnonzero(shadow_count.any(0)).tolist()) != taken:
        raise CorruptState("slots of the shadows and who holds them differ")
    if (shadow_count.sum(1) != h["shadow_count"]).any() or (
        (shadow_count * h["slot_size"]).sum(1) != h["shadow_used"]
    ).any():
        raise CorruptState("what a shadow holds and its books differ")
    if (h["shadow_used"] > h["shadow_capacity"]).any():
        raise CorruptState("a shadow holds more than fits")
    if sorted(np.flatnonzero(rows["shadow"]).tolist()) != sorted(h["slot_id"][list(taken)].tolist()):
        raise CorruptState("ids in the sample and their slots differ")
    for m in range(EXPERT_COUNT):
        n = int(h["shadow_count"][m])
        if (h["shadow_position"][m, h["shadow_slot"][m, :n]] != np.arange(1, n + 1)).any():
            raise CorruptState(f"a slot does not know its place with member {m}")
        if (h["shadow_key"][m, 1:n] < h["shadow_key"][m, (np.arange(1, n) - 1) >> 1]).any():
            raise CorruptState(f"the heap of member {m} is out of order")
