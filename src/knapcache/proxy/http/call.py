"""One request while it is served: its exchange, the calls of its upstream, its response.

If a client disconnects in the middle of a stream, its event has the status 499. It is recorded when the fetch is over,
because only then is its cost known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from knapcache.cache import Answer
from knapcache.cache.values import SimilarMatch
from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import Exchange
from knapcache.exchange.fetched import Fetched, LiveStream
from knapcache.exchange.headers import forwarded_headers, outcome_headers, sandboxed
from knapcache.exchange.stale import StaleAnswer
from knapcache.keys.request import KeyedRequest
from knapcache.price.meter import Meter
from knapcache.proxy.events.events import Event, EventBuffer
from knapcache.proxy.features import Features
from knapcache.proxy.hooks import CallContext, CallRefused, Substitute
from knapcache.proxy.http.access import RequestHead
from knapcache.proxy.http.asgi_request import CLIENT_CLOSED_REQUEST, AsgiRequest, ClientDisconnected, ResponseWriter
from knapcache.proxy.http.call_record import NOTHING, CallRecord, SampledResponse
from knapcache.proxy.http.sending import UpstreamSender
from knapcache.proxy.http.substitution import SubstituteFailed, SubstituteSender
from knapcache.proxy.routing import routed_control
from knapcache.proxy.settings.routes import RouteSettings
from knapcache.proxy.upstream import Pairs
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.proxy.upstream.upstreams import UpstreamGroup, group_of_one
from knapcache.store.base import Entry
from knapcache.threads import DeadlinePool

FAILED = (429, *range(500, 600))
"""Statuses of an upstream that has failed a request."""
ANSWERED_BY, ANSWERED_UNDER = "answered by", "answered under"
"""In the context of requests that another model answers than the asked one: `model` and `terms` of the substitute."""
Fetch = Callable[[Exchange], Awaitable[Fetched | None]]
S = TypeVar("S", bound=UpstreamSender)
MAX_FETCHES = 3
"""How often a request is fetched: a shared call may be refused because of another caller, or fail."""
EVENTS_AT_ONCE = 64
"""Events of a request with many items that are recorded without a pause. One takes up to 0.05 ms."""


class Call:
    """One request while it is served."""

    __slots__ = (
        "_head", "_in_background", "_record", "_request", "_route", "_writer", "exchange", "group", "substituted",
        "upstream",
    )  # fmt: skip

    def __init__(
        self,
        request: AsgiRequest,
        head: RequestHead,
        exchange: Exchange,
        upstream: Upstream,
        model: str,
        events: EventBuffer,
        meter: Meter,
        route: RouteSettings | None = None,
        group: UpstreamGroup | None = None,
        route_name: str = "",
    ) -> None:
        """group: the upstreams that may answer, of which `upstream` is the first; None: no others."""
        self._request, self._head, self.exchange, self.upstream, self._route = request, head, exchange, upstream, route
        name = route_name if route is None else route.name
        self._record = CallRecord(request, head, exchange, upstream.name, model, events, meter, name)
        self._writer: ResponseWriter | None = None
        self.group = group or group_of_one(upstream)
        self.substituted = False
        """Another model answers than the asked one."""
        self._in_background = False
        """The call goes on after the request has ended."""

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return self._record.model

    @property
    def route_name(self) -> str:
        """Name of the route that applies; empty: none does."""
        return self._record.route_name

    def begin(self, features: Features, workers: DeadlinePool) -> Exchange:
        """Return the exchange to fetch, after features were asked what they do for it."""
        exchange, route = self.exchange, self._route
        if route is not None:
            exchange = exchange._replace(control=routed_control(route, exchange.control))
        edits = len(self.group.members) > 1
        if features.of_requests:
            principal = self._head.principal
            self._record.hooks = features.begin(
                CallContext(
                    exchange,
                    self.model,
                    principal.name,
                    principal.credential,
                    self._head.headers,
                    self._request.query,
                    self.upstream,
                    route,
                )
            )
            for each in self._record.hooks:
                edits = edits or each.edits
                if each.finds:
                    exchange = exchange._replace(finder=self)
        if edits:
            self._record.sender = self._sender(UpstreamSender, workers)
            exchange = exchange._replace(marker=self._record.sender)
        return exchange

    async def fetch_substituted(self, exchange: Exchange, fetch: Fetch, workers: DeadlinePool) -> Fetched | None:
        """Fetch the response of a model that a feature lets answer; None: the asked model has to answer."""
        for each in self._record.hooks:
            if each.substitutes and (found := await each.substitute()) is not None:
                break
        else:
            return None
        group, asked_sender = self.group, self._record.sender
        self.group, self.substituted = group.after(found.upstream, found.model), True
        sender = self._record.sender = self._sender(SubstituteSender, workers)
        checks = [hooks.accepts for hooks in self._record.hooks if hooks.checks]
        sender.accepts = (lambda answer: all(accepts(answer) for accepts in checks)) if checks else None
        # No finder: the answer must not be found for a similar request that may not be substituted.
        context = substitute_context(exchange, found)
        substituted = exchange._replace(context=context, finder=None, marker=sender)
        try:
            fetched = await self.fetch(substituted, fetch)
            if fetched is not None and (fetched.status < 400 or exchange.control.only_cached):
                return fetched
            if fetched is not None:
                await fetched.finish()
        except SubstituteFailed:
            pass
        self.group, self.substituted = group, False
        self._record.sender = asked_sender or self._sender(UpstreamSender, workers)
        self._record.sender.add_tried(sender.take_calls())
        for hooks in self._record.hooks:
            hooks.fell_back()
        return None

    @property
    def may_substitute(self) -> bool:
        """Whether a feature may let another model answer. Another upstream has no path of an Azure deployment."""
        return not self._request.deployment and any(each.substitutes for each in self._record.hooks)

    async def find(self, request: KeyedRequest) -> tuple[Entry, SimilarMatch] | None:
        """Return the entry that may answer the request, or None. The finder of the exchange."""
        for hooks in self._record.hooks:
            if hooks.finds and (found := await hooks.find(request)) is not None:
                return found
        return None

    async def fetch(self, exchange: Exchange, fetch: Fetch) -> Fetched | None:
        """Fetch the response; None: the request must be sent without the cache. Raises UpstreamFailed.

        If the upstream fails, and a feature then finds an answer, that is served. A shared call may be refused because
        of another caller. The response to this request must not show that: it is fetched again, and sent on its own if
        it is not answered then.
        """
        for _ in range(MAX_FETCHES):
            try:
                fetched = await fetch(exchange)
            except CallRefused as error:
                if error.concerns(self._head.principal.name):
                    raise
            except UpstreamFailed:
                if not self._finds_after_failure():
                    raise
            else:
                if fetched is None or fetched.status not in FAILED or not self._finds_after_failure():
                    return fetched
                await fetched.finish()
        return None

    def _finds_after_failure(self) -> bool:
        return any(hooks.find_after_failure() for hooks in self._record.hooks)

    async def send(self, content: bytes) -> SampledResponse:
        """Send the request upstream, with this body. Raises CallRefused if a feature does not allow it."""
        sender = self._record.sender
        if sender is None:
            sender = self._record.sender = self._sender(UpstreamSender)
        for hooks in self._record.hooks:
            await hooks.before_call(len(content))
        self._record.begin_call()
        return self._record.answered(await sender.send(content))

    def _sender(self, kind: type[S], workers: DeadlinePool | None = None) -> S:
        return kind(
            self.group,
            self._head,
            self.exchange,
            self.model,
            self._request.query,
            self._record.hooks,
            workers,
            self._request.deployment,
        )

    async def respond(self, fetched: Fetched, abandoned_timeout: float, pause: Callable[[], Awaitable[None]]) -> None:
        """Write the response, store its answer, record the event.

        abandoned_timeout   seconds to finish a stream after its client has disconnected
        pause               called between events of a request with many, to let other requests run
        """
        try:
            status = await self._write(fetched)
        except BaseException:
            await fetched.abort()
            raise
        if status == CLIENT_CLOSED_REQUEST:
            answers = await finish_within(fetched, abandoned_timeout)
        else:
            answers = await fetched.finish()
        background = fetched.refresh if isinstance(fetched, StaleAnswer) else None
        cost = NOTHING if background is not None else self._record.cost(answers, failed=fetched.failed)
        for hooks in self._record.hooks:
            await hooks.answered(answers[0] if answers else None)
        if background is not None:  # its calls belong to the event of this request
            self._in_background = True
            event = self._record.event("stale", status, answers[0])
            background.add_done_callback(lambda task: self._end_refresh(task, event, answers[0]))
            return
        for k, answer in enumerate(answers):
            self._record.append("failed" if fetched.failed else answer.outcome, status, answer, cost)
            if k % EVENTS_AT_ONCE == EVENTS_AT_ONCE - 1:
                await pause()
            cost = NOTHING  # of several embeddings, the first has it
        if not answers:
            too_long = isinstance(fetched, LiveStream) and fetched.overflowed
            self._record.append("miss" if too_long else "failed", status, cost=cost)

    async def _write(self, fetched: Fetched) -> int:
        """Write the response. Return the status for the event."""
        body, sender = fetched.body, self._record.sender
        headers = fetched.headers
        if sender is not None and (not fetched.answers or any(one.outcome == "miss" for one in fetched.answers)):
            headers = [*headers, *sender.headers()]
        if own := self._own_headers():
            headers = [*headers, *own]
        if isinstance(fetched, LiveStream):
            return await self._write_live(headers, fetched.blocks)
        try:
            if isinstance(body, bytes):
                await self._request.respond(fetched.status, headers, body)
                self._record.mark_first_byte()
            else:
                self._record.mark_first_byte()
                await self._request.respond_blocks(fetched.status, headers, body)
        except OSError:
            return CLIENT_CLOSED_REQUEST
        return fetched.status

    def _own_headers(self) -> Pairs:
        """Return the headers of the response that name the route, and those of features."""
        name = self._record.route_name
        headers = [("x-knapcache-route", name)] if name else []
        for hooks in self._record.hooks:
            headers += hooks.response_headers()
        return headers

    async def _write_live(self, headers: Pairs, blocks: AsyncIterator[bytes]) -> int:
        writer = self._writer = self._request.open_writer(200, headers)
        async for block in blocks:
            if writer.disconnected:
                break
            writer.write(block)
            self._record.mark_first_byte()
        else:
            writer.write(b"", more=False)
        await self._request.drain()
        return CLIENT_CLOSED_REQUEST if writer.disconnected else 200

    async def forward(self) -> None:
        """Send the request upstream and its response back, without the cache."""
        response = await self.send(self.exchange.upstream_body(False))
        record, hooks = self._record, self._record.hooks
        try:
            assert record.sender is not None
            own = [*outcome_headers("bypass"), *record.sender.headers(), *self._own_headers()]
            await self._request.send_head(response.status, [*sandboxed(forwarded_headers(response.pairs)), *own])
            for each in hooks:
                each.forwarding(response.headers.get("content-type", ""))
            async for piece in response.iter_bytes():
                record.mark_first_byte()
                for each in hooks:
                    each.forwarded(piece)
                await self._request.send_body(piece)
            await self._request.send_body(b"", more=False)
        except (ClientDisconnected, OSError):
            record.append("failed", CLIENT_CLOSED_REQUEST, cost=self._record.cost())
            return
        finally:
            await response.close()
        record.append("bypass", response.status, cost=self._record.cost())

    def end(self) -> None:
        """End the request: what features have reserved for it and not used is free again."""
        if self._in_background:
            return
        self._record.cost()
        for hooks in self._record.hooks:
            hooks.end()

    def _end_refresh(self, task: asyncio.Task[tuple[Answer, ...]], event: Event, stale: Answer) -> None:
        """Record the event of a request that was served stale, when its background fetch is over."""
        answers = () if task.cancelled() or task.exception() is not None else task.result()
        self._record.append_refreshed(event, stale, answers, self._record.cost(answers))
        self._in_background = False
        self.end()

    async def refuse(self, error: CallRefused) -> None:
        """Send the response to a request that a feature refuses."""
        self._record.refused = error.event_reason
        await self._request.respond(error.status, [("content-type", "application/json"), *error.headers], error.body())
        self._record.append("rejected", error.status)

    async def fail(self, error: UpstreamFailed) -> None:
        """Send an error, as an event if a stream has begun."""
        if isinstance(error, CallRefused):
            await self.refuse(error)
            return
        status = error.status
        self._record.mark_failed(error.reason)
        if self._writer is not None:
            self._writer.write(self.exchange.format.error_event(str(error)), more=False)
            await self._request.drain()
            status = CLIENT_CLOSED_REQUEST if self._writer.disconnected else status
        elif not self._request.response_started:
            await self._request.respond_error(status, str(error), "upstream_failed")
        self._record.append("failed", status, cost=self._record.cost())


def substitute_context(exchange: Exchange, substitute: Substitute) -> dict[str, str]:
    """Return the context of a request that a substitute answers."""
    return {**exchange.context, ANSWERED_BY: substitute.model, ANSWERED_UNDER: substitute.terms}


async def finish_within(fetched: Fetched, seconds: float) -> tuple[Answer, ...]:
    """Finish a fetch whose client has disconnected, or abort it after this time."""
    try:
        async with asyncio.timeout(seconds):
            return await fetched.finish()
    except TimeoutError:
        await fetched.abort()
        return ()
