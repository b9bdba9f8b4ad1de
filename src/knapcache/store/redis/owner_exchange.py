"""Exchange between the readers and the owner of a store, through the server: answers, hit counts and requests.

    O:q      list     requests: ID and sealed content; at most MAX_WAITING, for REPLY_SECONDS after the last one
    O:r.ID   string   sealed reply, for REPLY_SECONDS

A request that no owner has taken within REPLY_SECONDS is gone, as is the process that waited for the reply. Hit counts
are sealed records in a list, and the owner takes all of them at once.
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping

from knapcache.errors import NotOwner, StoreError
from knapcache.store.base import Entry
from knapcache.store.redis import layout, scripts
from knapcache.store.redis.membership import Membership
from knapcache.store.redis.server import ServerAway
from knapcache.store.redis.urls import MAX_SHARDS
from knapcache.store.redis.writer import QueuedChange
from knapcache.store.sqlite.rows import Sealer
from knapcache.store.validation import validate_key

OWNER_REQUEST = b"q"
"""The message of a request to the owner; other arrivals name a shard."""
MAX_WAITING = 64
MAX_BYTES = 1 << 20
"""Most bytes of a request and of a reply."""
REPLY_SECONDS = 30.0
POLL_SECONDS = 0.02
_ID_BYTES, _SEAL_BYTES = 16, 16
_SEALED_REQUEST = b"question"
"""What seals of requests begin with. The word of 0.2.0 stays, so that processes of both versions work together."""
_COUNT = struct.Struct("<32sI")
_MAX_COUNT = 2**32 - 1


class OwnerExchange:
    """The part of `RedisStore` that readers and the owner use to exchange data."""

    layout: layout.ServerLayout
    _member: Membership
    _sealer: Sealer
    _counters: Counter[str]

    def __init__(self) -> None:
        self._arrivals: set[bytes] = set()
        self._arrivals_lock = threading.Lock()

    def _on_arrival(self, message: bytes) -> None:
        if message == OWNER_REQUEST or (message.isdigit() and int(message) < MAX_SHARDS):
            with self._arrivals_lock:
                self._arrivals.add(message)

    def _reveal(self, kind: bytes, record: bytes) -> bytes | None:
        return self._sealer.reveal(kind, record[:_SEAL_BYTES], record[_SEAL_BYTES:])

    # Answers.

    def collect(self) -> Iterator[Entry]:
        writer, attachment = self._member.ownership()
        if not_admitted := attachment.nursery.take_not_admitted():
            writer.submit(QueuedChange(drop=not_admitted))
        return attachment.nursery.collect(writer.table.epoch)

    @property
    def has_arrivals(self) -> bool:
        """Whether the server has reported answers or requests that the owner has not taken."""
        return bool(self._arrivals)

    def collect_arrivals(self) -> Iterator[Entry]:
        """Take the answers of those shards that reported some. Messages can be lost: `collect` takes all."""
        writer, attachment = self._member.ownership()
        with self._arrivals_lock:
            shards = {int(message) for message in self._arrivals if message.isdigit()}
            self._arrivals -= {b"%d" % shard for shard in shards}
        known = [shard for shard in shards if shard < attachment.names.shards]
        return attachment.nursery.collect(writer.table.epoch, known)

    # Hit counts.

    def put_counts(self, counts: Mapping[bytes, int], /) -> None:
        """Leave the highest counts for the owner; StoreError when they were not left."""
        names, limit = self._member.attachment().names, self.layout.counts
        pairs = Counter(counts).most_common(self.layout.max_counted_keys)
        content = b"".join(_COUNT.pack(validate_key(key), min(count, _MAX_COUNT)) for key, count in pairs)
        record = b"".join(self._sealer.protect(b"counts", content))
        try:
            stored = self._member.server.run(scripts.PUT_COUNTS, [names.counts, names.counts_bytes], record, limit)
        except ServerAway as error:
            if not error.sent:
                raise
            self._counters["counts_lost"] += 1  # the server may have them: they must not be left again
            return
        if not stored:
            raise StoreError(f"the space for hit counts is full: {limit} bytes")

    def take_counts(self) -> Mapping[bytes, int]:
        """Return the sum of the counts that were left, and remove them. Damaged records are dropped."""
        writer, attachment = self._member.ownership()
        names, total = attachment.names, Counter[bytes]()
        keys = [names.counts, names.epoch, names.counts_bytes]
        for record in self._member.server.run(scripts.TAKE_COUNTS, keys, writer.table.epoch):
            counts = self._reveal(b"counts", record)
            if counts is not None and len(counts) % _COUNT.size == 0:
                for key, count in _COUNT.iter_unpack(counts):
                    total[key] += count
        return total

    # Requests to the owner.

    def ask(self, request: bytes, seconds: float = REPLY_SECONDS) -> bytes:
        """Return the owner's reply; NotOwner if there is none within `seconds`."""
        if len(request) > MAX_BYTES:
            raise StoreError(f"a request to the owner has at most {MAX_BYTES} bytes, not {len(request)}")
        server, names = self._member.server, self._member.attachment().names
        number = secrets.token_bytes(_ID_BYTES)
        record = number + b"".join(self._sealer.protect(_SEALED_REQUEST + number, request))
        life = int(REPLY_SECONDS * 1000)
        if not server.run(scripts.ASK, [names.owner_requests], record, MAX_WAITING, life, names.arrivals):
            raise StoreError(f"{MAX_WAITING} requests wait for the owner of the store already")
        deadline = time.monotonic() + seconds
        key = names.reply + number.hex().encode()
        while time.monotonic() < deadline:
            reply = server.command(key, "GET", key)
            if reply is not None and (found := self._reveal(b"reply" + number, reply)) is not None:
                return found
            time.sleep(POLL_SECONDS)
        raise NotOwner("no process owns the store now, or its owner does not answer")

    def take_owner_requests(self) -> Iterator[tuple[bytes, bytes]]:
        """Take the requests that wait for the owner: id and content of each. Damaged ones are dropped."""
        writer, attachment = self._member.ownership()
        self._arrivals.discard(OWNER_REQUEST)
        keys = [attachment.names.owner_requests, attachment.names.epoch]
        for record in self._member.server.run(scripts.TAKE_OWNER_REQUESTS, keys, writer.table.epoch):
            number = record[:_ID_BYTES]
            request = self._reveal(_SEALED_REQUEST + number, record[_ID_BYTES:])
            if request is not None:
                yield number, request

    def reply(self, number: bytes, content: bytes) -> None:
        """Reply to a request."""
        key = self._member.attachment().names.reply + number.hex().encode()
        record = b"".join(self._sealer.protect(b"reply" + number, content))
        self._member.server.command(key, "SET", key, record, "PX", int(REPLY_SECONDS * 1000))
