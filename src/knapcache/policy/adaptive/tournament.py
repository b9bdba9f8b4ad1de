"""A tournament of experts, evaluated on shadow caches.

The best half-life depends on the traffic, by a factor of thousands, and so does the best admission rule. So every
expert (experts.py) is simulated beside the live cache as a *shadow*: the same requests and the same capacity, but no
answers. What its misses would have cost is its loss. The live cache follows the expert of least loss.

Losses decay, at two speeds. An expert becomes the leader when its loss is clearly less over the last ten thousand
requests, or slightly less over the last forty thousand and not more over ten thousand. A single window either lags
behind sudden changes or follows noise.

Simulating a large cache seventeen times would cost more than the cache itself. So the shadows see a sample: the ids
whose hash is below a limit, in a cache smaller by the same factor (SHARDS, Waldspurger et al. 2015). An id has one of
SLOTS slots while at least one shadow holds it. When the slots run out, the limit is halved. So work and memory are
bounded, and small caches are simulated in full.

    Invariant: slot_refs[s] = number of shadows that hold slot s; slots without references are on the free stack.
    Invariant: shadow_used[m] = Σ slot_size over the slots that shadow m holds ≤ shadow_capacity.
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
"""Requests after which a loss counts 1/e, at each of the two speeds."""
CLEAR_LEAD, SLIGHT_LEAD = 0.99, 0.999
RESCALE_ABOVE = 1e100

TOURNAMENT_HEAD = [
    ("hash_limit", "i8"),  # ids whose hash is below it are in the sample
    ("shadow_capacity", "i8"),
    ("loss", f"(2,{EXPERT_COUNT})f8"),  # by speed and expert
    ("loss_weight", "(2,)f8"),  # weight of a loss now: it grows, instead of all old losses decaying
    ("loss_time", "i8"),  # t of `loss_weight`
    ("slots_used", "i8"),
    ("free_slots", f"({SLOTS},)i8"),  # a stack: the free slots from position slots_used on
    ("slot_id", f"({SLOTS},)i8"),
    ("slot_size", f"({SLOTS},)i8"),
    ("slot_refs", f"({SLOTS},)i8"),
    ("shadow_used", f"({EXPERT_COUNT},)i8"),
    ("shadow_count", f"({EXPERT_COUNT},)i8"),  # slots held
    ("shadow_key", f"({EXPERT_COUNT},{SLOTS})f8"),  # a binary heap for each shadow: keys by position,
    ("shadow_slot", f"({EXPERT_COUNT},{SLOTS})i4"),  # slots by position,
    ("shadow_position", f"({EXPERT_COUNT},{SLOTS})i4"),  # position + 1 by slot; 0: not held
]
TOURNAMENT_ROW = [("shadow", "i4")]  # slot + 1; 0: none


def start_tournament(head: Records, capacity: int) -> None:
    """Initialise empty shadows without losses."""
    head["hash_limit"], head["shadow_capacity"], head["loss_weight"] = ALL_HASHES, capacity, 1.0
    head["free_slots"][0] = np.arange(SLOTS)


@inlined
def hash_of(i: int) -> int:
    """Return a 62-bit hash of an id: the finaliser of SplitMix64."""
    x = np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((x ^ (x >> np.uint64(31))) >> np.uint64(2))


@kernel
def observe(head: Records, rows: Records, i: int, now: int) -> None:
    """Run the request for i, whose size and cost are known, through every shadow."""
    h = head[0]
    if h.hash_limit < ALL_HASHES and hash_of(i) >= h.hash_limit:
        return
    s = slot_for(head, rows, i)
    if s < 0:
        return
    grow_loss_weight(head, now)
    size, cost = rows[i].entry_size, cost_of(head, rows, i)
    keys, slots, positions, loss = h.shadow_key, h.shadow_slot, h.shadow_position, h.loss
    used, count = h.shadow_used, h.shadow_count
    h.slot_refs[s] += 1  # keeps the slot while evictions below free others
    for m in range(EXPERT_COUNT):
        key = key_of(head, rows, i, m)
        if positions[m, s] > 0:
            shadow_sift(keys, slots, positions, count[m], m, positions[m, s] - 1, key, s)
            continue
        loss[0, m] += h.loss_weight[0] * cost
        loss[1, m] += h.loss_weight[1] * cost
        if size > h.shadow_capacity:
            continue
        if used[m] + size > h.shadow_capacity:
            if not shadow_admits(head, m, size, key, half_lives_at(now, m)):
                continue
            shadow_evict_until_fits(head, rows, m, size)
        count[m] += 1
        used[m] += size
        h.slot_refs[s] += 1
        shadow_sift(keys, slots, positions, count[m], m, count[m] - 1, key, s)
    h.slot_refs[s] -= 1
    free_unused_slot(head, rows, s)


@kernel
def slot_for(head: Records, rows: Records, i: int) -> int:
    """Return the slot of i with its current size; −1 if the sample was halved and no longer contains i."""
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
    """Change the size of slot s in every shadow that holds it, and evict where it no longer fits."""
    h = head[0]
    growth = size - h.slot_size[s]
    h.slot_size[s] = size
    h.slot_refs[s] += 1
    for m in range(EXPERT_COUNT):
        if h.shadow_position[m, s] > 0:
            h.shadow_used[m] += growth
            shadow_evict_until_fits(head, rows, m, 0)
    h.slot_refs[s] -= 1


@inlined
def grow_loss_weight(head: Records, now: int) -> None:
    """Raise the weight of losses to that of time `now`, and rescale all losses before it overflows."""
    h = head[0]
    for a in range(2):
        h.loss_weight[a] *= 1.0 + (now - h.loss_time) / WINDOWS[a]
        if h.loss_weight[a] > RESCALE_ABOVE:
            for m in range(EXPERT_COUNT):
                h.loss[a, m] /= h.loss_weight[a]
            h.loss_weight[a] = 1.0
    h.loss_time = now


@kernel
def shadow_sift(keys: Floats, slots: Ints, positions: Ints, n: int, m: int, k: int, key: float, s: int) -> None:
    """Put slot s with `key` into the free position k of m's heap of n, and move it up or down."""
    while k > 0:
        above = (k - 1) >> 1
        if not key < keys[m, above]:
            break
        keys[m, k] = keys[m, above]
        slots[m, k] = slots[m, above]
        positions[m, slots[m, k]] = k + 1
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
        positions[m, slots[m, k]] = k + 1
        k = c
    keys[m, k] = key
    slots[m, k] = s
    positions[m, s] = k + 1


