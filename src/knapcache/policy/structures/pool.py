"""The residents in no order, packed, so that one can be drawn at random. Lives in two columns of `rows`.

    rows[k].pool    the id at position k
    rows[i].place   the position of id i        Invariant: rows[rows[i].place].pool = i
    head.pooled     how many there are
    head.random     the state of the generator, so that the arrays are the whole state and a seed says all

The generator is Lehmer's with multiplier 48271 (C++ calls it minstd_rand): its products stay below 2^47, so plain
Python and machine code agree to the bit, and a sample of victims needs no better one.
"""

from __future__ import annotations

from knapcache.errors import CorruptState, InvalidInput
from knapcache.kernel import Records, inlined

POOL_HEAD = [("pooled", "i8"), ("random", "i8")]
POOL_ROW = [("pool", "i8"), ("place", "i8")]
MODULUS = 2**31 - 1


@inlined
def pool_add(head: Records, rows: Records, i: int) -> None:
    """Put id i in."""
    k = head[0].pooled
    rows[k].pool = i
    rows[i].place = k
    head[0].pooled = k + 1


@inlined
def pool_remove(head: Records, rows: Records, i: int) -> None:
    """Take id i out; the last one moves into its place."""
    head[0].pooled -= 1
    last = rows[head[0].pooled].pool
    k = rows[i].place
    rows[k].pool = last
    rows[last].place = k


@inlined
def draw(head: Records, rows: Records) -> int:
    """Any one of them; there is at least one."""
    head[0].random = head[0].random * 48271 % MODULUS
    return int(rows[head[0].random % head[0].pooled].pool)


def sow(head: Records, seed: int) -> None:
    """Start the generator. Neighbouring seeds start far apart."""
    if not isinstance(seed, int) or seed < 0:
        raise InvalidInput(f"seed must be a whole number and not negative, not {seed!r}")
    head["random"] = 1 + (seed * 1_000_003 + 12_345) % (MODULUS - 1)


def check_pool(head: Records, rows: Records) -> None:
    """The pool holds exactly the residents, each in its place."""
    ids = rows["pool"][: int(head["pooled"][0])].tolist()
    if sorted(ids) != rows["resident"].nonzero()[0].tolist():
        raise CorruptState("the pool and the residents differ")
    for k, i in enumerate(ids):
        if rows["place"][i] != k:
            raise CorruptState(f"id {i} does not know its place in the pool")
