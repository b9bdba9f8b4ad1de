"""The store protocol. A store holds entries and makes no decisions: the policy above it decides what to keep.

A store of many machines has more methods (`NetworkStore`): leases on keys, and requests to the owner. So has a store
that logs its changes (`LoggedStore`).

Laws, tested by `knapcache.testing.check_store`:

1. `get` returns exactly the bytes that were put under that key, or None. Damage of any kind gives None.
2. `apply` returns at once and takes effect at once: every later `get` sees the change. Its future is resolved when the
   change is durable as the store promises (docs/reference/store.md). Changes become durable in their order.
3. A future that fails holds StoreError. Then the key of `put` is absent, whatever was stored before, and every key of
   `evict` is gone: the policy has already forgotten them. An eviction can be late, but is never refused.
4. entry_size(entry) is the size charged for an entry, overhead included. While Σ size ≤ capacity, everything that the
   store writes stays within `size_limit`. The caller has to maintain nothing else.
5. `get` never waits for a writer, and never raises because of a broken disk.
6. `get_nowait` never waits. It returns what `get` would return, or NOT_IN_MEMORY if that takes a disk read. `read` does
   that read: where `get` returns None because of a broken disk, `read` raises StoreError. So does `peek`. It may return
   an expired entry, and reading many entries with it displaces none from memory.
7. A store has at most one owner. `own` makes this store the owner if there is none, and returns whether it is the owner
   now. A process that ends, even by `kill -9`, is no longer the owner; a store of many machines may need some seconds
   to notice. A store that is not shared is always the owner.
8. A reader sees what the owner has committed; a store of many machines may need a second. Its `apply`, `expire`,
   `collect`, `take_counts` raise NotOwner.
   Its `get` may also find an entry that was handed over and is not decided yet. The owner's `get` and `scan` do not.
   An owner that another process has replaced is a reader from then on: `owner` is False, and its changes fail.
9. `collect` yields each entry handed over at most once, and `take_counts` each count at most once. A crash, a full disk
   or damage can lose some. Neither returns anything that was not handed over.
10. `hand_over` and `put_counts` raise StoreError when there is no space. `put_counts` keeps the counts of at most
    `max_counted_keys` keys, the highest ones. In a store that is not shared both raise StoreError: it has no readers.
11. `reader` returns a reader on the same data. It also works in a forked child, where this store itself is closed. A
    store that is not shared returns itself: a fork copies it, and each process owns its copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from knapcache.errors import StoreError

Clock = Callable[[], float]
"""Returns Unix time in seconds."""
KEY_BYTES = 32


def wall_clock() -> float:
    """Return Unix time. Tests replace it."""
    return time.time()


class EntryInfo(NamedTuple):
    """An entry's metadata, without its bytes."""

    key: bytes
    """Digest of the request, 32 bytes."""
    tenant: str
    model: str
    size: int
    """Bytes charged, as computed by the store's `entry_size`."""
    cost: float
    seconds: float
    """How long the upstream took to answer."""
    created: float
    """Unix time."""
    expires: float | None
    """Unix time from which on the entry is gone; None: never."""
    meta: Mapping[str, Any]
    """Small and JSON-serialisable."""


class Entry(NamedTuple):
    """A stored answer, with the request it answers. The first nine fields are those of EntryInfo."""

    key: bytes
    tenant: str
    model: str
    size: int
    cost: float
    seconds: float
    created: float
    expires: float | None
    meta: Mapping[str, Any]
    request: bytes
    """The canonical request. Callers compare it with their own: a collision of keys is a miss."""
    payload: bytes

    @property
    def info(self) -> EntryInfo:
        """The metadata alone."""
        return EntryInfo(*self[:9])


@dataclass(slots=True, eq=False)
class Change:
    """One atomic change of a store: it removes entries, then puts one, and replaces the snapshot."""

    put: Entry | None = None
    evict: Collection[bytes] = ()
    snapshot: bytes | None = None


C = TypeVar("C", bound=Change)
Done = Callable[[C, StoreError | None], None]
"""done(change, error): the change is durable, or has failed."""


