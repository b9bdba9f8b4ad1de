"""The frames of one process: which model answers a request, as the log of labels says.

State is used on the event loop's thread only. The log is read and written in a thread of its own. A label counts when
it was read back from the log, so that all processes count all labels in one order.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from knapcache.errors import InvalidInput, StoreError
from knapcache.features.swap.checks import asks_logprobs
from knapcache.features.swap.event import SwapKind
from knapcache.features.swap.frame import Choice
from knapcache.features.swap.frames import Frames
from knapcache.features.swap.judge import INSTRUCTIONS
from knapcache.features.swap.log import MAX_LABELS, LabelPosition, Labels, SwapLabel
from knapcache.features.swap.request import SwapRequest
from knapcache.features.swap.settings import SwapRouteSettings
from knapcache.model import Endpoint
from knapcache.price.meter import Meter
from knapcache.proxy.features import ProxyContext
from knapcache.proxy.hooks import Substitute
from knapcache.proxy.upstream.own_calls import WordModel
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.proxy.upstream.upstreams import Upstreams
from knapcache.threads import DeadlinePool

log = logging.getLogger("knapcache.serve")

READ_SECONDS = 1.0
"""How soon a label of another process counts."""
REFUSED_SECONDS = 3600.0
"""How long a cheaper model that has refused to return log probabilities is not asked for them."""


class SwapRoute:
    """A route with swap, and what serves its cheaper model."""

    def __init__(self, settings: SwapRouteSettings, upstreams: Upstreams, meter: Meter) -> None:
        """Raises InvalidInput if no upstream may serve one of its models."""
        assert settings.swap_model is not None
        self.settings, self.model = settings, settings.swap_model
        self.upstream = own_upstream(upstreams, self.model, f"route {settings.name}: swap_model")
        group = upstreams.groups.get(settings.name)
        self.asked_model = None if group is None else group.members[0].model
        """The name of the asked model at its upstream; None: that of the request."""
        self.judge: WordModel | None = None
        if settings.swap_judge is not None:
            judge = own_upstream(upstreams, settings.swap_judge, f"route {settings.name}: swap_judge")
            self.judge = WordModel(judge, settings.swap_judge, INSTRUCTIONS, meter)
        self._asks_logprobs_from = 0.0
        """Monotonic time."""

    def asks_logprobs(self, endpoint: Endpoint) -> bool:
        """Return whether the cheaper model is asked for log probabilities, for a check."""
        return asks_logprobs(self.settings.swap_escalate, endpoint) and time.monotonic() >= self._asks_logprobs_from

    def refuse_logprobs(self) -> None:
        """Take note that the cheaper model refuses the option. Otherwise each of its requests would be sent twice."""
        self._asks_logprobs_from = time.monotonic() + REFUSED_SECONDS

    @property
    def labelled_by(self) -> tuple[str, str, tuple[str, ...]]:
        """Settings on which labels depend."""
        return self.model, self.settings.swap_judge or "", self.settings.swap_escalate

    def accepts(self, asked: Upstream) -> bool:
        """Return whether requests to this upstream may be swapped.

        The proxy's key must not pay for a caller whose own key nobody has verified. And a body has the form of one kind
        of provider.
        """
        return has_key(asked) and asked.settings.kind == self.upstream.settings.kind

    def is_asked(self, asked: Upstream, model: str) -> bool:
        """Return whether this upstream is asked for the cheaper model itself."""
        return (asked.settings.url, self.asked_model or model) == (self.upstream.settings.url, self.model)


def own_upstream(upstreams: Upstreams, model: str, what: str) -> Upstream:
    """Return the upstream that serves a model with credentials of the settings, or raise InvalidInput."""
    found = upstreams.for_model(model)
    if found is None:
        raise InvalidInput(f"{what} is {model!r}, and no upstream serves that model")
    if not has_key(found):
        raise InvalidInput(f"{what} is {model!r}, and upstream {found.name} has no key of its own (key_env)")
    return found


def has_key(upstream: Upstream) -> bool:
    """Return whether an upstream needs no key of a caller."""
    return upstream.own_credential or upstream.settings.local


class SwapDecision(NamedTuple):
    """What is done with a request."""

    kind: SwapKind
    frame: str = ""
    reason: str = ""


class SwapTier:
    """All frames."""

    def __init__(self, context: ProxyContext, open_labels: Callable[[], Labels]) -> None:
        self._context, self._open_labels = context, open_labels
        self.frames = Frames()
        self._labels: Labels | None = None
        self._pool = DeadlinePool("knapcache-swap", threads=1)
        self._position = LabelPosition()
        self._own: set[str] = set()
        """Ids of labels that this process has appended and not read back."""
        self._read_ids: dict[str, None] = {}
        """Ids of the labels that were read, the oldest first: a copy of a record is no second label."""
        self._reading = asyncio.Lock()
        self.notifies = False
        """Whether this process reports changes of state: one of all processes does."""
        self.failure = "it has not read its labels yet"
        """Why nothing is swapped; empty: it may be."""
        self.routes = {
            route.name: SwapRoute(route, context.upstreams, context.meter)
            for route in context.settings.route
            if isinstance(route, SwapRouteSettings) and route.swap != "off"
        }

    async def run(self) -> None:
        """Read labels again and again."""
        while True:
            await self.read()
            await asyncio.sleep(READ_SECONDS)

    async def read(self) -> None:
        """Read the labels that were appended since the last time."""
        async with self._reading:
            try:
                while True:
                    found, position = await self._pool.call(self._read)
                    if position.epoch != self._position.epoch:
                        self.frames.clear()
                        self._read_ids.clear()
                    self._position = position
                    for record in found:
                        self._apply(record)
                    if not found:
                        break
                self.failure = ""
            except StoreError as error:
                if self.failure != str(error):
                    log.warning("Nothing is swapped and no label is stored: %s", error)
                self.failure = str(error)

    def _read(self) -> tuple[list[SwapLabel], LabelPosition]:
        if self._labels is None:
            self._labels = self._open_labels()
        return self._labels.read(self._position)

    def _apply(self, record: SwapLabel) -> None:
        own = record.id in self._own
        self._own.discard(record.id)
        if record.id in self._read_ids:
            return
        self._read_ids[record.id] = None
        if len(self._read_ids) > MAX_LABELS:
            del self._read_ids[next(iter(self._read_ids))]
        route = self.routes.get(record.route)
        if route is None or (record.swap_model, record.judge, record.checks) != route.labelled_by:
            return  # of earlier settings
        frame = self.frames.for_label(record.frame, record.tenant, route.settings, record.model)
        if frame is None:
            return
        before = frame.decision.certificate.state
        frame.add(record, own=own)
        after = frame.decision.certificate.state
        if before != after and self.notifies and not self.failure:  # not while old labels are read
            log.info("Swap: frame %s of route %s is %s now", record.frame[:16], record.route, after)
            if before == "certified":
                self._context.notify("swap_stopped", tenant=record.tenant, route=record.route)

    async def append(self, record: SwapLabel) -> None:
        """Append a label, and wait until it counts here."""
        self._own.add(record.id)
        try:
            await self._pool.call(partial(self._append, record))
        except StoreError as error:
            self._own.discard(record.id)
            log.warning("A label was lost: %s", error)
        await self.read()

    def _append(self, record: SwapLabel) -> None:
        if self._labels is None:
            self._labels = self._open_labels()
        self._labels.append(record)

    def decide(
        self, route: SwapRoute, tenant: str, endpoint: Endpoint, model: str, request: SwapRequest
    ) -> SwapDecision:
        """Return what to do with a request, if no answer of the asked model to it or to its first turn is stored."""
        name = frame_name(route, tenant, endpoint, model, request.frame)
        if self.failure:
            return SwapDecision("asked", name, self.failure)
        frame = self.frames.for_request(name, tenant, route.settings, model)
        if frame is None:
            return SwapDecision("asked", reason="too many frames")
        if request.opening is not None:  # no label: the earlier answers are those of one of the models
            choice: Choice = "swap" if frame.certified else "asked"
        else:
            choice = frame.decision.choose(random.random())
        if choice == "swap" and route.settings.swap != "on":
            return SwapDecision("asked", name, "shadow")
        return SwapDecision(choice, name)

    def substitute(self, route: SwapRoute, name: str) -> Substitute:
        """Return the cheaper model for a frame that is certified.

        Its answers are entries of this certificate, so one that ended or belongs to another frame serves none of them.
        """
        frame = self.frames.get(name)
        tries = 0 if frame is None else frame.decision.certificate.tries
        terms = hashlib.sha256(repr((name, tries, self._position.epoch)).encode()).hexdigest()
        return Substitute(route.model, route.upstream, terms)

    async def close(self) -> None:
        """Release the log."""
        if self._labels is not None:
            await self._pool.call(self._labels.close)
        self._pool.close()


def frame_name(route: SwapRoute, tenant: str, endpoint: Endpoint, model: str, frame: bytes) -> str:
    """Return the digest of a frame: no label of another tenant, route, model, judge or check counts for it."""
    url = route.upstream.settings.url
    parts = (tenant, route.settings.name, endpoint.value, model, route.asked_model, url, *route.labelled_by)
    return hashlib.sha256(repr(parts).encode() + frame).hexdigest()
