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
from knapcache.policy.adaptive.experts import GREEDY_DUAL, MEMBERS, TEMPER, clock_of, key_of

SLOTS = 2048
EVERYONE = 1 << 62
WINDOWS = (10_000.0, 40_000.0)
"""Requests after which a loss counts 1/e, in each of the two accounts."""
CLEARLY, SLIGHTLY = 0.99, 0.999
FADED = 1e100

SHADOWS_HEAD = [
    ("limit", "i8"),  # ids whose hash is below it are in the sample
    ("scaled", "i8"),  # capacity of each shadow
    ("loss", f"(2,{MEMBERS})f8"),
    ("stake", "(2,)f8"),  # what a loss counts now: it grows, instead of old losses fading
    ("staked", "i8"),  # t of `stake`
    ("slots_taken", "i8"),
    ("slot_free", f"({SLOTS},)i8"),  # a stack; from slots_taken on the free ones
    ("slot_id", f"({SLOTS},)i8"),
    ("slot_room", f"({SLOTS},)i8"),
    ("slot_holders", f"({SLOTS},)i8"),
    ("filled", f"({MEMBERS},)i8"),
    ("held", f"({MEMBERS},)i8"),
    ("keys", f"({MEMBERS},{SLOTS})f8"),  # a binary heap a member: keys by position,
    ("order", f"({MEMBERS},{SLOTS})i4"),  # slots by position,
    ("place", f"({MEMBERS},{SLOTS})i4"),  # position + 1 by slot; 0: not held
]
SHADOWS_ROW = [("shadow", "i4")]  # slot + 1; 0: none


def open_tournament(head: Records, capacity: int) -> None:
    """Every shadow empty, nobody has lost anything."""
    head["limit"], head["scaled"], head["stake"] = EVERYONE, capacity, 1.0
    head["slot_free"][0] = np.arange(SLOTS)


@inlined
def hash_of(i: int) -> int:
    """62 bits in which neighbours have nothing in common: the finaliser of SplitMix64, in 64-bit words."""
    x = np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((x ^ (x >> np.uint64(31))) >> np.uint64(2))


@kernel
def watch(head: Records, rows: Records, i: int, now: int) -> None:
    """All members see the request for i, whose size and cost are known by now."""
    h = head[0]
    if h.limit < EVERYONE and hash_of(i) >= h.limit:
        return
    s = slot_for(head, rows, i)
    if s < 0:
        return
    raise_stakes(head, now)
    room, cost = rows[i].entry_size, cost_of(head, rows, i)
    keys, order, place, filled, held, loss = h.keys, h.order, h.place, h.filled, h.held, h.loss
    h.slot_holders[s] += 1  # ours while we look, so that the slot stays
    for m in range(MEMBERS):
        key = key_of(head, rows, i, m)
        if place[m, s] > 0:
            settle_in(keys, order, place, held[m], m, place[m, s] - 1, key, s)
            continue
        loss[0, m] += h.stake[0] * cost
        loss[1, m] += h.stake[1] * cost
        if room > h.scaled:
            continue
        if filled[m] + room > h.scaled:
            if not lets_in(head, m, room, key, clock_of(now, m)):
                continue
            make_room_in(head, rows, m, room)
        held[m] += 1
        filled[m] += room
        h.slot_holders[s] += 1
        settle_in(keys, order, place, held[m], m, held[m] - 1, key, s)
    h.slot_holders[s] -= 1
    free_if_unheld(head, rows, s)


@kernel
def slot_for(head: Records, rows: Records, i: int) -> int:
    """The slot of i, with its size of today; −1 when the sample had to be halved and i is no longer in it."""
    h = head[0]
    s = rows[i].shadow - 1
    if s < 0:
        while h.slots_taken == SLOTS:
            halve_sample(head, rows)
            if hash_of(i) >= h.limit:
                return -1
        s = h.slot_free[h.slots_taken]
        h.slots_taken += 1
        h.slot_id[s] = i
        rows[i].shadow = s + 1
        h.slot_room[s] = rows[i].entry_size
    elif h.slot_room[s] != rows[i].entry_size:
        resize(head, rows, s, rows[i].entry_size)
    return s  # type: ignore[no-any-return]


@kernel
def resize(head: Records, rows: Records, s: int, room: int) -> None:
    """The answer in slot s was replaced by one of another size: in every shadow that holds it."""
    h = head[0]
    more = room - h.slot_room[s]
    h.slot_room[s] = room
    h.slot_holders[s] += 1
    for m in range(MEMBERS):
        if h.place[m, s] > 0:
            h.filled[m] += more
            make_room_in(head, rows, m, 0)
    h.slot_holders[s] -= 1


@inlined
def raise_stakes(head: Records, now: int) -> None:
    """What happens from now on counts more than what has been."""
    h = head[0]
    for a in range(2):
        h.stake[a] *= 1.0 + (now - h.staked) / WINDOWS[a]
        if h.stake[a] > FADED:
            for m in range(MEMBERS):
                h.loss[a, m] /= h.stake[a]
            h.stake[a] = 1.0
    h.staked = now


@kernel
def settle_in(keys: Floats, order: Ints, place: Ints, n: int, m: int, k: int, key: float, s: int) -> None:
    """Position k in m's heap of n is open for slot s: move it up or down to where `key` belongs."""
    while k > 0:
        above = (k - 1) >> 1
        if not key < keys[m, above]:
            break
        keys[m, k] = keys[m, above]
        order[m, k] = order[m, above]
        place[m, order[m, k]] = k + 1
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
        order[m, k] = order[m, c]
        place[m, order[m, k]] = k + 1
        k = c
    keys[m, k] = key
    order[m, k] = s
    place[m, s] = k + 1


