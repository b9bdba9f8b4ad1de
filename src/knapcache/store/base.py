"""What a store is. It holds answers and decides nothing: a policy above it says what comes and what goes.

    get(key) -> Entry | None                what lies under the key, whole and not expired, or nothing
    get_nowait(key) -> Entry | None | NOT_IN_MEMORY     the same without waiting for a disk
    apply(put, evict, snapshot) -> Future   some leave, one comes, the policy's state goes along: all or nothing
    purge(…), expire() -> keys              remove by tenant, model, age; the keys go back, so that policies can forget
    heads() -> Iterator[Head]               everything about every entry but its bytes
    totals(), counters(), check()           the books, what went wrong so far, and whether books and reality agree
    shared, owner, own(), reader()          process roles: one owner writes, readers read
    hand_over(entry), collect()             a reader's answers, for the owner to decide about
    put_counts(counts), take_counts()       a reader's hits, for the owner's policy to count

Laws, which `knapcache.testing.check_store` tests:

1. `get` returns exactly the bytes that were put under that key, or None. Damage of any kind is None.
2. `apply` returns at once and takes effect at once: every later `get` sees it. Its future is resolved when the
   change is kept as promised by the store (docs/reference/store.md says what survives what); changes are kept in their order.
3. A future that fails holds StoreError. Then the key of `put` is absent, whatever lay there before, and every key of
   `evict` is gone all the same: a policy has already forgotten them, so an eviction is never refused, only late.
4. charge(entry) is the room an entry takes, overhead included. Σ charge ≤ capacity is all a caller has to keep: then
   everything the store writes stays within the budget it was given.
5. `get` never waits for a writer, and never raises for the sake of a broken disk.
6. `get_nowait` waits for nothing: it is what `get` would return, or NOT_IN_MEMORY where only the disk can tell. Then `read` reads
   it, and says StoreError where `get` says None for the sake of a broken disk.
7. A store has at most one owner. `own` makes this store the owner if there is none and returns whether it is the owner
   now; a process that ends, however it ends, is no longer the owner. A store that is not shared is always the owner.
8. A reader sees what the owner has committed. Its `apply`, `purge`, `expire`, `collect`, `take_counts` raise NotOwner.
9. `collect` yields each entry handed over at most once, and `take_counts` each count at most once. Both may lose some
   (a crash, a full disk, damage): a lost answer is requested again. They never return anything that was not handed over.
10. `hand_over` and `put_counts` raise StoreError when there is no space. `put_counts` keeps the counts of at most
    `max_counted_keys` keys, the highest ones. In a store that is not shared both raise StoreError: it has no readers.
11. `reader` returns a reader on the same data, also after a fork, where this store is closed. A store that is not shared
    returns itself: a fork copies it, and each process owns its copy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, Protocol

import orjson

from knapcache.errors import InvalidInput

Clock = Callable[[], float]
KEY_BYTES = 32


class EntryInfo(NamedTuple):
    """All about an entry but its bytes."""

    key: bytes
    """Digest of the request, 32 bytes."""
    tenant: str
    model: str
    size: int
    """Room taken, as the store's `charge` has it."""
    cost: float
    seconds: float
    """How long the answer took to get."""
    created: float
    """Unix time."""
    expires: float | None
    """Unix time from which on the entry is gone; None: never."""
    meta: Mapping[str, Any]
    """Small, and JSON can say it."""


class Entry(NamedTuple):
    """An answer, and the request it answers."""

    key: bytes
    """Digest of the request, 32 bytes."""
    tenant: str
    model: str
    size: int
    """Room taken, as the store's `charge` has it."""
    cost: float
    seconds: float
    """How long the answer took to get."""
    created: float
    """Unix time."""
    expires: float | None
    """Unix time from which on the entry is gone; None: never."""
    meta: Mapping[str, Any]
    """Small, and JSON can say it."""
    request: bytes
    """The canonical request. Whoever gets the entry compares it with its own: a collision of keys is a miss."""
    payload: bytes

    @property
    def info(self) -> EntryInfo:
        """The entry without its bytes."""
        return EntryInfo(*self[:9])


class NotInMemory:
    """The type of NOT_IN_MEMORY."""


NOT_IN_MEMORY: Final = NotInMemory()
"""Not in memory: only the disk can tell."""


class Totals(NamedTuple):
    """The books."""

    entries: int
    size: int
    """Σ size of the entries."""


