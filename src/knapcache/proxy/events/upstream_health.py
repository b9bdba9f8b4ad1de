"""Health of the upstreams, from the requests of all processes.

calls     every call, retries included
errors    calls without a complete response, or with a status of 500 or more
failing   from a request that the upstream failed until one that it answered with a status below 400. A request whose
          retry was answered is no failure
failing_now   it is failing, and its last failure is younger than RECENT seconds or it is open. Without requests since,
          its present state is not known: the page and /healthz report none

A failure is a call without a complete response, or a status of 500 or more. With a key of the proxy's own it is also
401, 403 or 429: then it serves no caller. With callers' keys these statuses concern one caller. Other statuses, such as
400, neither fail an upstream nor show that it serves requests again.

health    healthy, open or half-open: whether groups send requests to it. The process that has called it decides that
          by several failures (upstream/health.py), and its events say so. After one failed request an upstream is
          failing, and still healthy. With several processes, the last one that has called it counts

The first failure writes one log line, and the recovery another one. For QUIET seconds after a recovery was logged, a
new failure and its recovery write no lines: an upstream that fails every tenth request would fill the log. If it still
fails after that time, the line is written then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from knapcache.proxy.events.events import MAX_TEXT, Event, UpstreamTry
from knapcache.proxy.settings.endpoints import UpstreamSettings, has_own_credential
from knapcache.units import counted

log = logging.getLogger("knapcache.serve")

QUIET = 60.0
RECENT = 60.0
"""Seconds for which a failure is reported as the present state."""
HEALTH_STATES = ("healthy", "open", "half-open")
REJECTED = (401, 403, 429)
"""Statuses that fail an upstream if the key is the proxy's."""
MAX_REASON = 4 * MAX_TEXT
"""Characters of the reason of a failure. Longer ones are cut off."""
WORDS = {429: "rate limit or quota exceeded", 529: "overloaded"}


Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Time = Annotated[float, Field(ge=0.0, lt=1e11)]


class UpstreamStatus(BaseModel):
    """Calls to one upstream, by all processes."""

    # In the status of another proxy (shared_documents.py), names that this version does not know are ignored.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False, str_max_length=MAX_REASON)

    name: str
    state: Literal["ok", "failing"]
    calls: Count
    errors: Count
    failing_since: Annotated[Time | None, Field(description="Unix time.")]
    reason: Annotated[str, Field(description="Why it fails, in plain words.")]
    failed: Annotated[Count, Field(description="Requests that it has failed since.")]
    last_failure: Annotated[Time | None, Field(description="Unix time of the last of them.")] = None
    failing_now: Annotated[
        bool, Field(description="failing, and the last failure is a minute old at most or it is open.")
    ] = False
    fallback: Annotated[str, Field(description="The upstream that answered the last of them; empty: none did.")] = ""
    health: Annotated[
        Literal["healthy", "open", "half-open"],
        Field(description="open: routes send requests to another upstream; half-open: the next request is a probe."),
    ] = "healthy"
    open_until: Annotated[Time | None, Field(description="Unix time of the next probe; null: healthy.")] = None


