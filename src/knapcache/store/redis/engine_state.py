"""The state of a server as one process sees it. The log, the admin API, the page and the metrics all use it.

ok          every node that was asked answers, and takes writes
read-only   every node answers, and one takes no writes, such as at its maxmemory: stored answers are served, new ones
            are not stored, evictions are made
away        a node does not answer, or the store in the server cannot be used: requests for its answers go upstream
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

log = logging.getLogger("knapcache.store")

OK, READ_ONLY, AWAY = "ok", "read-only", "away"


class EngineState(NamedTuple):
    """A state, since when it holds (Unix time; None for ok), and why."""

    state: str = OK
    since: float | None = None
    reason: str = ""


CLOSED = EngineState(AWAY, None, "the store is closed")


class ServerWatch:
    """Remembers the state, and logs its changes."""

    def __init__(self) -> None:
        self.current = EngineState()

    def update(self, away: str | None, read_only: str | None) -> None:
        """Set the state. away, read_only: why a node does not answer or refuses writes; None: none does."""
        before, now = self.current, time.time()
        state = AWAY if away is not None else READ_ONLY if read_only is not None else OK
        reason = ((away if away is not None else read_only) or "").rstrip(".")
        if state == before.state:
            self.current = before._replace(reason=reason)
            return
        self.current = EngineState(state, None if state == OK else now, reason)
        if state == AWAY:
            log.warning("The shared store does not answer: %s. Requests for its answers go to the upstreams.", reason)
        elif state == READ_ONLY:
            log.warning("The shared store takes no writes: %s. It serves answers, and stores no new ones.", reason)
        else:
            log.warning("The shared store is read and written again, after %.1f s.", now - (before.since or now))
