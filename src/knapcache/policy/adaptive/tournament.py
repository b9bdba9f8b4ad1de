"""A tournament of experts, evaluated on shadow caches.

The best rule depends on the traffic: the half-life by a factor of thousands, and also how to admit. So every expert
(experts.py) is simulated beside the live cache as a *shadow*: the same requests and the same capacity, but no answers.
What its misses would have cost is its loss. The live cache follows the expert of least loss.

A request that no shadow could have answered says nothing about the experts, and is not counted. Otherwise the cost of
queries that never return, which every expert pays, would hide the differences. At first, however, few requests are
contested, and an expert that wins these may lose the many that return later, as in a loop. So HAZARD has an advantage
then: a share of what was paid for uncontested requests.

Losses decay, at two speeds. An expert becomes the leader when its loss is clearly less over the last ten thousand
requests, or slightly less over the last forty thousand and not more over ten thousand. A single window either lags
behind sudden changes or follows noise. If the shadows see only a sample, the windows are longer.

While the live cache fills for the first time, all shadows of its size would hold the same. So until then they have half
the capacity that the live cache uses, and the first leader is chosen before the first eviction. What they lost with
less capacity is discounted when the live cache is full.

Simulating a large cache twelve times would cost more than the cache itself. So the shadows see a sample: the ids whose
hash is below a limit, in a cache smaller by the same factor (SHARDS, Waldspurger et al. 2015). An id has one of SLOTS
slots while at least one shadow holds it. When the slots run out, the limit is halved. So work and memory are bounded,
and small caches are simulated in full.

The keys of HAZARD change with age. With every request some slots of its shadow are examined, in turn, and get a new key
when their age has reached the next bucket of hazard.py. The others are out of date by the time that a turn takes, which
is short compared with the time that answers stay.

    Invariant: slot_refs[s] = number of shadows that hold slot s; slots without references are on the free stack.
    Invariant: shadow_used[m] = Σ shadow_size over the slots that shadow m holds ≤ shadow_capacity.
"""

from __future__ import annotations

import math

import numpy as np

from knapcache.errors import CorruptState
from knapcache.estimate.costs import cost_of
from knapcache.estimate.hazard import age_bucket, class_of, count_return_at, expose
from knapcache.estimate.return_probability import return_probability_of
from knapcache.kernel import Records, inlined, kernel
from knapcache.policy.adaptive.experts import (
    EXPERT_COUNT,
    GREEDY_DUAL,
    GREEDY_DUAL_SIZE,
    HAZARD,
    admits_always,
    horizon_key,
    key_of,
    other_key,
)
from knapcache.policy.adaptive.shadow_heaps import set_key, settle_top, sift

SLOTS = 2048
ALL_HASHES = 1 << 62
WINDOWS = (10_000.0, 40_000.0)
"""Requests after which a loss counts 1/e, at each of the two speeds."""
MIN_SAMPLED = (5_000.0, 20_000.0)
"""Least number of requests in the sample after which a loss counts 1/e: with fewer ones, the best expert is chance."""
CLEAR_LEAD, SLIGHT_LEAD = 0.99, 0.999
PREFERENCE = 0.97
"""Losses of HAZARD count as much less when the leader is chosen: it suits most traffic, and changes cost something."""
EARLY_ADVANTAGE, EARLY_REQUESTS = 0.04, 6_000.0
"""Share of the uncontested cost that is subtracted from the losses of HAZARD, and requests after which it is 1/e."""
RESCALE_ABOVE = 1e100
FILLING_SHARE, FILLING_WEIGHT = 0.5, 0.1
"""Capacity of the shadows as a share of what a filling cache uses, and the weight of their losses afterwards."""
REFRESHES = 4
"""Keys of HAZARD that are examined with every request."""