@kernel
def drop(head: Records, m: int, s: int) -> None:
    """Member m lets slot s go."""
    h = head[0]
    keys, order, place = h.keys, h.order, h.place
    k = place[m, s] - 1
    place[m, s] = 0
    n = h.held[m] - 1
    h.held[m] = n
    h.filled[m] -= h.slot_room[s]
    h.slot_holders[s] -= 1
    if k < n:
        settle_in(keys, order, place, n, m, k, keys[m, n], order[m, n])


@inlined
def free_if_unheld(head: Records, rows: Records, s: int) -> None:
    """A slot that nobody holds any more goes back on the stack."""
    h = head[0]
    if h.slot_holders[s] == 0:
        rows[h.slot_id[s]].shadow = 0
        h.slots_taken -= 1
        h.slot_free[h.slots_taken] = s


@kernel
def make_room_in(head: Records, rows: Records, m: int, room: int) -> None:
    """Member m lets the least go until `room` more fits."""
    h = head[0]
    while h.filled[m] + room > h.scaled:
        if m == GREEDY_DUAL:
            h.clock = max(h.clock, h.keys[m, 0])
        s = h.order[m, 0]
        drop(head, m, s)
        free_if_unheld(head, rows, s)


@kernel
def lets_in(head: Records, m: int, room: int, key: float, now: float) -> bool:
    """Would member m, which is full, make way for a newcomer of `room` and `key`?

    The victims leave the heap one by one to be looked at, are laid down behind it, as in a heap sort, and come back.
    """
    h = head[0]
    if TEMPER[m] == ALWAYS:
        return True
    keys, order, place = h.keys, h.order, h.place
    gain = value_now(key, room, now) if TEMPER[m] == BEATS_SUM else 0.0
    space = h.scaled - h.filled[m]
    n = h.held[m]
    left = n
    while True:
        least, s = keys[m, 0], order[m, 0]
        if TEMPER[m] == BEATS_SUM:
            gain -= value_now(least, h.slot_room[s], now)
        elif least > key:
            gain = -1.0
        space += h.slot_room[s]
        if gain < 0.0 or space >= room:
            break
        left -= 1
        settle_in(keys, order, place, left, m, 0, keys[m, left], order[m, left])
        keys[m, left] = least
        order[m, left] = s
    while left < n:
        settle_in(keys, order, place, left + 1, m, left, keys[m, left], order[m, left])
        left += 1
    if gain < 0.0 and m == GREEDY_DUAL:
        h.clock = max(h.clock, key)  # the newcomer itself was the least
    return bool(gain >= 0.0)


@kernel
def halve_sample(head: Records, rows: Records) -> None:
    """Half the ids, in half the room."""
    h = head[0]
    h.limit >>= 1
    h.scaled = max(1, int(h.capacity * (h.limit / EVERYONE)))
    for s in range(SLOTS):
        if h.slot_holders[s] > 0 and hash_of(h.slot_id[s]) >= h.limit:
            unwatch(head, rows, h.slot_id[s])
    for m in range(MEMBERS):
        make_room_in(head, rows, m, 0)


@kernel
def unwatch(head: Records, rows: Records, i: int) -> None:
    """No shadow holds i any more."""
    s = rows[i].shadow - 1
    if s < 0:
        return
    for m in range(MEMBERS):
        if head[0].place[m, s] > 0:
            drop(head, m, s)
    free_if_unheld(head, rows, s)


@kernel
def leading(head: Records, leader: int) -> int:
    """Who leads from now on, after `leader`."""
    loss = head[0].loss
    for account in range(2):
        best = leader
        for m in range(MEMBERS):
            if loss[account, m] < loss[account, best]:
                best = m
        if account == 0 and loss[0, best] < CLEARLY * loss[0, leader]:
            return best
        if account == 1 and loss[1, best] < SLIGHTLY * loss[1, leader] and loss[0, best] <= loss[0, leader]:
            return best
    return leader


def check_shadows(head: Records, rows: Records) -> None:
    """Count anew what the shadows hold."""
    h = {name: head[name][0] for name in head.dtype.names}
    held = h["place"] > 0
    taken = set(range(SLOTS)) - set(h["slot_free"][h["slots_taken"] :].tolist())
    if (held.sum(0) != h["slot_holders"]).any() or set(np.flatnonzero(held.any(0)).tolist()) != taken:
        raise CorruptState("slots of the shadows and who holds them differ")
    if (held.sum(1) != h["held"]).any() or ((held * h["slot_room"]).sum(1) != h["filled"]).any():
        raise CorruptState("what a shadow holds and its books differ")
    if (h["filled"] > h["scaled"]).any():
        raise CorruptState("a shadow holds more than fits")
    if sorted(np.flatnonzero(rows["shadow"]).tolist()) != sorted(h["slot_id"][list(taken)].tolist()):
        raise CorruptState("ids in the sample and their slots differ")
    for m in range(MEMBERS):
        n = int(h["held"][m])
        if (h["place"][m, h["order"][m, :n]] != np.arange(1, n + 1)).any():
            raise CorruptState(f"a slot does not know its place with member {m}")
        if (h["keys"][m, 1:n] < h["keys"][m, (np.arange(1, n) - 1) >> 1]).any():
            raise CorruptState(f"the heap of member {m} is out of order")
