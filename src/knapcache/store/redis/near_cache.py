"""The near cache: recently read entries in the memory of this process, invalidated by the server.

Scripts publish the names of what they remove. A thread subscribes to them and discards those entries. The same thread
receives messages of arrivals, for the owner: shards with entries to collect, and requests (layout.py). It also sends a
PING every PING_SECONDS. Without any message for SILENCE_SECONDS the subscription counts as lost: the near cache is
emptied, and stays empty until the next subscription is confirmed. So an entry that was removed in the server is served
no longer than SILENCE_SECONDS, also when the connection fails silently.

    Invariant: an entry is here only if it was read from the server while the subscription was confirmed, and no message
    that names it has arrived since (`MemoryTier.version`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from knapcache.errors import StoreError
from knapcache.store.base import KEY_BYTES, Entry
from knapcache.store.memory_tier import MemoryTier
from knapcache.store.redis.server import RedisServer

PING_SECONDS = 0.2
SILENCE_SECONDS = 0.8
RETRY_SECONDS = 0.25


class NearCache:
    """At most `capacity` bytes of entries.

    channels     of removed entries and of arrivals; empty: nothing is subscribed to, and no entry is kept
    name         returns the name of a key in the server
    on_arrival   called with each message of an arrival
    """

    def __init__(
        self,
        server: RedisServer,
        channels: tuple[bytes, ...] = (),
        capacity: int = 0,
        name: Callable[[bytes], bytes] | None = None,
        on_arrival: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._server, self._channels, self._name, self._on_arrival = server, channels, name, on_arrival
        self._tier = MemoryTier(capacity)
        self._heard = 0.0  # when the last message arrived; 0: not subscribed
        self.lost = 0
        """How often the subscription was lost."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if channels:
            self._thread = threading.Thread(target=self._run, name="knapcache-near", daemon=True)
            self._thread.start()

    @property
    def subscribed(self) -> bool:
        return time.monotonic() - self._heard < SILENCE_SECONDS

    @property
    def version(self) -> int:
        """To be read before an entry is read from the server, and given to `add`."""
        return self._tier.version

    def get(self, key: bytes) -> Entry | None:
        if self._name is None:
            entry = self._tier.get(key)
        else:
            entry = self._tier.get(self._name(key))
            entry = None if entry is None else entry._replace(key=key)
        return entry if entry is None or self.subscribed else None

    def add(self, entry: Entry, version: int) -> None:
        if self.subscribed:
            self._tier.add(entry if self._name is None else entry._replace(key=self._name(entry.key)), version)

    def discard(self, names: list[bytes]) -> None:
        self._tier.discard(names)

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._lose()

    def _lose(self) -> None:
        self._heard = 0.0
        self._tier.clear()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                subscription = self._server.client().pubsub()
            except StoreError:
                self._stopped.wait(RETRY_SECONDS)
                continue
            try:
                self._listen(subscription)
            except Exception:  # noqa: BLE001,RUF100 - whatever ends the thread would leave stale entries
                self.lost += 1
            finally:
                self._lose()
                _close(subscription)
            self._stopped.wait(RETRY_SECONDS)

    def _listen(self, subscription: Any) -> None:
        subscription.subscribe(*self._channels)
        confirmed, pinged = False, time.monotonic()
        while not self._stopped.is_set():
            message = subscription.get_message(timeout=PING_SECONDS / 2)
            now = time.monotonic()
            if message is not None:
                if message["type"] == "subscribe":
                    self._tier.clear()
                    confirmed = True
                elif message["type"] == "message" and message["channel"] == self._channels[0]:
                    names = message["data"]
                    self._tier.discard([names[k : k + KEY_BYTES] for k in range(0, len(names), KEY_BYTES)])
                elif message["type"] == "message":
                    self._on_arrival(message["data"])
                if confirmed:
                    self._heard = now
            elif (self._heard or pinged) + SILENCE_SECONDS < now:
                raise TimeoutError("the server sent nothing on the subscription")
            if now - pinged >= PING_SECONDS:
                pinged = now if confirmed else pinged
                subscription.ping()


def _close(subscription: Any) -> None:
    try:
        subscription.close()
    except Exception:  # noqa: BLE001,RUF100 - the connection is broken, and nothing is left to do
        return
