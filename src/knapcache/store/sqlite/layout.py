"""How a budget of bytes is divided among the files of a SQLite store, so that their sum can never exceed it.

    budget = database + write-ahead log + its index (-shm) + spool + lock file
    capacity = database − schema − snapshot, less 3 %

Database. `max_page_count` is the law; charges are such that it is not met. A row of P bytes lies on a leaf of its
table, with what exceeds the leaf's share on overflow pages of its own, which nobody shares (SQLite's file format):

    M = (U − 12)·32/255 − 23,  K = M + (P − M) mod (U − 4),  local = P if P ≤ U − 35, else K if K ≤ U − 35, else M
    charge = page·⌈(P − local)/(U − 4)⌉ + min(page, 2·cell) + tree

Leaves are not full: SQLite merges them below a third. With evenly spread ids they are filled to about 70 % in the
long run (measured, 0.65 … 0.74 for rows from 0.5 KB to 600 KB), and a cell of more than half a page has one to
itself, hence twice the cell but never more than the page. `tree` pays for inner pages and for the index of expiry.
Pages of 2 KB: at rows of 5 KB the file takes 9 % more than the rows; with 4 KB pages it was 17 %, with 1 KB pages
5 %, at twice the writes.

Log. A transaction writes every page it changed once, at its end (the cache of the writer does not spill). Pages
changed by one insertion or deletion: five leaves at most in a rebalancing, and their parent, in each of two trees;
pages higher up are paid for by `fixed` and by an eighth of the log that `frames` leaves free. Before a transaction
that might not fit, the writer empties the log; while a foreign reader prevents that, it refuses to write.
The log's blocks are taken from the disk when the store is opened and kept: on a full disk there is still room to
write that something is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache.errors import InvalidInput
from knapcache.store.sqlite.rows import FIXED_BYTES

PAGE = 2048
FRAME = PAGE + 24
KB, MB = 1 << 10, 1 << 20
MIN_SIZE_LIMIT = MB

_MOST_LOCAL = PAGE - 35
_LEAST_LOCAL = (PAGE - 12) * 32 // 255 - 23
_PER_OVERFLOW = PAGE - 4
_CELL = 4 + 9 + 5 + 2  # first overflow page, id, length, and the cell's place in the page's directory
_TREE = 32  # a leaf's cell in an inner page, half full
_EXPIRY = 64  # an entry in the index of expiry, a third full
_SHM_BLOCK, _SHM_FRAMES = 32 * KB, 4062
_LOCK_FILE = 4 * KB
_SCHEMA_PAGES = 8
_OPERATION_FRAMES = 12  # see "Log" above


def pages_and_cell(record: int) -> tuple[int, int]:
    """Overflow pages, and bytes on a leaf, of a row of `record` bytes."""
    local = record
    if record > _MOST_LOCAL:
        local = _LEAST_LOCAL + (record - _LEAST_LOCAL) % _PER_OVERFLOW
        if local > _MOST_LOCAL:
            local = _LEAST_LOCAL
    return -(-(record - local) // _PER_OVERFLOW), local + _CELL


def entry_size(content: int, expires: bool) -> int:
    """Room of an entry whose strings have `content` bytes in all. Never less for more."""
    overflow, cell = pages_and_cell(FIXED_BYTES + content)
    return PAGE * overflow + min(PAGE, 2 * cell) + _TREE + (_EXPIRY if expires else 0)


def operation_frames(content: int = 0) -> int:
    """Pages that one insertion of `content` bytes, or one deletion, can change."""
    return _OPERATION_FRAMES + (pages_and_cell(FIXED_BYTES + content)[0] if content else 0)


def snapshot_frames(content: int) -> int:
    """Pages that a snapshot of `content` bytes changes: its own, in a table of two rows."""
    return content // _PER_OVERFLOW + 4


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a budget, in bytes, pages and frames (pages in the log)."""

    size_limit: int
    log: int
    """Bytes of the log file, all of them allocated."""
    frames: int
    """No transaction begins that could make the log longer."""
    pages: int
    """The database never has more."""
    spool: int
    max_snapshot_size: int
    fixed: int
    """Frames a transaction can take whatever it does: file header, free list, upper parts of the trees."""
    max_entry_size: int
    capacity: int

    @classmethod
    def of(cls, size_limit: int) -> Layout:
        """The division of `budget` bytes."""
        if not isinstance(size_limit, int) or size_limit < MIN_SIZE_LIMIT:
            raise InvalidInput(f"size_limit must be at least {MIN_SIZE_LIMIT} bytes (1 MiB), not {size_limit!r}")
        log = min(max(size_limit // 12, min(size_limit // 5, 512 * KB)), max(size_limit // 64, 64 * MB))
        frames = (log * 7 // 8 - 32) // FRAME
        index = _SHM_BLOCK * (1 + log // FRAME // _SHM_FRAMES)
        spool = size_limit // 64
        max_snapshot_size = min(size_limit // 48, 16 * MB)
        pages = (size_limit - log - index - spool - _LOCK_FILE) // PAGE
        # A parent has 45 children at least (a third of a page, 15 bytes each).
        depth = next(d for d in range(1, 20) if 45**d >= pages)
        fixed = 2 + pages // (PAGE // 4 - 8) + 10 * depth
        snapshot_pages = snapshot_frames(max_snapshot_size)
        # The largest entry, in the place of its older self, a whole snapshot, and an eighth of evictions, one at least,
        # fit into one transaction together.
        at_once = frames - fixed
        largest_pages = min(at_once * 7 // 8, at_once - _OPERATION_FRAMES) - snapshot_pages - 2 * _OPERATION_FRAMES
        capacity = (pages - _SCHEMA_PAGES - snapshot_pages) * PAGE * 97 // 100
        return cls(
            size_limit,
            log,
            frames,
            pages,
            spool,
            max_snapshot_size,
            fixed,
            min(largest_pages * PAGE, capacity),
            capacity,
        )

    @property
    def at_once(self) -> int:
        """Frames that the operations of one transaction may take together."""
        return self.frames - self.fixed