@kernel
def shadow_remove(head: Records, m: int, s: int) -> None:
    """Remove slot s from shadow m."""
    h = head[0]
    keys, slots, positions = h.shadow_key, h.shadow_slot, h.shadow_position
    k = positions[m, s] - 1
    positions[m, s] = 0
    n = h.shadow_count[m] - 1
    h.shadow_count[m] = n
    h.shadow_used[m] -= h.slot_size[s]
    h.slot_refs[s] -= 1
    if k < n:
        shadow_sift(keys, slots, positions, n, m, k, keys[m, n], slots[m, n])


@inlined
def free_unused_slot(head: Records, rows: Records, s: int) -> None:
    """Push slot s on the free stack if no shadow holds it."""
    h = head[0]
    if h.slot_refs[s] == 0:
        rows[h.slot_id[s]].shadow = 0
        h.slots_used -= 1
        h.free_slots[h.slots_used] = s


@kernel
def shadow_evict_until_fits(head: Records, rows: Records, m: int, size: int) -> None:
    """Evict the least keys of shadow m until `size` more units fit."""
    h = head[0]
    while h.shadow_used[m] + size > h.shadow_capacity:
        if m == GREEDY_DUAL:
            h.clock = max(h.clock, h.shadow_key[m, 0])
        s = h.shadow_slot[m, 0]
        shadow_remove(head, m, s)
        free_unused_slot(head, rows, s)