TOURNAMENT_HEAD = [
    ("hash_limit", "i8"),  # ids whose hash is below it are in the sample
    ("shadow_capacity", "i8"),
    ("filling", "i8"),  # 1 until the live cache was full for the first time
    ("loss", f"(2,{EXPERT_COUNT})f8"),  # by speed and expert
    ("uncontested", "(2,)f8"),  # what was paid for requests that no shadow could have answered, by speed
    ("loss_weight", "(2,)f8"),  # weight of a loss now: it grows, instead of all old losses decaying
    ("loss_time", "i8"),  # t of `loss_weight`
    ("slots_used", "i8"),
    ("free_slots", f"({SLOTS},)i8"),  # a stack of free slots from position slots_used on, minus their positions
    ("slot_id", f"({SLOTS},)i8"),
    ("slot_refs", f"({SLOTS},)i8"),
    ("slot_class", f"({SLOTS},)i8"),  # class of hazard.py at the last request,
    ("slot_time", f"({SLOTS},)i8"),  # t of that request,
    ("slot_exposed", f"({SLOTS},)i8"),  # age up to which its exposure was counted,
    ("slot_bucket", f"({SLOTS},)i8"),  # and the bucket of that age
    ("refresh_hand", "i8"),  # position in the heap of HAZARD that was computed last
    ("observed_time", "i8"),  # t of the last request in the sample
    ("shadow_used", f"({EXPERT_COUNT},)i8"),
    ("shadow_count", f"({EXPERT_COUNT},)i8"),  # slots held
    ("shadow_key", f"({EXPERT_COUNT},{SLOTS})f8"),  # a heap for each shadow (shadow_heaps.py): keys by position,
    ("shadow_slot", f"({EXPERT_COUNT},{SLOTS})i4"),  # slots by position,
    ("shadow_position", f"({SLOTS},{EXPERT_COUNT})i4"),  # position + 1 by slot; 0: not held
    ("slot_key", f"({SLOTS},{EXPERT_COUNT})f8"),  # the current key of a slot that is held
    ("shadow_size", f"({SLOTS},{EXPERT_COUNT})i8"),  # by slot, as of its admission
]
TOURNAMENT_ROW = [("shadow", "i2")]  # slot + 1; 0: none


def start_tournament(head: Records) -> None:
    """Initialise empty shadows without losses."""
    head["hash_limit"], head["shadow_capacity"], head["filling"] = ALL_HASHES, 1, 1
    head["loss_weight"] = 1.0


@inlined
def hash_of(i: int) -> int:
    """Return a 62-bit hash of an id: the finaliser of SplitMix64."""
    x = np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((x ^ (x >> np.uint64(31))) >> np.uint64(2))


@kernel
def observe(head: Records, rows: Records, i: int, now: int) -> None:
    """Run the last request for i, whose size and cost are known, through every shadow.

    A resident is observed when it arrives. If its answer cannot be used, because it has expired or the caller wants a
    new one, it is paid for and observed again. The second observation must not count as another request.
    """
    h = head[0]
    if h.hash_limit < ALL_HASHES and hash_of(i) >= h.hash_limit:
        return
    known = rows[i].shadow > 0
    if known and h.slot_time[rows[i].shadow - 1] >= rows[i].last:
        return
    s = slot_for(head, rows, i)
    if s < 0:
        return
    h.observed_time = now
    if h.filling:
        set_shadow_capacity(head)
    if known:
        age = now - h.slot_time[s]
        expose(head, h.slot_class[s], h.slot_exposed[s], age)
        count_return_at(head, h.slot_class[s], age)
    h.slot_class[s], h.slot_time[s], h.slot_exposed[s], h.slot_bucket[s] = class_of(rows, i), now, 0, 0
    refresh_shadow(head, rows, now)
    grow_loss_weight(head, now)
    size, cost = rows[i].entry_size, cost_of(head, rows, i)
    keys, slots, positions, loss = h.shadow_key, h.shadow_slot, h.shadow_position, h.loss
    used, count = h.shadow_used, h.shadow_count
    contested = h.slot_refs[s] > 0  # a miss of every shadow says nothing about the experts
    if not contested:
        h.uncontested[0] += h.loss_weight[0] * cost
        h.uncontested[1] += h.loss_weight[1] * cost
    h.slot_refs[s] += 1  # keeps the slot while evictions below free others
    cost_per_size = cost / size
    value = return_probability_of(head, rows, i) * cost_per_size
    for m in range(EXPERT_COUNT):
        if m < GREEDY_DUAL:
            key = horizon_key(rows, i, m, value)
        else:
            key = other_key(head, rows, i, m, now, cost_per_size)
        if positions[s, m] > 0:
            set_key(head, m, s, key)
            continue
        if contested:
            loss[0, m] += h.loss_weight[0] * cost
            loss[1, m] += h.loss_weight[1] * cost
        if size > h.shadow_capacity:
            continue
        if used[m] + size > h.shadow_capacity and not shadow_make_room(head, rows, m, size, key):
            continue
        count[m] += 1
        used[m] += size
        h.shadow_size[s, m] = size
        h.slot_key[s, m] = key
        h.slot_refs[s] += 1
        sift(keys, slots, positions, count[m], m, count[m] - 1, key, s)
    h.slot_refs[s] -= 1
    free_unused_slot(head, rows, s)


@inlined
def set_shadow_capacity(head: Records) -> None:
    """Set the capacity of the shadows: the sampling rate times that of the live cache, or a share of its peak."""
    h = head[0]
    rate = h.hash_limit / ALL_HASHES
    if h.filling:
        h.shadow_capacity = max(h.shadow_capacity, int(FILLING_SHARE * h.used * rate))
    else:
        h.shadow_capacity = max(1, int(h.capacity * rate))


