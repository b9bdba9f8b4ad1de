"""Exchange between the readers and the owner of a store, through the server: answers, hit counts and requests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping

from knapcache.store.base import Entry
from knapcache.store.redis import counts, layout, owner_requests
from knapcache.store.redis.membership import Membership
from knapcache.store.redis.urls import MAX_SHARDS
from knapcache.store.redis.writer import QueuedChange
from knapcache.store.sqlite.rows import Sealer

OWNER_REQUEST = b"q"
"""The message of a request to the owner; other arrivals name a shard."""


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

    # Answers.

    def collect(self) -> Iterator[Entry]:
        writer, attachment = self._member.ownership()
        if not_admitted := attachment.nursery.take_not_admitted():
            change = QueuedChange()
            change.drop = not_admitted
            writer.submit(change)
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

    def put_counts(self, new_counts: Mapping[bytes, int], /) -> None:
        names = self._member.attachment().names
        if not counts.put_counts(self._member.server, names, self.layout, self._sealer, new_counts):
            self._counters["counts_lost"] += 1

    def take_counts(self) -> Mapping[bytes, int]:
        writer, attachment = self._member.ownership()
        return counts.take_counts(self._member.server, attachment.names, self._sealer, writer.table.epoch)

    # Requests to the owner.

    def ask(self, request: bytes, seconds: float = owner_requests.REPLY_SECONDS) -> bytes:
        """Return the owner's reply; NotOwner if there is none within `seconds`."""
        names = self._member.attachment().names
        return owner_requests.ask(self._member.server, names, self._sealer, request, seconds)

    def take_owner_requests(self) -> Iterator[tuple[bytes, bytes]]:
        """Take the requests that wait for the owner: id and content of each."""
        writer, attachment = self._member.ownership()
        self._arrivals.discard(OWNER_REQUEST)
        return owner_requests.take(self._member.server, attachment.names, self._sealer, writer.table.epoch)

    def reply(self, number: bytes, content: bytes) -> None:
        """Reply to a request."""
        owner_requests.reply(self._member.server, self._member.attachment().names, self._sealer, number, content)
