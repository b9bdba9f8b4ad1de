"""The semantic tier of one process: runs the matcher in a thread, for the event loop.

A request waits for a match only where something is certified and may be served. Elsewhere the upstream is asked at
once, and the search goes on beside it. A tier that is busy, slow or broken serves nothing, and no request fails
because of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knapcache.errors import InvalidInput, MissingExtra, StoreError, UpstreamFailed
from knapcache.features.semantic.event import SemanticEvent
from knapcache.features.semantic.freshness import fingerprint_of
from knapcache.features.semantic.learner import Label
from knapcache.features.semantic.matcher import Asked, Found, Matcher
from knapcache.features.semantic.settings import SemanticSettings
from knapcache.proxy.settings import Settings
from knapcache.threads import DeadlinePool

log = logging.getLogger("knapcache.serve")

MAX_WAITING, MAX_SCOPE_WAITING = 128, 64
"""Questions that wait for the thread, and those of one scope: no tenant fills the queue alone. Further ones are not
looked at."""
ROUTE_MARK = "/"
"""Before the name of a route in a scope. No name of a tenant has it."""
STARTING = "starting"
FOLLOW_SECONDS = 1.0
"""Between two looks at the log."""
READY_SECONDS = 60.0
"""How long the proxy is not ready at most because the tier is starting."""
REPORT_SECONDS = 2.0
"""How long the thread may take for a report: the numbers of the proxy do not wait for it."""
RETRY_SECONDS = 30.0
"""Between two attempts to reach an embedding API at the start."""


class SemanticTier:
    """All methods run on the event loop's thread. open_matcher: loads the model and opens the log, for these errors."""

    def __init__(self, settings: Settings, open_matcher: Callable[[Mapping[str, float]], Matcher]) -> None:
        self._open_matcher = open_matcher
        self._matcher: Matcher | None = None
        """None: the model is not loaded yet, or cannot be."""
        self._pool = DeadlinePool("knapcache-semantic", threads=1)
        self._waiting: Counter[str] = Counter()
        """Questions that wait for the thread, by scope."""
        self._failure = STARTING
        self._reported: list[dict[str, Any]] = []
        self._started_at = time.monotonic()
        self.sweeps = False
        """Whether this process removes questions whose entries are gone, and writes the index."""
        assert isinstance(settings, SemanticSettings)
        self.show_content, self.max_temperature = settings.show_content, settings.semantic_temperature
        self._modes, self._errors = scopes(settings)
        self._upstreams = upstreams_of(settings)
        self._restart_due = False
        """Whether the upstreams have changed, and the certificates have not been started anew since."""

    def configure(self, settings: Settings) -> None:
        """Take modes and errors from changed settings."""
        self._modes, errors = scopes(settings)
        upstreams = upstreams_of(settings)
        self._restart_due |= upstreams != self._upstreams
        self._upstreams = upstreams
        self._restart_if_due()
        if errors != self._errors:
            self._errors = errors
            if self._matcher is not None:
                self._pool.submit(partial(self._matcher.state.configure, errors))

    def _restart_if_due(self) -> None:
        """Start the certificates anew after a change of the upstreams, as soon as the log is open."""
        if self._restart_due and self._matcher is not None:
            self._restart_due = False
            self._pool.submit(partial(self._matcher.state.restart, list(self._errors)))

    @property
    def starting(self) -> bool:
        """Whether the model and the labels are being loaded. Not after a failure, and for READY_SECONDS at most."""
        return self._failure == STARTING and time.monotonic() - self._started_at < READY_SECONDS

    async def run(self) -> None:
        """Load the model, and follow the log until cancelled."""
        self._started_at = time.monotonic()
        try:
            matcher = self._matcher = await self._open()
        except (InvalidInput, MissingExtra, StoreError, OSError) as error:
            self._failure = str(error)
            log.error("Semantic tier not started: %s", error)
            return
        self._failure = ""
        self._restart_if_due()
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            await self._pool.call(partial(matcher.maintain, sweep=self.sweeps))

    async def _open(self) -> Matcher:
        """Load the model. An embedding API that does not answer is tried again until it does."""
        while True:
            try:
                return await self._pool.call(partial(self._open_matcher, self._errors))
            except UpstreamFailed as error:
                if self._failure != str(error):
                    log.error("Semantic tier not started yet: %s", error)
                self._failure = str(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def close(self) -> None:
        """Write the index, and release the log. `run` has been cancelled."""
        if self._matcher is not None:
            if self.sweeps:
                await self._pool.call(self._matcher.state.save)
            await self._pool.call(self._matcher.close)
        self._pool.close()

    # Requests.

    def scope(self, tenant: str, route: str = "") -> str:
        """Return the scope of a request: the name of its tenant, or empty if there are no tenants.

        route   that of a request whose route has its own mode or error: it has a scope of its own
        """
        scope = tenant if tenant in self._modes else ""
        return route_scope(scope, route) if route and route_scope(scope, route) in self._modes else scope

    def mode(self, scope: str) -> str:
        return self._modes.get(scope, "off")

    def may_serve(self, scope: str) -> bool:
        """Return whether a level is certified, so that a request should wait for `find`."""
        return self._matcher is not None and self._matcher.state.levels.get(scope, -1) >= 0 and self.mode(scope) == "on"

    async def find(self, asked: Asked) -> Found:
        """Return what there is for a question."""
        if self._matcher is None:
            return Found("failed", "not ready")
        if self._waiting[asked.scope] >= MAX_SCOPE_WAITING or self._waiting.total() >= MAX_WAITING:
            return Found("failed", "busy")
        self._waiting[asked.scope] += 1
        try:
            return await self._pool.call(partial(self._matcher.find, asked))
        except RuntimeError:  # the pool is closed
            return Found("failed", "closing")
        finally:
            self._waiting[asked.scope] -= 1

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return normalised vectors. For the judge, which calls it in a thread of its own."""
        if self._matcher is None:
            raise InvalidInput("the embedding model is not loaded")
        return self._matcher.embedder.embed(texts)

    def add_question(self, asked: Asked, found: Found, payload: bytes) -> None:
        """Add a question whose answer was stored, for later ones."""
        if found.vector and self._matcher is not None:
            add, key = self._matcher.add_question, asked.request.key.digest
            fingerprint = fingerprint_of(payload)
            self._pool.submit(partial(add, found.frame, key, found.vector, asked.scope, fingerprint))

    def add_label(self, scope: str, found: Found, label: Label, rung: str) -> None:
        """Add the label of a match, here and for all processes."""
        if self._matcher is not None:
            self._pool.submit(partial(self._matcher.add_label, scope, found, label, rung))

    # For people.

    async def report(self) -> list[dict[str, Any]]:
        """Return the state of each scope whose mode is not off. If the thread is too busy, the last one."""
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                self._reported = await self._report()
        except TimeoutError:
            return [one | {"failure": one["failure"] or "it is too busy to answer"} for one in self._reported]
        return self._reported

    async def _report(self) -> list[dict[str, Any]]:
        matcher, scopes = self._matcher, [scope for scope, mode in self._modes.items() if mode != "off"]
        found = {} if matcher is None else await self._pool.call(partial(matcher.state.report, scopes))
        failure = self._failure or ("" if matcher is None else matcher.state.failure)
        return [
            {
                "scope": scope,
                "mode": self._modes[scope],
                "error": self._errors[scope],
                "failure": failure,
                **found.get(scope, {}),
            }
            for scope in scopes
        ]

    async def feedback(self, event: SemanticEvent) -> None:
        """Add the label of a match that a person has marked as wrong, and wait until it counts in this process."""
        if self._matcher is None:
            raise InvalidInput(f"the semantic tier does not work: {self._failure}")
        await self._pool.call(partial(self._matcher.state.feedback, event))

    async def purged(self) -> None:
        """Remove the questions whose entries are gone, at once, and labels that weigh. Raises StoreError."""
        if self._matcher is not None:
            await self._pool.call(self._matcher.purged)

    async def reset(self, scope: str) -> None:
        """Forget all labels of a scope, and wait until that counts in this process."""
        if self._matcher is None:
            raise InvalidInput(f"the semantic tier does not work: {self._failure}")
        await self._pool.call(partial(self._matcher.state.reset, scope))


def scopes(settings: Settings) -> tuple[dict[str, str], dict[str, float]]:
    """Return mode and allowed error of each scope.

    There is one for each tenant, or one for all callers if there are no tenants; and the same again for each route that
    has its own mode or error.
    """
    assert isinstance(settings, SemanticSettings)
    modes: dict[str, str] = {"": settings.semantic}
    errors = {"": settings.semantic_error}
    if settings.tenants:
        modes = {tenant.name: tenant.semantic or settings.semantic for tenant in settings.tenants}
        errors = {tenant.name: tenant.semantic_error or settings.semantic_error for tenant in settings.tenants}
    for route in settings.route:
        if route.semantic is not None or route.semantic_error is not None:
            for scope in [scope for scope in modes if ROUTE_MARK not in scope]:
                modes[route_scope(scope, route.name)] = route.semantic or modes[scope]
                errors[route_scope(scope, route.name)] = route.semantic_error or errors[scope]
    return modes, errors


def upstreams_of(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return names and addresses of the upstreams. Labels are about the answers of these."""
    return tuple((upstream.name, str(upstream.url)) for upstream in settings.upstreams)


def route_scope(scope: str, route: str) -> str:
    return f"{scope}{ROUTE_MARK}{route}"
