"""The policy contract, and the base class of every policy.

A request has two moments. It *arrives*; if it misses, its answer is paid for and *settled* later, when cost and
size are known. Many requests are in flight at once, so answers settle late, out of order, twice, or never.

    arrive(id) -> bool                    count the request; return whether its answer is resident
    settle(id, size, cost) -> Decision    an answer was paid for: decide whether to admit it and what to evict
    forget(id) -> bool                    the answer was lost (expiry, purge, a failed write)
    reprice(id, cost)                     a miss of this resident costs another amount from now on (some policies)
    check()                               recompute every total and compare
    recycle() -> (int, bool)              free the id of least value for another key (some policies)

A policy decides; it holds no answers. It is pure: no clock, no I/O, no lock, no randomness except from a seed.
Its whole state is one record array (`rows`, one row per id) and one header record (`head`). Its functions are
kernels over the two. The simulator calls them from compiled loops at millions of requests a second; the live
cache calls the same code one request at a time.

A new policy is one file: three kernels, and a class that names them.

    arrive(head, rows, i) -> bool         count the arrival of id i; return rows[i].resident
    admit(head, rows, i, size, cost)      decide on a paid answer that is not resident and at most capacity large
    release(head, rows, i)                remove the resident id i from every structure

`insert`, `remove` and `evict` below keep the totals. State that belongs to no id has two places: a field of `head`
may be an array (("hits", "(16,2048)f8")), and `spare` rows follow those of the ids, for the sentinels of linked
lists. A column named `requests` is shown to users as the number of requests for an answer. Ids are small integers
below the number of rows; the caller maps keys to ids and decides when an id is reused.

    Invariant: head.used = Σ rows[i].entry_size over resident i ≤ head.capacity, after every call.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState, InvalidInput
from knapcache.kernel import Records, inlined, records
from knapcache.model import Decision
from knapcache.uncompiled import uncompiled

HEAD = [
    ("capacity", "i8"),
    ("used", "i8"),  # Invariant: Σ entry_size of residents
    ("evicted", "i8"),  # how many ids the last settle evicted
    ("oracle_calls", "i8"),
]
ROW = [
    ("entry_size", "i8"),  # size of the last answer seen ("size" is taken: every NumPy scalar has one)
    ("victim", "u4"),  # rows[k].victim is the k-th id evicted by the last settle: a list stored in a column
    ("resident", "?"),
]


@inlined
def insert(head: Records, rows: Records, i: int, size: int) -> None:
    """Make i resident. The caller ensures that it fits."""
    rows[i].resident = True
    rows[i].entry_size = size
    head[0].used += size


@inlined
def remove(head: Records, rows: Records, i: int) -> None:
    """End the residence of i without reporting it as evicted."""
    rows[i].resident = False
    head[0].used -= rows[i].entry_size


@inlined
def evict(head: Records, rows: Records, i: int) -> None:
    """Remove i to free space, and report it in the decision of this settle."""
    remove(head, rows, i)
    rows[head[0].evicted].victim = i
    head[0].evicted += 1


def make_settle(admit: Callable[..., Any], release: Callable[..., Any]) -> Callable[..., Any]:
    """Return a policy's settle kernel: the steps common to all policies around its own `admit`."""

    @inlined
    def settle(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
        head[0].evicted = 0
        # Two fetches of one request may finish one after the other: the later answer replaces the earlier one.
        replaced = rows[i].resident
        if replaced:
            release(head, rows, i)
        # An answer larger than the cache can never be admitted, so `admit` need not handle it.
        if size <= head[0].capacity:
            admit(head, rows, i, size, cost)
        if replaced and not rows[i].resident:
            rows[head[0].evicted].victim = i
            head[0].evicted += 1

    return settle


class TraceLike(Protocol):
    """The columns of a whole trace that a policy may be built from (the simulator's `Trace` has them)."""

    @property
    def keys(self) -> npt.NDArray[np.int64]:
        """Id of each request, 0 … ids − 1, in order of arrival."""

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Size of each request's answer."""

    @property
    def costs(self) -> npt.NDArray[np.float64]:
        """Cost of each request if it misses."""

    @property
    def ids(self) -> int:
        """Number of ids; keys are below it."""


def number_of_ids(trace: TraceLike, remember: int | None) -> int:
    """Return the ids for a trace: one for every key, or `remember` ids, which are recycled."""
    if remember is not None and remember < 1:
        raise InvalidInput(f"remember must be at least 1, not {remember}")
    return min(trace.ids, remember or trace.ids)


class CompactState(NamedTuple):
    """A policy's state reduced to some of its ids."""

    head: Records
    rows: Records
    ids: npt.NDArray[np.int64]
    """Row k was that of id ids[k]."""


class Policy:
    """Array state and compiled functions. Subclasses name their kernels and add their fields."""

    head_fields: ClassVar[list[tuple[str, str]]] = HEAD
    row_fields: ClassVar[list[tuple[str, str]]] = ROW
    arrive_kernel: ClassVar[Callable[..., Any]]
    settle_kernel: ClassVar[Callable[..., Any]]
    release_kernel: ClassVar[Callable[..., Any]]
    recycle_kernel: ClassVar[Callable[..., Any] | None] = None
    """recycle(head, rows) -> id, if the policy can work with fewer ids than there are keys."""
    reprice_kernel: ClassVar[Callable[..., Any] | None] = None
    """reprice(head, rows, i, cost), if the policy ranks residents by what they have cost."""
    spare: int = 1
    """Rows after those of the ids, for the sentinels of linked lists: one per list, at least one."""
    compiled: bool = True
    """Whether `arrive`, `settle`, `forget` and `recycle` call compiled kernels, or their Python forms. May be changed
    between two calls: both work on the same arrays."""

    def __init__(self, capacity: int, ids: int) -> None:
        """`capacity` is in units of size, 1 … 2^62; `ids` is the number of ids, 1 … 2^31."""
        capacity, ids = _integer("capacity", capacity), _integer("ids", ids)
        if not 1 <= capacity <= 2**62:
            raise InvalidInput(f"capacity must be at least 1 and at most 2^62, not {capacity}")
        if not 1 <= ids <= 2**31:
            raise InvalidInput(f"ids must be at least 1 and at most 2^31, not {ids}")
        self.head = records(self.head_fields, 1)
        self.rows = records(self.row_fields, ids + self.spare)
        self.head["capacity"] = capacity

    @classmethod
    def for_trace(cls, capacity: int, trace: TraceLike, **options: Any) -> Self:
        """Build a policy to be run over `trace`. Only offline policies read more of it than `ids`."""
        return cls(capacity, trace.ids, **options)

    def arrive(self, i: int) -> bool:
        """Count a request for id `i`. Return whether its answer is resident."""
        return bool(self.form_of(type(self).arrive_kernel)(self.head, self.rows, self._id(i)))

    def settle(self, i: int, size: int, cost: float) -> Decision:
        """Decide on the answer of id `i`, which has `size` units and cost `cost`."""
        size = _integer("size", size)
        if size < 1:
            raise InvalidInput(f"size must be at least 1, not {size}")
        cost = float(cost)
        if not (math.isfinite(cost) and cost >= 0.0):
            raise InvalidInput(f"cost must be a finite number and not negative, not {cost}")
        i = self._id(i)
        self.form_of(type(self).settle_kernel)(self.head, self.rows, i, size, cost)
        evicted = self.rows["victim"][: int(self.head["evicted"][0])]
        return Decision(bool(self.rows["resident"][i]), tuple(evicted.tolist()))

    def forget(self, i: int) -> bool:
        """Remove the answer of id `i` and keep its statistics. Return whether it was resident."""
        i = self._id(i)
        if not self.rows["resident"][i]:
            return False
        self.form_of(type(self).release_kernel)(self.head, self.rows, i)
        return True

    def reprice(self, i: int, cost: float) -> None:
        """Set the mean cost of the resident id `i`, and rank it by that. Nothing is counted, admitted or evicted.

        It has no effect in a policy without a kernel for it. The kernel is not compiled: it is called seldom, and
        requests would wait for the compiler.
        """
        kernel = type(self).reprice_kernel
        if kernel is not None and self.rows["resident"][self._id(i)]:
            uncompiled(kernel)(self.head, self.rows, i, cost)

    def recycle(self) -> tuple[int, bool]:
        """Free an id for another key. Return the id, and whether its answer was evicted.

        The caller must not reuse the id of a request in flight. It calls again if it gets one.
        """
        kernel = type(self).recycle_kernel
        if kernel is None:
            raise InvalidInput(f"{type(self).__name__} cannot recycle ids: it needs one id for every key")
        return int(self.form_of(kernel)(self.head, self.rows)), bool(self.head["evicted"][0])

    def form_of(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return the form of a kernel that this policy calls."""
        return kernel if self.compiled else uncompiled(kernel)

    def request_counts(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the requests of some ids as the policy counts them; 1 if it does not count."""
        if "requests" in (self.rows.dtype.names or ()):
            return np.asarray(self.rows["requests"][ids], np.float64)
        return np.ones(len(ids))

    def request_count(self, i: int) -> float:
        """Return `request_counts` of one id."""
        return float(self.request_counts(np.array([i]))[0])

    def inherit(self, i: int, other: int) -> None:
        """Let id `i`, which is not resident, start with at least as many requests as id `other`.

        For a request that means the same as another one. It has no effect in a policy that does not count requests, or
        that counts them only while the answer is resident.
        """
        if "requests" in (self.rows.dtype.names or ()):
            self.rows["requests"][i] = max(self.rows["requests"][i], self.rows["requests"][other])

    def compacted(self, head: Records, rows: Records, limit: int) -> CompactState | None:  # noqa: ARG002
        """Reduce a copy of the state to `limit` ids, for a snapshot. None: this policy cannot."""
        return None

    def check(self) -> None:
        """Recompute the totals; raise CorruptState if they differ. Subclasses check their own structures too."""
        self._expect("used", self.used, int(self.rows["entry_size"][self.rows["resident"]].sum()))
        if self.used > self.capacity:
            raise CorruptState(f"used {self.used} is above capacity {self.capacity}")

    @property
    def capacity(self) -> int:
        """Units of size for answers."""
        return int(self.head["capacity"][0])

    @property
    def ids(self) -> int:
        """Number of ids."""
        return len(self.rows) - self.spare

    @property
    def used(self) -> int:
        """Units of size taken by residents."""
        return int(self.head["used"][0])

    @property
    def oracle_calls(self) -> int:
        """Number of Oracle calls so far (0 for policies without an Oracle)."""
        return int(self.head["oracle_calls"][0])

    @property
    def residents(self) -> frozenset[int]:
        """Ids whose answers are resident."""
        return frozenset(np.flatnonzero(self.rows["resident"]).tolist())

    def _id(self, i: int) -> int:
        i = _integer("id", i)
        if not 0 <= i < self.ids:
            raise InvalidInput(f"id must be in 0 … {self.ids - 1}, not {i}")
        return i

    @staticmethod
    def _expect(what: str, stored: object, recomputed: object) -> None:
        if stored != recomputed:
            raise CorruptState(f"{what}: stored {stored}, recomputed {recomputed}")


def _integer(what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInput(f"{what} must be a whole number, not {value!r}") from None