class Store(Protocol):
    """A store, as caches see it."""

    @property
    def size_limit(self) -> int:
        """Bytes for all that the store keeps, whatever it is for."""

    @property
    def capacity(self) -> int:
        """Room for entries: the capacity of the policy above."""

    @property
    def max_entry_size(self) -> int:
        """No entry charged more than this can be put."""

    @property
    def max_snapshot_size(self) -> int:
        """Bytes a snapshot may have."""

    @property
    def shared(self) -> bool:
        """Whether other processes may open the same data. Then it needs maintenance, and its owner may change."""

    @property
    def owner(self) -> bool:
        """Whether this process decides and writes."""

    @property
    def max_counted_keys(self) -> int:
        """Keys that one `put_counts` keeps."""

    def own(self) -> bool:
        """Become the owner if there is none. Return whether this store is the owner now."""

    def hand_over(self, entry: Entry, /) -> None:
        """Leave an entry for the owner; StoreError when there is no space for it."""

    def collect(self) -> Iterator[Entry]:
        """Take the entries that readers handed over."""

    def put_counts(self, counts: Mapping[bytes, int], /) -> None:
        """Leave hits by key for the owner; StoreError when there is no space for them."""

    def take_counts(self) -> Mapping[bytes, int]:
        """Take the hits that readers left, added up by key."""

    def reader(self) -> Store:
        """Return a reader on the same data, for a forked child."""

    def entry_size(self, entry: Entry) -> int:
        """Room the entry takes; its own `size` is not looked at."""

    def get(self, key: bytes) -> Entry | None:
        """The entry under `key`, or None."""

    def get_nowait(self, key: bytes) -> Entry | NotInMemory | None:
        """The same without waiting for anything; NOT_IN_MEMORY where only the disk can tell."""

    def read(self, key: bytes) -> Entry | None:
        """The same from where it lies; StoreError when that cannot be read."""

    @property
    def write_backlog_full(self) -> bool:
        """Does so much wait to be kept that more would be refused?"""

    def apply(
        self, put: Entry | None = None, evict: Collection[bytes] = (), snapshot: bytes | None = None
    ) -> Future[None]:
        """`evict` leaves, then `put` comes and `snapshot` replaces the older one."""

    def purge(
        self, *, tenant: str | None = None, model: str | None = None, before: float | None = None
    ) -> tuple[bytes, ...]:
        """Remove what meets every condition given (`before`: created earlier); all there is when none is given."""

    def expire(self) -> tuple[bytes, ...]:
        """Remove what has expired."""

    def scan(self) -> Iterator[EntryInfo]:
        """Every entry, expired or not, in no order. Changes made meanwhile may or may not be seen."""

    def load_snapshot(self) -> bytes | None:
        """The last snapshot, or None."""

    def flush(self) -> None:
        """Wait until all that was applied is kept, or has failed."""

    def totals(self) -> Totals:
        """The books, as of the last change kept."""

    def disk_bytes(self) -> int:
        """What lies on disk now; never above the budget."""

    def counters(self) -> Mapping[str, int]:
        """What went wrong since the store was opened, by kind."""

    def check(self) -> None:
        """Derive the totals anew; raise CorruptState when they differ."""

    def close(self) -> None:
        """Flush, and let go. A closed store finds nothing and keeps nothing."""


def expired(expires: float | None, now: float) -> bool:
    """Has the time come?"""
    return expires is not None and expires <= now


def validate_key(key: Any) -> bytes:
    """A key, or InvalidInput."""
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise InvalidInput(f"a key must be {KEY_BYTES} bytes, not {_shown(key)}")
    return key


def validate_entry(entry: Entry, entry_size: int) -> Entry:
    """The entry with its numbers as floats, or InvalidInput."""
    validate_key(entry.key)
    if entry.size != entry_size:
        raise InvalidInput(f"size must be {entry_size}, as the store computes it, not {entry.size!r}")
    return entry._replace(
        cost=_number("cost", entry.cost),
        seconds=_number("seconds", entry.seconds),
        created=_number("created", entry.created),
        expires=None if entry.expires is None else _number("expires", entry.expires),
    )


def encode_fields(entry: Entry) -> tuple[bytes, bytes, bytes]:
    """Tenant, model and meta as bytes, or InvalidInput."""
    try:
        return entry.tenant.encode(), entry.model.encode(), orjson.dumps(dict(entry.meta))
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInput(f"tenant and model must be text and meta must be JSON: {error}") from None


def content(entry: Entry) -> int:
    """Bytes of all the strings in an entry, or InvalidInput."""
    request, payload = entry.request, entry.payload
    if not (isinstance(request, bytes) and isinstance(payload, bytes)):
        raise InvalidInput(f"request and payload must be bytes, not {_shown(request)} and {_shown(payload)}")
    return len(request) + len(payload) + sum(map(len, encode_fields(entry)))


def _number(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0.0):
        raise InvalidInput(f"{what} must be a finite number and not negative, not {value!r}")
    return number + 0.0  # −0.0 does not survive every format


def _shown(value: Any) -> str:
    """What was given, without its content: requests and answers do not belong in error messages."""
    size = f" of length {len(value)}" if hasattr(value, "__len__") else ""
    return f"{type(value).__name__}{size}"


def wall_clock() -> float:
    """Unix time."""
    return time.time()


def purge_filter(tenant: str | None, model: str | None, before: float | None) -> Callable[[EntryInfo], bool]:
    """The condition of `purge` as a function."""

    def meets(head: EntryInfo) -> bool:
        return (
            (tenant is None or head.tenant == tenant)
            and (model is None or head.model == model)
            and (before is None or head.created < before)
        )

    return meets