class NotInMemory:
    """The type of NOT_IN_MEMORY."""


NOT_IN_MEMORY: Final = NotInMemory()
"""Returned by `get_nowait` when the answer takes a disk read."""


class Totals(NamedTuple):
    """Number of entries, and the sum of their sizes."""

    entries: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options of every kind of store (registry.py)."""

    size_limit: int
    """Bytes for everything that the store writes."""
    secret: bytes = b""
    """Key of the integrity seals: entries written with another secret are not accepted."""
    synchronous: str = "normal"
    """"normal", or "full" to lose nothing in a power cut."""
    encryption_keys: tuple[bytes, ...] = ()
    """Keys of 32 bytes: the store encrypts with the first, and decrypts with all. Empty: it does not encrypt."""
    exclusive: bool = False
    """Whether only this store writes to the path. If so, a file that is damaged beyond recognition is renamed."""
    clock: Clock = wall_clock


class Store(Protocol):
    """A store, as the cache uses it."""

    @property
    def size_limit(self) -> int:
        """Bytes for everything that the store writes: entries, snapshot, logs and handed-over entries."""

    @property
    def capacity(self) -> int:
        """Bytes for entries: the policy's capacity."""

    @property
    def max_entry_size(self) -> int:
        """Largest `size` of an entry that can be put."""

    @property
    def max_snapshot_size(self) -> int:
        """Most bytes of a snapshot."""

    @property
    def shared(self) -> bool:
        """Whether other processes may open the same data. Then it needs maintenance, and its owner may change."""

    @property
    def owner(self) -> bool:
        """Whether this process decides and writes."""

    @property
    def max_counted_keys(self) -> int:
        """Most keys that one `put_counts` keeps."""

    def own(self) -> bool:
        """Become the owner if there is none. Return whether this store is the owner now."""

    def hand_over(self, entry: Entry, /) -> None:
        """Leave an entry for the owner; StoreError when there is no space for it."""

    def collect(self) -> Iterator[Entry]:
        """Take the entries that readers handed over."""

    def put_counts(self, counts: Mapping[bytes, int], /) -> None:
        """Leave hits by key for the owner; StoreError when there is no space for them."""

    def take_counts(self) -> Mapping[bytes, int]:
        """Take the hits that readers left, summed by key."""

    def reader(self) -> Store:
        """Return a reader on the same data, for a forked child."""

    def entry_size(self, entry: Entry) -> int:
        """Return the bytes charged for an entry. Its `size` field is ignored."""

    def get(self, key: bytes) -> Entry | None:
        """Return the entry, or None."""

    def get_nowait(self, key: bytes) -> Entry | NotInMemory | None:
        """Return the entry, or None, or NOT_IN_MEMORY if that takes a disk read."""

    def read(self, key: bytes) -> Entry | None:
        """Return the entry from the disk, or None; StoreError when the disk cannot be read."""

    def peek(self, key: bytes) -> Entry | None:
        """Return the entry, expired or not, or None. Entries that are kept in memory stay; StoreError as of `read`."""

    @property
    def write_backlog_full(self) -> bool:
        """Whether so much waits to be written that a put should wait. `apply` refuses puts when more is queued."""

    @property
    def writes_stalled(self) -> bool:
        """Whether the store knows that it would be pointless to wait for `write_backlog_full` to end."""

    def apply(
        self, put: Entry | None = None, evict: Collection[bytes] = (), snapshot: bytes | None = None
    ) -> Future[None]:
        """Remove `evict`, then insert `put` and replace the snapshot, atomically."""

    def expire(self) -> tuple[bytes, ...]:
        """Remove expired entries. Return their keys."""

    def scan(self) -> Iterator[EntryInfo]:
        """Yield the metadata of every entry, expired or not, unordered. Concurrent changes may or may not be seen."""

    def load_snapshot(self) -> bytes | None:
        """Return the last snapshot, or None."""

    def flush(self) -> None:
        """Wait until every change applied so far is durable or has failed."""

    def totals(self) -> Totals:
        """Return entries and bytes, as of the last durable change."""

    def disk_bytes(self) -> int:
        """Return the bytes on disk now; at most `size_limit`."""

    def counters(self) -> Mapping[str, int]:
        """Return the number of faults since the store was opened, by kind."""

    def check(self) -> None:
        """Recompute the totals; CorruptState when they differ."""

    def close(self) -> None:
        """Flush and release all resources. A closed store finds nothing and accepts nothing."""


