"""What happened, request by request, for all who want to know: metrics, the request log, history, the page.

The request that is being served writes one line into the journal, and that is all it waits for: an append of less than
a microsecond. Those who want to know are told of many lines at once, a few times a second, or when somebody asks them.

    Invariant: the journal is bounded. Where nobody listens for too long, the newest lines are lost, and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

ROOM = 100_000
"""Lines that may wait: some seconds of the fastest traffic."""
PAUSE = 0.25
"""Seconds between two deliveries."""


class Event(NamedTuple):
    """One request, when it was over."""

    time: float
    """When it came, Unix time."""
    endpoint: str
    """As `knapcache.model.Endpoint` spells it; empty for what passes through."""
    model: str
    tenant: str
    """The caller's name; never a credential."""
    outcome: str
    """hit, miss, coalesced, stale: answered. bypass: sent without a key. pass: not ours to cache. failed, refused."""
    status: int
    """As the caller saw it; 499 where the caller had left."""
    seconds: float
    """From the first byte in to the last byte out."""
    ttfb: float
    """The same, to the first byte out."""
    stream: bool
    key: str = ""
    """The key's digest in hex; empty where there is none."""
    size: int = 0
    """Room that the answer takes in the cache, in bytes; 0 where it may not be kept."""
    cost: float = 0.0
    """What the answer cost, or had cost when it was paid for, in the policy's unit."""
    usd: float | None = None
    """The same in dollars, where known."""
    upstream_seconds: float = 0.0
    """Seconds that the provider took for it, or had taken."""
    upstream: str = ""
    """The name of the upstream that was asked; empty where none was."""
    trace: str = ""
    """The caller's `traceparent` header, as it came; empty where there was none."""

    @property
    def saved(self) -> bool:
        """Whether the answer came without being paid for."""
        return self.outcome in ("hit", "coalesced", "stale")


Listener = Callable[[Sequence[Event]], None]


class EventBuffer:
    """Lines in their order, and those who are told of them. `tell` and listeners run on the event loop's thread."""

    def __init__(self) -> None:
        self._lines: deque[Event] = deque()
        self._listeners: list[Listener] = []
        self.lost = 0

    def write(self, event: Event) -> None:
        """A request is over."""
        if len(self._lines) < ROOM:
            self._lines.append(event)
        else:
            self.lost += 1

    def listen(self, listener: Listener) -> None:
        """From now on this one is told, too. It must be quick, and must not raise."""
        self._listeners.append(listener)

    def tell(self) -> None:
        """Tell everybody of what has happened since the last time."""
        lines = self._lines
        if not lines:
            return
        told = [lines.popleft() for _ in range(len(lines))]
        for listener in self._listeners:
            listener(told)

    async def deliver(self) -> None:
        """Tell, again and again, until cancelled."""
        try:
            while True:
                await asyncio.sleep(PAUSE)
                self.tell()
        finally:
            self.tell()
