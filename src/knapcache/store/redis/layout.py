"""Names of the keys, division of the size limit, and the charge of an entry.

A shard is a set of keys with one hash tag, so that scripts can change them together. `T` is `{PREFIX:SHARD}`:

    T:a:NAME   string   value of an entry that the owner admitted (records.py)
    T:h        hash     NAME → head of that value, for listings and charges
    T:x        zset     NAME by expiry time, for entries that expire
    T:u:NAME   string   value that a reader handed over and the owner has not decided: the nursery
    T:s        hash     NAME → charge of such a value
    T:n, T:t   lists    NAMEs in the nursery, oldest first: not yet collected, collected
    T:f:NAME   string   token of the process that calls the upstream for this key; one byte more if others wait
                        (key_leases.py)
    T:b        hash     used, count, nused, limit, nroom, epoch
    T:w, O:w   string   written to see whether the server takes writes again; for a second

and with `O` as `{PREFIX:o}`:

    O:meta              hash     format, number of shards, mark of the secret, time of creation
    O:owner, O:epoch    strings  token of the owner, with a lease; epoch of the last owner
    O:snap, O:snap.G.I  hash, strings   generation, chunks and seal of the snapshot; its chunks of at most 1 MB
    O:c, O:cb           list, string    hit counts for the owner; their bytes
    O:q, O:r.ID         list, strings   requests to the owner, and its replies (owner_exchange.py)
    O:gone              channel  names of removed entries, 32 bytes each
    O:new               channel  shards with entries to collect; "q" for a request to the owner
    O:d:KIND, O:d:KIND:NAME   zset, strings   documents of the processes for each other (documents.py)
    O:l:KIND, O:l       stream, string    bounded logs of records, and their epoch (record_logs.py)
    O:l:KIND.i, .s, .c  hash, zset, hash  their names and scopes
    O:u:…               strings, hashes   calls to upstreams that count towards limits (call_counts.py)

NAME is the key of the entry; with encryption another digest (encryption.py). The shard follows from the key.

    size_limit = capacity + nursery + 2 snapshots + counts

The nursery has 2 % of the size limit. Two generations of the snapshot exist while one replaces the other.

The charge of an entry is what the server allocates: the size classes of jemalloc for the value and for the head, and
OVERHEAD for both names, table slots and object headers. A test compares it with the server's own count.

What differs from a plain cache in Redis: an entry has a life time in the server only as a second line (the owner
removes it first, GRACE seconds earlier), and undecided entries have names of their own. So the owner admits an entry
by renaming it, and a reader tells both kinds apart without a second lookup.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache.errors import InvalidInput

MIN_SIZE_LIMIT = 1 << 20
MAX_ENTRY_SIZE = 16 << 20
"""A larger value would keep the server, which has one thread, from answering others."""
CHUNK = 1_000_000
"""Most bytes of one chunk of the snapshot."""
MAX_COUNTED_KEYS = 4096
COUNT_BYTES = 36
OVERHEAD = 320
EXPIRY_OVERHEAD = 160
GRACE = 120.0
"""Seconds that the server keeps an entry after its expiry."""

_SHARD_BYTES = 64 << 20
_CLUSTER_SHARD_BYTES = 16 << 20
_MAX_SHARDS = 64
_STRING_HEADER = 32
_NURSERY_SHARE, _SNAPSHOT_SHARE, _COUNTS_SHARE = 50, 64, 64
_MAX_SNAPSHOT = 32 << 20


def size_class(n: int) -> int:
    """Return the bytes that jemalloc takes for an allocation of n: four classes for each power of two."""
    if n <= 16:
        return 16
    step = max(16, 1 << max(0, (n - 1).bit_length() - 3))
    return -(-n // step) * step


def entry_size(value: int, head: int, prefix: int, expires: bool) -> int:
    """Return the charge of an entry, from the lengths of value, head and prefix."""
    allocated = size_class(value + _STRING_HEADER) + size_class(head + _STRING_HEADER)
    return allocated + OVERHEAD + prefix + (EXPIRY_OVERHEAD if expires else 0)


@dataclass(frozen=True, slots=True)
class ServerLayout:
    """How the size limit is divided."""

    size_limit: int
    capacity: int
    nursery: int
    max_snapshot_size: int
    counts: int

    @classmethod
    def of(cls, size_limit: int) -> ServerLayout:
        if size_limit < MIN_SIZE_LIMIT:
            raise InvalidInput(
                f"capacity (size_limit) is at least {MIN_SIZE_LIMIT} bytes (1 MiB) in Redis, not {size_limit}"
            )
        nursery, counts = size_limit // _NURSERY_SHARE, size_limit // _COUNTS_SHARE
        snapshot = min(size_limit // _SNAPSHOT_SHARE, _MAX_SNAPSHOT)
        return cls(size_limit, size_limit - nursery - counts - 2 * snapshot, nursery, snapshot, counts)

    @property
    def max_entry_size(self) -> int:
        return min(self.capacity, MAX_ENTRY_SIZE)

    @property
    def max_counted_keys(self) -> int:
        """Most keys of one record of counts, which takes at most a quarter of their bytes."""
        return min(MAX_COUNTED_KEYS, (self.counts // 4 - 64) // COUNT_BYTES)

    def shards(self, *, cluster: bool) -> int:
        """Return the number of shards of a new store: a power of two, at most 64.

        One for each 64 MB. In a cluster one for each 16 MB, so that small stores use all primaries, too.
        """
        size = _CLUSTER_SHARD_BYTES if cluster else _SHARD_BYTES
        return min(_MAX_SHARDS, 1 << max(0, (self.size_limit // size).bit_length() - 1))


class KeyNames:
    """The names of a store's keys in the server."""

    def __init__(self, prefix: str, shards: int) -> None:
        self.shards = shards
        self.tags = tuple(f"{{{prefix}:{shard}}}".encode() for shard in range(shards))
        self.totals = tuple(tag + b":b" for tag in self.tags)
        self.tables = tuple([tag + part for part in (b":b", b":h", b":s", b":n", b":t")] for tag in self.tags)
        """The keys that every script of a shard uses."""
        common = owner_tag(prefix)
        self.owner, self.epoch = common + b":owner", common + b":epoch"
        self.snapshot = common + b":snap"
        self.counts, self.counts_bytes = common + b":c", common + b":cb"
        self.owner_requests, self.reply = common + b":q", common + b":r."
        self.gone, self.arrivals = channels(prefix)

    def shard(self, key: bytes) -> int:
        return int.from_bytes(key[:4], "big") % self.shards


def channels(prefix: str) -> tuple[bytes, bytes]:
    """Return the channels of removed entries and of arrivals."""
    return owner_tag(prefix) + b":gone", owner_tag(prefix) + b":new"


def owner_tag(prefix: str) -> bytes:
    return f"{{{prefix}:o}}".encode()
