"""A packed, unordered set of ids that supports random draws, stored in two columns of `rows`.

    rows[k].pool_id     id at position k
    rows[i].pool_slot   position of id i            Invariant: rows[rows[i].pool_slot].pool_id = i
    head.pool_size      number of ids
    head.random_state   state of the generator: the arrays are the whole state, and a seed determines every draw

The generator is Lehmer's with multiplier 48271 (minstd_rand in C++). Its products stay below 2^47, so plain Python
and machine code agree to the bit. Drawing eviction candidates needs no better generator.
"""

from __future__ import annotations

from knapcache.errors import CorruptState, InvalidInput
from knapcache.kernel import Records, inlined

POOL_HEAD = [("pool_size", "i8"), ("random_state", "i8")]
POOL_ROW = [("pool_id", "i8"), ("pool_slot", "i8")]
MODULUS = 2**31 - 1


@inlined
def pool_add(head: Records, rows: Records, i: int) -> None:
    """Add id i."""
    k = head[0].pool_size
    rows[k].pool_id = i
    rows[i].pool_slot = k
    head[0].pool_size = k + 1


@inlined
def pool_remove(head: Records, rows: Records, i: int) -> None:
    """Remove id i. The last id takes its position."""
    head[0].pool_size -= 1
    last = rows[head[0].pool_size].pool_id
    k = rows[i].pool_slot
    rows[k].pool_id = last
    rows[last].pool_slot = k


@inlined
def pool_draw(head: Records, rows: Records) -> int:
    """Return a random id. The pool must not be empty."""
    head[0].random_state = head[0].random_state * 48271 % MODULUS
    return int(rows[head[0].random_state % head[0].pool_size].pool_id)


def seed_random(head: Records, seed: int) -> None:
    """Initialise the generator. Neighbouring seeds give states far apart."""
    if not isinstance(seed, int) or seed < 0:
        raise InvalidInput(f"seed must be a whole number and not negative, not {seed!r}")
    head["random_state"] = 1 + (seed * 1_000_003 + 12_345) % (MODULUS - 1)


def check_pool(head: Records, rows: Records) -> None:
    """Raise CorruptState unless the pool holds exactly the residents."""
    ids = rows["pool_id"][: int(head["pool_size"][0])].tolist()
    if sorted(ids) != rows["resident"].nonzero()[0].tolist():
        raise CorruptState("the pool and the residents differ")
    for k, i in enumerate(ids):
        if rows["pool_slot"][i] != k:
            raise CorruptState(f"id {i} has the wrong pool position")
