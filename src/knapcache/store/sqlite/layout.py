"""Divide the size limit of a SQLite store among its files, so that their sum can never exceed it.

    size_limit = database + write-ahead log + its index (-shm) + spool + lock file
    capacity   = (database − schema − snapshots) · 97 %

Database. `max_page_count` is a hard limit; entry sizes are charged such that it is never reached. A row of P bytes is
stored on a leaf of its table. What exceeds the leaf's share is on overflow pages, which no other row uses (SQLite's
file format). With pages of U bytes:

    M = (U − 12)·32/255 − 23,  K = M + (P − M) mod (U − 4),  local = P if P ≤ U − 35, else K if K ≤ U − 35, else M
    entry_size = page·⌈(P − local)/(U − 4)⌉ + min(page, 2·cell) + trees

Leaves are not full: evictions leave space in them, and SQLite merges them below a third. A cell of more than half a
page has a leaf to itself. Hence twice the cell, but never more than the page. `trees` is for inner pages and for the
indexes of ids and expiry times. Pages have 2 KB: with rows of 5 KB the file is 9 % larger than its rows. With 4 KB
pages it was 17 %, with 1 KB pages 5 % at twice the writes.

Snapshots. One of up to MAX_SINGLE bytes is replaced within one transaction, and takes its space once. A larger one is
written in chunks (snapshot_rows.py) beside the former one, and takes it twice. A million entries need 75 to 100 MB.
The change log (change_log.py) takes 1/512 of the size limit at most, from the 3 % that are left free.

Log. A transaction writes every page that it changed once, at its end (the writer's cache does not spill). A new row is
the last one: two leaves of the table and their parent change. A new entry of an index is small, so at most four leaves
and their parent change. A deletion changes in each tree at most three leaves and their parent. A row that never expires
is not in the index of expiry times. (In a file of 0.2 a new row may change five leaves, but there is no index of ids.)
Pages higher up are covered by `fixed` and by the eighth of the log that `frames` leaves free. So is the row of the
change log: 32 bytes for an operation that may change 8 pages, at the end of a tree. A transaction that drops all rows
of the change log changes their pages, at most a third of what `fixed` has for the free list. Before a transaction that
might not fit, the writer empties the log. While a reader in another process prevents that, it refuses to write.
The log's blocks are allocated when the store is opened, and kept: deletions can be logged even on a full disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache.errors import InvalidInput
from knapcache.store.sqlite.rows import FIXED_BYTES

PAGE = 2048
FRAME = PAGE + 24
KB, MB = 1 << 10, 1 << 20
MIN_SIZE_LIMIT = MB
SNAPSHOT_SHARE = 48
MAX_SINGLE = 16 * MB
"""Most bytes of a snapshot in one row. Size limits up to SNAPSHOT_SHARE times as much have no larger ones."""
CHUNK = 4 * MB
MAX_SNAPSHOTS = 208 * MB
"""Bytes for two snapshots in chunks."""
MAX_CHANGES = 4 * MB
"""Bytes of the change log: of 131,000 keys. To read more of them takes as long as to read a million in their order."""

_MAX_LOCAL = PAGE - 35
_MIN_LOCAL = (PAGE - 12) * 32 // 255 - 23
_PER_OVERFLOW = PAGE - 4
_CELL = 4 + 9 + 5 + 2  # first overflow page, id, length, and the cell's slot in the page's directory
_TREE = 32  # a leaf's cell in an inner page, half full
_ID = 48  # an entry in the index of ids, less than half full
_EXPIRY = 64  # an entry in the index of expiry times, a third full
_SHM_BLOCK, _SHM_FRAMES = 32 * KB, 4062
_LOCK_FILE = 4 * KB
_SCHEMA_PAGES = 8
_INSERT_FRAMES, _DELETE_FRAMES = 3 + 5, 4 + 4  # table and index of ids; see "Log" above
_EXPIRY_INSERT_FRAMES, _EXPIRY_DELETE_FRAMES = 5, 4


def pages_and_cell(record: int) -> tuple[int, int]:
    """Return the overflow pages, and the bytes on a leaf, of a row of `record` bytes."""
    local = record
    if record > _MAX_LOCAL:
        local = _MIN_LOCAL + (record - _MIN_LOCAL) % _PER_OVERFLOW
        if local > _MAX_LOCAL:
            local = _MIN_LOCAL
    return -(-(record - local) // _PER_OVERFLOW), local + _CELL


def entry_size(content: int, expires: bool) -> int:
    """Return the bytes charged for an entry whose strings have `content` bytes. It never decreases with `content`."""
    return size_and_frames(content, expires)[0]


def size_and_frames(content: int, expires: bool) -> tuple[int, int]:
    """Return `entry_size` and `operation_frames` of an entry."""
    overflow, cell = pages_and_cell(FIXED_BYTES + content)
    size = PAGE * overflow + min(PAGE, 2 * cell) + _TREE + _ID
    if expires:
        return size + _EXPIRY, overflow + _INSERT_FRAMES + _EXPIRY_INSERT_FRAMES
    return size, overflow + _INSERT_FRAMES


def operation_frames(content: int = 0, *, expires: bool = True) -> int:
    """Return the most pages that one insertion of `content` bytes, or one deletion, can change.

    expires   whether the row has an expiry time, or may have one
    """
    if not content:
        return _DELETE_FRAMES + (_EXPIRY_DELETE_FRAMES if expires else 0)
    return size_and_frames(content, expires)[1]


def snapshot_frames(content: int) -> int:
    """Return the most pages that a snapshot of `content` bytes changes: only its own, in a table of few rows."""
    return content // _PER_OVERFLOW + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLayout:
    """The parts of a size limit, in bytes, pages and frames (pages in the log)."""

    size_limit: int
    log: int
    """Bytes of the log file, all of them allocated."""
    frames: int
    """No transaction begins that could make the log longer than this."""
    pages: int
    """Most pages of the database."""
    spool: int
    """Most bytes of the spool."""
    max_snapshot_size: int
    snapshot_chunk: int
    """Bytes of a snapshot in one row."""
    max_changes: int
    """Most bytes of the change log."""
    fixed: int
    """Frames that any transaction can take: file header, free list, upper levels of the trees."""
    max_entry_size: int
    capacity: int

    @classmethod
    def of(cls, size_limit: int) -> DiskLayout:
        """Divide `size_limit` bytes."""
        if not isinstance(size_limit, int) or size_limit < MIN_SIZE_LIMIT:
            raise InvalidInput(f"capacity (size_limit) is at least {MIN_SIZE_LIMIT} bytes (1 MiB), not {size_limit!r}")
        log = min(max(size_limit // 12, min(size_limit // 5, 512 * KB)), max(size_limit // 64, 64 * MB))
        frames = (log * 7 // 8 - 32) // FRAME
        index = _SHM_BLOCK * (1 + log // FRAME // _SHM_FRAMES)
        spool = size_limit // 64
        single = min(size_limit // SNAPSHOT_SHARE, MAX_SINGLE)
        # Rises slowly, so that the capacity rises with the size limit.
        snapshots = min(single + max(0, size_limit - SNAPSHOT_SHARE * MAX_SINGLE) // 8, MAX_SNAPSHOTS)
        chunk, chunks = (CHUNK, snapshots // 2 // CHUNK) if snapshots // 2 > single else (single, 1)
        pages = (size_limit - log - index - spool - _LOCK_FILE) // PAGE
        # A parent has 45 children at least (a third of a page, 15 bytes each).
        depth = next(d for d in range(1, 20) if 45**d >= pages)
        fixed = 2 + pages // (PAGE // 4 - 8) + 10 * depth
        snapshot_pages = snapshot_frames(single)
        # One transaction can hold the largest entry, which replaces an older one, together with a full snapshot and
        # evictions in an eighth of its frames, at least one.
        per_transaction = frames - fixed
        entry_pages = min(per_transaction * 7 // 8, per_transaction - operation_frames())
        entry_pages -= snapshot_pages + operation_frames() + _INSERT_FRAMES + _EXPIRY_INSERT_FRAMES
        reserved = snapshot_pages + (snapshots - single) // _PER_OVERFLOW
        capacity = (pages - _SCHEMA_PAGES - reserved) * PAGE * 97 // 100
        return cls(
            size_limit=size_limit,
            log=log,
            frames=frames,
            pages=pages,
            spool=spool,
            max_snapshot_size=chunk * chunks,
            snapshot_chunk=chunk,
            max_changes=min(size_limit // 512, MAX_CHANGES),
            fixed=fixed,
            max_entry_size=min(entry_pages * PAGE + _TREE + _ID, capacity),
            capacity=capacity,
        )

    @classmethod
    def for_file(cls, file_bytes: int, log_bytes: int = 0) -> DiskLayout:
        """Return the smallest layout that a database of this size fits into: opening it with less would shrink it.

        log_bytes   of the log that an owner has allocated: the layout is about the owner's
        """

        def fits(layout: DiskLayout) -> bool:
            return layout.pages >= pages and layout.log >= log_bytes

        pages = -(-file_bytes // PAGE)
        low, high = MIN_SIZE_LIMIT, MIN_SIZE_LIMIT
        while not fits(cls.of(high)):
            low, high = high, 2 * high
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(cls.of(middle)) else (middle + 1, high)
        return cls.of(high)

    @property
    def max_value(self) -> int:
        """Most bytes of one value that is read. A file may have been written with a larger size limit."""
        return max(self.max_entry_size, min(self.pages * PAGE, 64 * MB))

    @property
    def frames_per_transaction(self) -> int:
        """Frames that the operations of one transaction may take together."""
        return self.frames - self.fixed