class LoggedStore(Store, Protocol):
    """A store that knows which entries have changed since a position, so that a cache need not read all of them."""

    def position(self) -> bytes:
        """Return the position of the last durable change; empty if there is none that a cache may begin from."""

    def infos_since(self, position: bytes, /) -> Mapping[bytes, EntryInfo | None] | None:
        """Return the metadata of all entries that have changed since a position, by key; None for those that are gone.

        None instead of a mapping: the store does not know.
        """

    def drop_changes(self, position: bytes, /) -> None:
        """Forget what changed before a position, which is the last that `position` returned."""


class Lease(Protocol):
    """The right to call the upstream for a key."""

    def end(self, answer: Entry | None = None, /) -> None:
        """Let other processes call, or find the answer. It may wait for the store, and never raises StoreError.

        answer   what the owner got and may not have stored; processes that wait for it find it
        """


class NetworkStore(Store, Protocol):
    """A store of many machines. Its processes share calls of the upstream, and can ask its owner."""

    def hand_over(self, entry: Entry, /, *, displace: bool = True) -> None:
        """Leave an entry for the owner; StoreError when there is no space for it.

        displace   drop older ones that the owner has not taken. Without it, an entry that never fits is InvalidInput
        """

    def lead(self, key: bytes, /) -> Entry | Lease | None:
        """Return the entry, or a lease to call the upstream, or None while another process has one."""

    def read_many(self, keys: Sequence[bytes], /) -> Mapping[bytes, Entry | None]:
        """Return `read` of several keys, in fewer round trips."""

    @property
    def has_arrivals(self) -> bool:
        """Whether the store knows of entries that were handed over, or of requests to the owner."""

    def collect_arrivals(self) -> Iterator[Entry]:
        """Take the entries that the store knows of; `collect` takes all."""

    def ask(self, request: bytes, /, seconds: float) -> bytes:
        """Return the owner's reply. NotOwner if none comes in time, StoreError if the store does not answer."""

    def take_owner_requests(self) -> Iterator[tuple[bytes, bytes]]:
        """Take the requests that wait for the owner: id and content of each."""

    def reply(self, number: bytes, content: bytes, /) -> None:
        """Reply to a request, by its id."""


class BatchStore(Store, Protocol):
    """A store that takes many changes at once, in less time than one after the other."""

    def apply_all(self, changes: Sequence[C], done: Done[C], /) -> None:
        """Make changes in their order, each as `apply` does. Call `done` for each: at once, or later in any thread."""


class ClearableStore(Store, Protocol):
    """A store that removes all entries at once, in less time than one after the other."""

    def clear(self) -> Future[None]:
        """Remove all entries that were put before this call. Later changes are made after it."""


def network_store(store: Store) -> NetworkStore | None:
    """Return a store as a NetworkStore, or None if it is none."""
    return cast(NetworkStore, store) if hasattr(store, "lead") else None


def logged_store(store: Store) -> LoggedStore | None:
    """Return a store as a LoggedStore, or None if it is none."""
    return cast(LoggedStore, store) if hasattr(store, "infos_since") else None


def batch_store(store: Store) -> BatchStore | None:
    """Return a store as a BatchStore, or None if it is none."""
    return cast(BatchStore, store) if hasattr(store, "apply_all") else None


def clearable_store(store: Store) -> ClearableStore | None:
    """Return a store as a ClearableStore, or None if it is none."""
    return cast(ClearableStore, store) if hasattr(store, "clear") else None


def expired(expires: float | None, now: float) -> bool:
    return expires is not None and expires <= now