@kernel
def shadow_admits(head: Records, m: int, size: int, key: float, now: float) -> bool:
    """Return whether shadow m, which is full, would admit an answer of `size` and `key` by its rule.

    Victims are popped from the heap one by one, stored behind it as in a heap sort, and pushed back.
    """
    h = head[0]
    if EXPERT_RULE[m] == ALWAYS:
        return True
    keys, slots, positions = h.shadow_key, h.shadow_slot, h.shadow_position
    gain = value_now(key, size, now) if EXPERT_RULE[m] == BEATS_SUM else 0.0
    free = h.shadow_capacity - h.shadow_used[m]
    n = h.shadow_count[m]
    left = n
    while True:
        least, s = keys[m, 0], slots[m, 0]
        if EXPERT_RULE[m] == BEATS_SUM:
            gain -= value_now(least, h.slot_size[s], now)
        elif least > key:
            gain = -1.0
        free += h.slot_size[s]
        if gain < 0.0 or free >= size:
            break
        left -= 1
        shadow_sift(keys, slots, positions, left, m, 0, keys[m, left], slots[m, left])
        keys[m, left] = least
        slots[m, left] = s
    while left < n:
        shadow_sift(keys, slots, positions, left + 1, m, left, keys[m, left], slots[m, left])
        left += 1
    if gain < 0.0 and m == GREEDY_DUAL:
        h.clock = max(h.clock, key)  # the newcomer itself had the least key
    return bool(gain >= 0.0)


@kernel
def halve_sample(head: Records, rows: Records) -> None:
    """Halve the hash limit and the capacity of the shadows."""
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
    """Remove i from every shadow."""
    s = rows[i].shadow - 1
    if s < 0:
        return
    for m in range(EXPERT_COUNT):
        if head[0].shadow_position[m, s] > 0:
            shadow_remove(head, m, s)
    free_unused_slot(head, rows, s)


@kernel
def leader_after(head: Records, leader: int) -> int:
    """Return the expert to follow now; `leader` unless another one is clearly or lastingly better."""
    loss = head[0].loss
    for window in range(2):
        best = leader
        for m in range(EXPERT_COUNT):
            if loss[window, m] < loss[window, best]:
                best = m
        if window == 0 and loss[0, best] < CLEAR_LEAD * loss[0, leader]:
            return best
        if window == 1 and loss[1, best] < SLIGHT_LEAD * loss[1, leader] and loss[0, best] <= loss[0, leader]:
            return best
    return leader


def check_tournament(head: Records, rows: Records) -> None:
    """Recompute what the shadows hold; raise CorruptState if it differs."""
    h = {name: head[name][0] for name in head.dtype.names}
    held = h["shadow_position"] > 0
    used = set(range(SLOTS)) - set(h["free_slots"][h["slots_used"] :].tolist())
    if (held.sum(0) != h["slot_refs"]).any() or set(np.flatnonzero(held.any(0)).tolist()) != used:
        raise CorruptState("slots of the shadows: references and holders differ")
    if (held.sum(1) != h["shadow_count"]).any() or ((held * h["slot_size"]).sum(1) != h["shadow_used"]).any():
        raise CorruptState("totals of a shadow differ from the slots it holds")
    if (h["shadow_used"] > h["shadow_capacity"]).any():
        raise CorruptState("a shadow exceeds its capacity")
    if sorted(np.flatnonzero(rows["shadow"]).tolist()) != sorted(h["slot_id"][list(used)].tolist()):
        raise CorruptState("ids in the sample and their slots differ")
    for m in range(EXPERT_COUNT):
        n = int(h["shadow_count"][m])
        if (h["shadow_position"][m, h["shadow_slot"][m, :n]] != np.arange(1, n + 1)).any():
            raise CorruptState(f"a slot has the wrong position in the heap of expert {m}")
        if (h["shadow_key"][m, 1:n] < h["shadow_key"][m, (np.arange(1, n) - 1) >> 1]).any():
            raise CorruptState(f"the heap of expert {m} is out of order")
