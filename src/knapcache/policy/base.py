"""What a policy is, and the class that every policy extends.

A request has two moments. It *arrives*; if its answer is not at hand, it is paid for and *settled* later, when
its cost and size are known. Many requests may be under way at once, so answers settle late, out of order,
twice, or never.

    arrive(id) -> bool                    count the request; is its answer resident?
    settle(id, size, cost) -> Decision    the answer has been paid for: keep it? which others go?
    forget(id) -> bool                    the answer is gone for reasons of its own (expiry, purge, a failed write)
    check()                               derive every total anew and compare
    recycle() -> (int, bool)              forget the least useful id, to be given to another key (some policies)

A policy decides and remembers; it holds no answers. It is pure: no clock, no I/O, no lock, no randomness but a
seed given to it. Its whole state is one array of records (`rows`, a row an id) and one header record (`head`),
and its functions are kernels over the two, so that the simulator calls them from compiled loops at millions of
requests a second, while the live cache calls the very same code one request at a time.

To write one: a file with three kernels, and a class that names them.

    arrive(head, rows, i) -> bool         count the arrival of id i; return rows[i].resident
    admit(head, rows, i, room, cost)      a paid answer, not resident, not larger than the cache: take it in or not
    release(head, rows, i)                id i was resident: take it out of every structure

`enter`, `leave` and `evict` below keep the totals. What belongs to no id has two places: a field of `head` may be a
table (("hits", "(16,2048)f8")), and `spare` rows stand behind those of the ids, for the ends of linked lists.
Ids are small integers below the number of rows; whoever maps keys to ids owns their reuse.

    Invariant: head.used = Σ rows[i].entry_size over resident i ≤ head.capacity, after every call.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState, InvalidInput
from knapcache.kernel import Records, inlined, records
from knapcache.model import Decision

HEAD = [
    ("capacity", "i8"),
    ("used", "i8"),  # Invariant: Σ room of residents
    ("evicted", "i8"),  # how many ids the last settle evicted
    ("oracle_calls", "i8"),
]
ROW = [
    ("entry_size", "i8"),  # size of the last answer seen ("size" is taken: every NumPy scalar has one)
    ("victim", "i8"),  # rows[k].victim is the k-th id evicted by the last settle: a list that lives in a column
    ("resident", "?"),
]


@inlined
def insert(head: Records, rows: Records, i: int, size: int) -> None:
    """The answer of i moves in. The caller has made sure that it fits."""
    rows[i].resident = True
    rows[i].entry_size = size
    head[0].used += size


@inlined
def remove(head: Records, rows: Records, i: int) -> None:
    """The answer of i moves out."""
    rows[i].resident = False
    head[0].used -= rows[i].entry_size


@inlined
def evict(head: Records, rows: Records, i: int) -> None:
    """The answer of i moves out to make room for another, and the caller of settle is told."""
    remove(head, rows, i)
    rows[head[0].evicted].victim = i
    head[0].evicted += 1


def make_settle(admit: Callable[..., Any], release: Callable[..., Any]) -> Callable[..., Any]:
    """The settle kernel of a policy: what is the same for all of them, around the policy's own `admit`."""

    @inlined
    def settle(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
        head[0].evicted = 0
        # Two flights of one request may come home one after the other: the younger answer replaces the older one.
        replaced = rows[i].resident
        if replaced:
            release(head, rows, i)
        # No set that fits can hold an answer larger than the whole cache, so policies never hear of it.
        if size <= head[0].capacity:
            admit(head, rows, i, size, cost)
        if replaced and not rows[i].resident:
            rows[head[0].evicted].victim = i
            head[0].evicted += 1

    return settle


class TraceLike(Protocol):
    """A whole trace, as far as a policy may be built for it (the simulator's `Trace` is one)."""

    @property
    def keys(self) -> npt.NDArray[np.int64]:
        """0 … ids − 1, in the order of the requests."""

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Size of each answer."""

    @property
    def costs(self) -> npt.NDArray[np.float64]:
        """What each request costs if it misses."""

    @property
    def ids(self) -> int:
        """How many different keys there can be."""


class Policy:
    """Array state and compiled functions. Subclasses name their kernels and add their fields."""

    head_fields: ClassVar[list[tuple[str, str]]] = HEAD
    row_fields: ClassVar[list[tuple[str, str]]] = ROW
    arrive_kernel: ClassVar[Callable[..., Any]]
    settle_kernel: ClassVar[Callable[..., Any]]
    release_kernel: ClassVar[Callable[..., Any]]
    recycle_kernel: ClassVar[Callable[..., Any] | None] = None
    """recycle(head, rows) -> id, where the policy can do with fewer ids than there are keys."""
    spare: int = 1
    """Rows behind those of the ids, for the ends of linked lists: a row a list, and never fewer than one."""

    def __init__(self, capacity: int, ids: int) -> None:
        """`capacity` in units of size; `ids` are 0 … ids − 1."""
        capacity, ids = _whole("capacity", capacity), _whole("ids", ids)
        if not 1 <= capacity <= 2**62:
            raise InvalidInput(f"capacity must be at least 1 and at most 2^62, not {capacity}")
        if not 1 <= ids <= 2**31:
            raise InvalidInput(f"ids must be at least 1 and at most 2^31, not {ids}")
        self.head = records(self.head_fields, 1)
        self.rows = records(self.row_fields, ids + self.spare)
        self.head["capacity"] = capacity

    @classmethod
    def for_trace(cls, capacity: int, trace: TraceLike, **options: Any) -> Self:
        """A policy to be run over `trace`. Only one that sees the future looks at more than the number of ids."""
        return cls(capacity, trace.ids, **options)

    def arrive(self, i: int) -> bool:
        """Count a request for id `i`; True when its answer is resident."""
        return bool(type(self).arrive_kernel(self.head, self.rows, self._id(i)))

    def settle(self, i: int, size: int, cost: float) -> Decision:
        """The answer of id `i` was paid for: `size` units large, `cost` spent."""
        size = _whole("size", size)
        if size < 1:
            raise InvalidInput(f"size must be at least 1, not {size}")
        cost = float(cost)
        if not (math.isfinite(cost) and cost >= 0.0):
            raise InvalidInput(f"cost must be a finite number and not negative, not {cost}")
        i = self._id(i)
        type(self).settle_kernel(self.head, self.rows, i, size, cost)
        evicted = self.rows["victim"][: int(self.head["evicted"][0])]
        return Decision(bool(self.rows["resident"][i]), tuple(evicted.tolist()))

    def forget(self, i: int) -> bool:
        """The answer of id `i` is gone; what was learned of it stays. False when it was not resident."""
        i = self._id(i)
        if not self.rows["resident"][i]:
            return False
        type(self).release_kernel(self.head, self.rows, i)
        return True

    def recycle(self) -> tuple[int, bool]:
        """Give up an id, so that it can mean another key: its number, and whether its answer has to go for it.

        It must not be one of a request that is under way: who maps keys to ids sees to that, and asks again.
        """
        kernel = type(self).recycle_kernel
        if kernel is None:
            raise InvalidInput(f"{type(self).__name__} remembers every id: it needs as many as there are keys")
        return int(kernel(self.head, self.rows)), bool(self.head["evicted"][0])

    def check(self) -> None:
        """Derive the totals anew; raise CorruptState when they differ. Subclasses add their own structures."""
        self._same("used", self.used, int(self.rows["entry_size"][self.rows["resident"]].sum()))
        if self.used > self.capacity:
            raise CorruptState(f"used {self.used} is above capacity {self.capacity}")

    @property
    def capacity(self) -> int:
        """Units of room in all."""
        return int(self.head["capacity"][0])

    @property
    def ids(self) -> int:
        """How many ids there are."""
        return len(self.rows) - self.spare

    @property
    def used(self) -> int:
        """Units of room taken."""
        return int(self.head["used"][0])

    @property
    def oracle_calls(self) -> int:
        """How often the Oracle was asked (0 for policies without one)."""
        return int(self.head["oracle_calls"][0])

    @property
    def residents(self) -> frozenset[int]:
        """Ids whose answers are resident."""
        return frozenset(np.flatnonzero(self.rows["resident"]).tolist())

    def _id(self, i: int) -> int:
        i = _whole("id", i)
        if not 0 <= i < self.ids:
            raise InvalidInput(f"id must be in 0 … {self.ids - 1}, not {i}")
        return i

    @staticmethod
    def _same(what: str, kept: object, derived: object) -> None:
        if kept != derived:
            raise CorruptState(f"{what}: the books say {kept}, counting anew gives {derived}")


def _whole(what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInput(f"{what} must be a whole number, not {value!r}") from None
