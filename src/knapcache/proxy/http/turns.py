"""Let tasks that compute for long take turns on the event loop, so that a new request waits for one of them only.

`asyncio.sleep(0)` lets every other task run once. With twenty tasks that compute for a millisecond each, a request that
arrives waits for twenty milliseconds. So such tasks take turns: in each round of the event loop, one of them goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Pauses of the tasks of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def pause(self) -> None:
        """Wait for the next turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._waiting[0].done():  # its task was cancelled
            self._waiting.popleft()
        if self._waiting:
            self._waiting.popleft().set_result(None)
            loop.call_soon(self._next, loop)
        else:
            self._scheduled = False