@kernel
def end_filling(head: Records) -> None:
    """Give the shadows their full capacity, and discount what they lost with less."""
    h = head[0]
    h.filling = 0
    set_shadow_capacity(head)
    for a in range(2):
        for m in range(EXPERT_COUNT):
            h.loss[a, m] *= FILLING_WEIGHT
        h.uncontested[a] *= FILLING_WEIGHT


@inlined
def count_exposure(head: Records, s: int, now: int) -> None:
    """Count the exposure of slot s up to now."""
    h = head[0]
    age = now - h.slot_time[s]
    if age > h.slot_exposed[s]:
        expose(head, h.slot_class[s], h.slot_exposed[s], age)
        h.slot_exposed[s] = age


@kernel
def refresh_shadow(head: Records, rows: Records, now: int) -> None:
    """Compute the keys of the next REFRESHES slots in HAZARD's shadow again if their age bucket has changed."""
    h = head[0]
    n = h.shadow_count[HAZARD]
    for _ in range(min(n, REFRESHES)):
        h.refresh_hand = h.refresh_hand + 1 if h.refresh_hand + 1 < n else 0
        s = h.shadow_slot[HAZARD, h.refresh_hand]
        bucket = age_bucket(now - h.slot_time[s])
        if bucket != h.slot_bucket[s]:
            h.slot_bucket[s] = bucket
            count_exposure(head, s, now)
            set_key(head, HAZARD, s, key_of(head, rows, h.slot_id[s], HAZARD, now))


@kernel
def slot_for(head: Records, rows: Records, i: int) -> int:
    """Return the slot of i; −1 if the sample was halved and no longer contains i."""
    h = head[0]
    s = rows[i].shadow - 1
    if s < 0:
        while h.slots_used == SLOTS:
            halve_sample(head, rows)
            if hash_of(i) >= h.hash_limit:
                return -1
        s = h.slots_used + h.free_slots[h.slots_used]
        h.slots_used += 1
        h.slot_id[s] = i
        rows[i].shadow = s + 1
    return s  # type: ignore[no-any-return]


@inlined
def grow_loss_weight(head: Records, now: int) -> None:
    """Raise the weight of losses to that of time `now`, and rescale all losses before it overflows."""
    h = head[0]
    for a in range(2):
        window = max(WINDOWS[a], MIN_SAMPLED[a] * (ALL_HASHES / h.hash_limit))
        h.loss_weight[a] *= 1.0 + (now - h.loss_time) / window
        if h.loss_weight[a] > RESCALE_ABOVE:
            for m in range(EXPERT_COUNT):
                h.loss[a, m] /= h.loss_weight[a]
            h.uncontested[a] /= h.loss_weight[a]
            h.loss_weight[a] = 1.0
    h.loss_time = now


@kernel
def shadow_remove(head: Records, m: int, s: int) -> None:
    """Remove slot s from shadow m."""
    h = head[0]
    keys, slots, positions = h.shadow_key, h.shadow_slot, h.shadow_position
    k = positions[s, m] - 1
    positions[s, m] = 0
    n = h.shadow_count[m] - 1
    h.shadow_count[m] = n
    h.shadow_used[m] -= h.shadow_size[s, m]
    h.slot_refs[s] -= 1
    if k < n:
        sift(keys, slots, positions, n, m, k, keys[m, n], slots[m, n])


@inlined
def free_unused_slot(head: Records, rows: Records, s: int) -> None:
    """Push slot s on the free stack if no shadow holds it."""
    h = head[0]
    if h.slot_refs[s] == 0:
        count_exposure(head, s, h.observed_time)
        rows[h.slot_id[s]].shadow = 0
        h.slots_used -= 1
        h.free_slots[h.slots_used] = s - h.slots_used


@kernel
def shadow_make_room(head: Records, rows: Records, m: int, size: int, key: float) -> bool:
    """Evict from shadow m until `size` more units fit. Return False and evict nothing if it does not admit `key`.

    Victims are popped from the heap and stored behind it, as in a heap sort. There they are removed or pushed back.
    """
    h = head[0]
    keys, slots, positions = h.shadow_key, h.shadow_slot, h.shadow_position
    used, n = h.shadow_used[m], h.shadow_count[m]
    left = n
    while used + size > h.shadow_capacity:
        settle_top(head, m, left)
        least, s = keys[m, 0], slots[m, 0]
        if least > key and not admits_always(m):
            for k in range(left, n):
                sift(keys, slots, positions, k + 1, m, k, keys[m, k], slots[m, k])
            raise_clock(head, m, key)  # the newcomer itself had the least key
            return False
        used -= h.shadow_size[s, m]
        left -= 1
        sift(keys, slots, positions, left, m, 0, keys[m, left], slots[m, left])
        keys[m, left], slots[m, left] = least, s
    for k in range(left, n):
        s = slots[m, k]
        positions[s, m] = 0
        h.slot_refs[s] -= 1
        free_unused_slot(head, rows, s)
        raise_clock(head, m, keys[m, k])
    h.shadow_used[m], h.shadow_count[m] = used, left
    return True


