"""Requests of any process to the owner, and its replies.

    O:q      list     ID and sealed request; at most MAX_WAITING, for REPLY_SECONDS after the last one
    O:r.ID   string   sealed reply, for REPLY_SECONDS

A request that no owner has taken within REPLY_SECONDS is gone, as is the process that waited for the reply.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from knapcache.errors import NotOwner, StoreError
from knapcache.store.redis import scripts
from knapcache.store.redis.layout import KeyNames
from knapcache.store.redis.server import RedisServer
from knapcache.store.sqlite.rows import Sealer

MAX_WAITING = 64
MAX_BYTES = 1 << 20
"""Most bytes of a request and of a reply."""
REPLY_SECONDS = 30.0
POLL_SECONDS = 0.02
_ID_BYTES, _SEAL_BYTES = 16, 16
SEALED = b"question"
"""What seals of requests begin with. The word of 0.2.0 stays, so that processes of both versions work together."""


def ask(server: RedisServer, names: KeyNames, sealer: Sealer, request: bytes, seconds: float) -> bytes:
    """Return the owner's reply; NotOwner if there is none within `seconds`."""
    if len(request) > MAX_BYTES:
        raise StoreError(f"a request to the owner has at most {MAX_BYTES} bytes, not {len(request)}")
    number = secrets.token_bytes(_ID_BYTES)
    record = number + b"".join(sealer.protect(SEALED + number, request))
    life = int(REPLY_SECONDS * 1000)
    if not server.run(scripts.ASK, [names.owner_requests], record, MAX_WAITING, life, names.arrivals):
        raise StoreError(f"{MAX_WAITING} requests wait for the owner of the store already")
    deadline = time.monotonic() + seconds
    key = names.reply + number.hex().encode()
    while time.monotonic() < deadline:
        reply = server.command(key, "GET", key)
        if reply is not None and (found := _reveal(sealer, b"reply" + number, reply)) is not None:
            return found
        time.sleep(POLL_SECONDS)
    raise NotOwner("no process owns the store now, or its owner does not answer")


def take(server: RedisServer, names: KeyNames, sealer: Sealer, epoch: int) -> Iterator[tuple[bytes, bytes]]:
    """Take the requests that wait: id and content of each. Damaged ones are dropped."""
    for record in server.run(scripts.TAKE_OWNER_REQUESTS, [names.owner_requests, names.epoch], epoch):
        number = record[:_ID_BYTES]
        request = _reveal(sealer, SEALED + number, record[_ID_BYTES:])
        if request is not None:
            yield number, request


def reply(server: RedisServer, names: KeyNames, sealer: Sealer, number: bytes, content: bytes) -> None:
    """Reply to a request."""
    key = names.reply + number.hex().encode()
    record = b"".join(sealer.protect(b"reply" + number, content))
    server.command(key, "SET", key, record, "PX", int(REPLY_SECONDS * 1000))


def _reveal(sealer: Sealer, kind: bytes, record: bytes) -> bytes | None:
    return sealer.reveal(kind, record[:_SEAL_BYTES], record[_SEAL_BYTES:])