class UpstreamState:
    """Calls of one upstream, and whether it fails."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.name = settings.name
        self._own_credential = has_own_credential(settings)
        self._key = f"the key in {settings.key_env}" if settings.key_env else "the key in headers"
        self.calls = self.errors = 0
        self.failing_since: float | None = None
        """Unix time of the first failed request; None: it does not fail."""
        self.reason = ""
        self.failed = 0
        """Requests that it has failed since then."""
        self.last_failure: float | None = None
        """Unix time of the last of them."""
        self.fallback = ""
        """The upstream that has answered the last request that this one failed; empty: none has."""
        self._open_until = 0.0
        self._recovered = float("-inf")
        self._logged = False

    def count(self, event: Event) -> None:
        """Count the calls of one request, and its failure or its answer."""
        self._count(event.attempts, event.error, event.open_until, event.time + event.seconds, "")

    def count_tried(self, tried: UpstreamTry, event: Event) -> None:
        """Count the calls of a request that another upstream has answered, or failed, too."""
        answered = "" if event.error else event.upstream
        self._count(tried.attempts, tried.error, tried.open_until, event.time + event.seconds, answered)

    def _count(self, attempts: tuple[int, ...], error: str, open_until: float, now: float, answered: str) -> None:
        """answered: the upstream that has answered in its place; empty: none."""
        for status in attempts:
            self.calls += 1
            self.errors += status == 0 or status >= 500
        if error and attempts and 0 < attempts[-1] < 500:
            self.errors += 1  # the answer began, and broke off
        if attempts:
            self._open_until = open_until
        if reason := self._failure(attempts, error):
            self._fail(reason, now, answered)
        elif attempts and 0 < attempts[-1] < 400 and self.failing_since is not None:
            self._recover(now)

    def _failure(self, attempts: tuple[int, ...], error: str) -> str:
        """Return why the upstream failed a request; empty if it did not."""
        if error or not attempts:
            return error
        status = attempts[-1]
        if status == 0:
            return "no response"
        if self._own_credential and status in REJECTED:
            return f"status {status}: {WORDS.get(status) or f'it rejects {self._key}'}"
        return f"status {status}: {status_words(status)}" if status >= 500 else ""

    def _fail(self, reason: str, now: float, answered: str) -> None:
        if self.failing_since is None:
            self.failing_since, self.failed = now, 0
        self.failed += 1
        self.last_failure = now
        self.reason, self.fallback = reason[:MAX_REASON], answered
        if not self._logged and now - self._recovered >= QUIET:
            self._logged = True
            effect = f"{answered} answers" if answered else "Requests that need it get an error"
            log.warning("upstream %s fails: %s. %s; cached answers are served.", self.name, reason, effect)

    def _recover(self, now: float) -> None:
        assert self.failing_since is not None
        if self._logged:
            requests = counted(self.failed, "request")
            seconds = max(0.0, now - self.failing_since)
            log.warning("upstream %s answers again: it failed %s in %.1f s.", self.name, requests, seconds)
            self._recovered = now
        self.failing_since = self.last_failure = None
        self.reason, self.fallback, self._logged = "", "", False

    def report(self) -> dict[str, Any]:
        """Return the fields of its `UpstreamStatus`."""
        until = self._open_until
        row = {
            "name": self.name,
            "state": "ok" if self.failing_since is None else "failing",
            "calls": self.calls,
            "errors": self.errors,
            "failing_since": self.failing_since,
            "reason": self.reason,
            "failed": self.failed if self.failing_since is not None else 0,
            "last_failure": self.last_failure,
            "fallback": self.fallback,
            "health": "healthy" if not until else "open" if until > time.time() else "half-open",
            "open_until": until or None,
        }
        return row | {"failing_now": fails_now(row)}


class UpstreamHealth:
    """States of the configured upstreams."""

    def __init__(self, upstreams: Iterable[UpstreamSettings]) -> None:
        self._upstreams = {settings.name: UpstreamState(settings) for settings in upstreams}

    def consume(self, events: Sequence[Event]) -> None:
        for event in events:
            for tried in event.tried:
                if (state := self._upstreams.get(tried.upstream)) is not None:
                    state.count_tried(tried, event)
            if (event.attempts or event.error) and (state := self._upstreams.get(event.upstream)) is not None:
                state.count(event)

    def report(self) -> list[dict[str, Any]]:
        """Return one row for each upstream, in the order of the settings."""
        return [state.report() for state in self._upstreams.values()]


def fails_now(row: Mapping[str, Any]) -> bool:
    """Return whether the row of a failing upstream says what is now: a failure of the last minute, or it is open."""
    recent = row["last_failure"] is not None and time.time() - row["last_failure"] < RECENT
    return bool(row["state"] == "failing" and (recent or row["health"] == "open"))


def status_words(status: int) -> str:
    """Return the name of a status, in lower case."""
    try:
        return WORDS.get(status) or HTTPStatus(status).phrase.lower()
    except ValueError:
        return "an error of the upstream"
