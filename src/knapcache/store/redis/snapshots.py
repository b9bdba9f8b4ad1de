"""The policy's snapshot in the server: chunks of at most 1 MB, and a hash that says which of them count.

The chunks of a new generation are written first, with a life time. One script then makes them permanent, points the
hash at them and removes the old ones. So a reader finds a whole snapshot, and what a crash leaves behind vanishes.
"""

from __future__ import annotations

import secrets

from knapcache.store.redis import scripts
from knapcache.store.redis.layout import CHUNK, KeyNames
from knapcache.store.redis.server import RedisServer, as_number
from knapcache.store.sqlite.rows import Sealer

_UNUSED_CHUNK_SECONDS = 600
_ATTEMPTS = 5


def save_snapshot(server: RedisServer, names: KeyNames, epoch: int, sealed: tuple[bytes, bytes]) -> None:
    """Store the seal and bytes of a snapshot. Fenced if another owner has taken over."""
    seal, content = sealed
    generation = secrets.token_hex(8).encode()
    chunks: list[bytes] = []
    for k in range(0, len(content), CHUNK):
        chunks.append(b"%s.%s.%d" % (names.snapshot, generation, len(chunks)))
        server.command(names.snapshot, "SET", chunks[-1], content[k : k + CHUNK], "EX", _UNUSED_CHUNK_SECONDS)
    server.run(scripts.SAVE_SNAPSHOT, [names.snapshot, names.epoch, *chunks], epoch, generation, seal)


def load_snapshot(server: RedisServer, names: KeyNames, sealer: Sealer) -> bytes | None:
    """Return the last snapshot; None if there is none, or if it is damaged."""
    for _ in range(_ATTEMPTS):  # a new one may replace it while it is read
        found = server.command(names.snapshot, "HMGET", names.snapshot, "generation", "chunks", "seal")
        generation, chunks, seal = found
        if generation is None:
            return None
        parts = []
        for k in range(as_number(chunks)):
            parts.append(server.command(names.snapshot, "GET", b"%s.%s.%d" % (names.snapshot, generation, k)))
            if parts[-1] is None:
                break
        else:
            return sealer.reveal(b"snapshot", seal, b"".join(parts))
    return None


def snapshot_bytes(server: RedisServer, names: KeyNames) -> int:
    """Return an upper bound of the bytes of the stored snapshot."""
    return as_number(server.command(names.snapshot, "HGET", names.snapshot, "chunks")) * CHUNK