@inlined
def raise_clock(head: Records, m: int, key: float) -> None:
    """Raise the L of m, if it is one of the greedy-dual experts, to the key of a victim."""
    clock = head[0].clock
    if m == GREEDY_DUAL:
        clock[0] = max(clock[0], key)
    elif m == GREEDY_DUAL_SIZE:
        clock[1] = max(clock[1], key)


@kernel
def halve_sample(head: Records, rows: Records) -> None:
    """Halve the hash limit and the capacity of the shadows."""
    h = head[0]
    h.hash_limit >>= 1
    h.shadow_capacity = max(1, h.shadow_capacity >> 1)
    set_shadow_capacity(head)
    for s in range(SLOTS):
        if h.slot_refs[s] > 0 and hash_of(h.slot_id[s]) >= h.hash_limit:
            drop_from_shadows(head, rows, h.slot_id[s])
    for m in range(EXPERT_COUNT):
        shadow_make_room(head, rows, m, 0, math.inf)


@kernel
def drop_from_shadows(head: Records, rows: Records, i: int) -> None:
    """Remove i from every shadow."""
    s = rows[i].shadow - 1
    if s < 0:
        return
    for m in range(EXPERT_COUNT):
        if head[0].shadow_position[s, m] > 0:
            shadow_remove(head, m, s)
    free_unused_slot(head, rows, s)


@inlined
def counted_loss(head: Records, window: int, m: int) -> float:
    """Return the loss of expert m as it counts when the leader is chosen."""
    h = head[0]
    if m != HAZARD:
        return h.loss[window, m]  # type: ignore[no-any-return]
    advantage = EARLY_ADVANTAGE * math.exp(-h.loss_time / EARLY_REQUESTS) * h.uncontested[window]
    return h.loss[window, m] * PREFERENCE - advantage  # type: ignore[no-any-return]


@kernel
def leader_after(head: Records, leader: int) -> int:
    """Return the expert to follow now; `leader` unless another one is clearly or lastingly better."""
    for window in range(2):
        best, least = leader, counted_loss(head, window, leader)
        for m in range(EXPERT_COUNT):
            loss = counted_loss(head, window, m)
            if loss < least:
                best, least = m, loss
        if window == 0 and least < CLEAR_LEAD * counted_loss(head, 0, leader):
            return best
        lasting = window == 1 and least < SLIGHT_LEAD * counted_loss(head, 1, leader)
        if lasting and counted_loss(head, 0, best) <= counted_loss(head, 0, leader):
            return best
    return leader


def check_tournament(head: Records, rows: Records) -> None:
    """Recompute what the shadows hold; raise CorruptState if it differs."""
    h = {name: head[name][0] for name in head.dtype.names}
    held = h["shadow_position"] > 0
    used = set(range(SLOTS)) - set((h["free_slots"] + np.arange(SLOTS))[h["slots_used"] :].tolist())
    if (held.sum(1) != h["slot_refs"]).any() or set(np.flatnonzero(held.any(1)).tolist()) != used:
        raise CorruptState("slots of the shadows: references and holders differ")
    if (held.sum(0) != h["shadow_count"]).any() or ((held * h["shadow_size"]).sum(0) != h["shadow_used"]).any():
        raise CorruptState("totals of a shadow differ from the slots it holds")
    if (h["shadow_used"] > h["shadow_capacity"]).any():
        raise CorruptState("a shadow exceeds its capacity")
    if sorted(np.flatnonzero(rows["shadow"]).tolist()) != sorted(h["slot_id"][list(used)].tolist()):
        raise CorruptState("ids in the sample and their slots differ")
    for m in range(EXPERT_COUNT):
        n = int(h["shadow_count"][m])
        held_slots = h["shadow_slot"][m, :n]
        if (h["shadow_position"][held_slots, m] != np.arange(1, n + 1)).any():
            raise CorruptState(f"a slot has the wrong position in the heap of expert {m}")
        if (h["shadow_key"][m, :n] > h["slot_key"][held_slots, m]).any():
            raise CorruptState(f"a key in the heap of expert {m} is above the current one")
        if (h["shadow_key"][m, 1:n] < h["shadow_key"][m, (np.arange(1, n) - 1) >> 1]).any():
            raise CorruptState(f"the heap of expert {m} is out of order")
