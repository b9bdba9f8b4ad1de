"""Hit counts from readers to the owner: sealed records in a list, taken all at once."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping

from knapcache.errors import StoreError
from knapcache.store.base import validate_key
from knapcache.store.redis import scripts
from knapcache.store.redis.layout import KeyNames, ServerLayout
from knapcache.store.redis.server import RedisServer, ServerAway
from knapcache.store.sqlite.rows import Sealer

_COUNT = struct.Struct("<32sI")
_MAX_COUNT = 2**32 - 1
_SEAL_BYTES = 16


def put_counts(
    server: RedisServer, names: KeyNames, layout: ServerLayout, sealer: Sealer, counts: Mapping[bytes, int]
) -> bool:
    """Leave the highest counts for the owner; StoreError when they were not left.

    Return False when the server did not answer and may have them: the caller must not leave them again.
    """
    pairs = Counter(counts).most_common(layout.max_counted_keys)
    content = b"".join(_COUNT.pack(validate_key(key), min(count, _MAX_COUNT)) for key, count in pairs)
    record = b"".join(sealer.protect(b"counts", content))
    try:
        stored = server.run(scripts.PUT_COUNTS, [names.counts, names.counts_bytes], record, layout.counts)
    except ServerAway as error:
        if error.sent:
            return False
        raise
    if not stored:
        raise StoreError(f"the space for hit counts is full: {layout.counts} bytes")
    return True


def take_counts(server: RedisServer, names: KeyNames, sealer: Sealer, epoch: int) -> Counter[bytes]:
    """Return the sum of the counts that were left, and remove them. Damaged records are dropped."""
    total: Counter[bytes] = Counter()
    for record in server.run(scripts.TAKE_COUNTS, [names.counts, names.epoch, names.counts_bytes], epoch):
        counts = sealer.reveal(b"counts", record[:_SEAL_BYTES], record[_SEAL_BYTES:])
        if counts is not None and len(counts) % _COUNT.size == 0:
            for key, count in _COUNT.iter_unpack(counts):
                total[key] += count
    return total
