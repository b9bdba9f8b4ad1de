"""One request while it is served: its exchange, the calls of its upstream, its response and its event.

If a client disconnects in the middle of a stream, its event has the status 499. It is recorded when the fetch is over,
because only then is its cost known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from knapcache.cache import Answer
from knapcache.errors import UpstreamFailed
from knapcache.exchange.cache_headers import outcome_headers
from knapcache.exchange.exchange import Exchange, is_event_stream
from knapcache.exchange.fetched import Fetched, LiveStream
from knapcache.exchange.headers import forwarded_headers, sandboxed
from knapcache.exchange.stale import StaleAnswer
from knapcache.features.content_log.capture import ContentCapture
from knapcache.features.limits.core import ALL
from knapcache.features.limits.limited_call import NOTHING, CallCost, LimitedCall, SampledResponse
from knapcache.features.limits.limits import Limits
from knapcache.features.limits.refusal import STATUS, LimitReached
from knapcache.features.prefix.tier import reported_event
from knapcache.features.semantic.call import SemanticCall, SemanticCalls, fetch_or_serve_audited
from knapcache.price.meter import Bill
from knapcache.proxy.events.events import Event, EventBuffer, PrefixEvent, SemanticEvent, UpstreamTry, payment_of
from knapcache.proxy.http.access import RequestHead
from knapcache.proxy.http.asgi_request import CLIENT_CLOSED_REQUEST, AsgiRequest, ClientDisconnected, ResponseWriter
from knapcache.proxy.http.sending import Calls, UpstreamSender
from knapcache.proxy.routing import routed_control
from knapcache.proxy.settings.routes import RouteSettings
from knapcache.proxy.upstream import Pairs, Response
from knapcache.proxy.upstream.group import UpstreamGroup, group_of_one
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.threads import DeadlinePool
from knapcache.wire.cache_control import NO_DIRECTIVES

UNUSABLE = "a stored answer does not have what this request asks for"
"""Why a request that has a key is sent without the cache."""


class Call:
    """One request while it is served."""

    __slots__ = (
        "_error", "_events", "_head", "_limited", "_refused", "_request", "_route", "_semantic",
        "_semantic_event", "_sender", "_time", "_ttfb", "_writer", "content", "exchange", "group", "model",
        "route_name", "upstream",
    )  # fmt: skip

    def __init__(
        self,
        request: AsgiRequest,
        head: RequestHead,
        exchange: Exchange,
        upstream: Upstream,
        model: str,
        events: EventBuffer,
        route: RouteSettings | None = None,
        group: UpstreamGroup | None = None,
        limits: Limits | None = None,
    ) -> None:
        """group: the upstreams that may answer, of which `upstream` is the first; None: no others."""
        self._route = route
        self.route_name = "" if route is None else route.name
        """Name of the route that applies; empty: none does."""
        self._limited = None if limits is None else LimitedCall(limits, head.principal.name, model)
        """The cost of its calls; None: the answer is there already."""
        self._refused = ""
        """Why a limit has refused the request."""
        self._request, self._head, self._events = request, head, events
        self.exchange, self.upstream, self.model = exchange, upstream, model
        self.content: ContentCapture | None = None
        """Its content for the log; None: the log is off."""
        self._writer: ResponseWriter | None = None
        self.group = group or group_of_one(upstream)
        self._sender: UpstreamSender | None = None
        """None: nothing was sent."""
        self._semantic: SemanticCall | None = None
        self._semantic_event: SemanticEvent | None = None
        self._time, self._ttfb = time.time(), 0.0
        self._error = ""
        """Why the call failed for which this request has waited."""

    def full_exchange(self, workers: DeadlinePool, semantic: SemanticCalls | None) -> Exchange:
        """Return the exchange with the finder of the semantic tier and the marker of the upstream's prefix tier."""
        exchange, route = self.exchange, self._route
        if route is not None:
            exchange = exchange._replace(control=routed_control(route, exchange.control))
        if semantic is not None:
            self._semantic = semantic.begin(exchange, self._head.principal.name, self.route_name)
            exchange = exchange._replace(finder=self._semantic)
        marks = self.upstream.prefix is not None and (route is None or route.prefix != "off")
        if not marks and len(self.group.members) == 1:
            return exchange
        return exchange._replace(marker=self._new_sender(workers))

    def fetch(self, fetch: Callable[[], Awaitable[Fetched | None]]) -> Awaitable[Fetched | None]:
        """Fetch the response; None: the request must be sent without the cache."""
        return fetch() if self._semantic is None else fetch_or_serve_audited(fetch, self._semantic)

    async def send(self, content: bytes) -> Response | SampledResponse:
        """Send the request upstream, with this body. Raises LimitReached if a limit does not allow it."""
        sender, limited = self._sender or self._new_sender(None), self._limited
        if limited is None:
            return await sender.send(content)
        await limited.begin(self.exchange.endpoint, self.exchange.body, len(content))
        response = await sender.send(content)
        return limited.answered(response, stream=is_event_stream(response.status, response.headers))

    def _new_sender(self, workers: DeadlinePool | None) -> UpstreamSender:
        prefix = None if self._route is None else self._route.prefix
        sender = self._sender = UpstreamSender(
            self.group, self._head, self.exchange, self.model, self._request.query, workers, prefix
        )
        return sender

    async def respond(self, fetched: Fetched, abandoned_timeout: float) -> None:
        """Write the response, store its answer, record the event.

        abandoned_timeout   seconds to finish a stream after its client has disconnected
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
        cost = NOTHING if background is not None else self._cost(answers, failed=fetched.failed)
        if self._semantic is not None:
            self._semantic_event = await self._semantic.finish(answers[0] if answers else None)
        if background is not None:  # its calls belong to the event of this request
            if self._limited is not None:
                self._limited.in_background = True
            event = self._event("stale", status, answers[0])
            background.add_done_callback(lambda task: self._end_refresh(task, event, answers[0]))
            return
        for answer in answers:
            self._record("failed" if fetched.failed else answer.outcome, status, answer, cost)
            cost = NOTHING  # of several embeddings, the first has it
        if not answers:
            too_long = isinstance(fetched, LiveStream) and fetched.overflowed
            self._record("miss" if too_long else "failed", status, cost=cost)

    async def _write(self, fetched: Fetched) -> int:
        """Write the response. Return the status for the event."""
        headers, body = fetched.headers, fetched.body
        if self._sender is not None and (not fetched.answers or any(one.outcome == "miss" for one in fetched.answers)):
            headers = [*headers, *self._sender.headers()]
        if self.route_name:
            headers = [*headers, ("x-knapcache-route", self.route_name)]
        if isinstance(fetched, LiveStream):
            return await self._write_live(headers, fetched.blocks)
        try:
            if isinstance(body, bytes):
                await self._request.respond(fetched.status, headers, body)
                self._mark_first_byte()
            else:
                self._mark_first_byte()
                await self._request.respond_blocks(fetched.status, headers, body)
        except OSError:
            return CLIENT_CLOSED_REQUEST
        return fetched.status

    async def _write_live(self, headers: Pairs, blocks: AsyncIterator[bytes]) -> int:
        writer = self._writer = self._request.open_writer(200, headers)
        async for block in blocks:
            if writer.disconnected:
                break
            writer.write(block)
            self._mark_first_byte()
        else:
            writer.write(b"", more=False)
        await self._request.drain()
        return CLIENT_CLOSED_REQUEST if writer.disconnected else 200

    async def forward(self) -> None:
        """Send the request upstream and its response back, without the cache."""
        response = await self.send(self.exchange.upstream_body(False))
        try:
            assert self._sender is not None
            own = [*outcome_headers("bypass"), *self._sender.headers()]
            if self.route_name:
                own.append(("x-knapcache-route", self.route_name))
            headers = [*sandboxed(forwarded_headers(response.pairs)), *own]
            await self._request.send_head(response.status, headers)
            if self.content is not None:
                self.content.begin_forwarded(response.headers.get("content-type", ""))
            async for piece in response.iter_bytes():
                self._mark_first_byte()
                if self.content is not None:
                    self.content.add_forwarded(piece)
                await self._request.send_body(piece)
            await self._request.send_body(b"", more=False)
        except (ClientDisconnected, OSError):
            self._record("failed", CLIENT_CLOSED_REQUEST, cost=self._cost())
            return
        finally:
            await response.close()
        self._record("bypass", response.status, cost=self._cost())

    def _cost(self, answers: Sequence[Answer] = (), *, failed: bool = False) -> CallCost:
        """Return what the calls of the request cost, once (limited_call.py)."""
        return NOTHING if self._limited is None else self._limited.cost(answers, failed=failed)

    def end(self) -> None:
        """End the request: what it has reserved of a limit and not used is free again."""
        if self._limited is not None:
            self._limited.end()

    def _end_refresh(self, task: asyncio.Task[tuple[Answer, ...]], event: Event, stale: Answer) -> None:
        """Record the event of a request that was served stale, when its background fetch is over."""
        answers = () if task.cancelled() or task.exception() is not None else task.result()
        cost = self._cost(answers)
        event = self._with_attempts(event)
        for bill in (cost.bill, *(answer.bill for answer in answers)):
            if bill is not None:
                payment = payment_of(event.endpoint, event.model, event.tenant, bill, cost.usd_estimated)
                self._events.append_payment(payment)
                event = event._replace(prefix=self._prefix_event(bill))
        self._append(event, stale)

    def has_limit(self, error: LimitReached) -> bool:
        """Return whether the limit is one of the caller. Of a shared call it may be another caller's."""
        return error.scope in (ALL, self._head.principal.name)

    async def refuse(self, error: LimitReached) -> None:
        """Send the response to a request that a limit refuses."""
        self._refused = error.event_reason
        await self._request.respond(STATUS, [("content-type", "application/json"), *error.headers], error.body())
        self._record("rejected", STATUS)

    async def fail(self, error: UpstreamFailed) -> None:
        """Send an error, as an event if a stream has begun."""
        if isinstance(error, LimitReached):
            await self.refuse(error)
            return
        status = error.status
        if self._sender is None:
            self._error = error.reason
        else:
            self._sender.broken(error.reason)
        if self._writer is not None:
            self._writer.write(self.exchange.format.error_event(str(error)), more=False)
            await self._request.drain()
            status = CLIENT_CLOSED_REQUEST if self._writer.disconnected else status
        elif not self._request.response_started:
            await self._request.respond_error(status, str(error), "upstream_failed")
        self._record("failed", status, cost=self._cost())

    def _mark_first_byte(self) -> None:
        if not self._ttfb:
            self._ttfb = time.perf_counter() - self._request.started

    def _record(self, outcome: str, status: int, answer: Answer | None = None, cost: CallCost = NOTHING) -> None:
        self._append(self._event(outcome, status, answer, cost, attempts=outcome != "hit"), answer)

    def _append(self, event: Event, answer: Answer | None) -> None:
        self._events.append(event)
        if self.content is not None:
            self.content.record(event, answer)

    def _event(
        self, outcome: str, status: int, answer: Answer | None, paid: CallCost = NOTHING, *, attempts: bool = False
    ) -> Event:
        """Return the event of the request. attempts: with the upstream calls that are in no event yet."""
        seconds = time.perf_counter() - self._request.started
        key, size, cost, usd, upstream_seconds, tokens = "", 0, 0.0, None, 0.0, 0
        bill = paid.bill
        if answer is not None:
            key, size, bill = answer.key, answer.size, bill or answer.bill
        if bill is not None:
            usd, upstream_seconds, cost, _, tokens, _ = bill
        exchange, upstream, error = self.exchange, self.upstream.name, ""
        calls: tuple[int, ...] = ()
        tried: tuple[UpstreamTry, ...] = ()
        open_until = 0.0
        found = self._take_calls() if attempts else None
        if found is not None:
            upstream, calls, error, tried, open_until = found
        elif outcome in ("hit", "similar", "stale", "rejected"):
            upstream = ""
        return Event(  # positional: keywords take twice as long
            self._time, exchange.endpoint.value, self.model, self._head.principal.name, outcome, status, seconds,
            self._ttfb or seconds, exchange.stream, key, size, cost, usd, tokens, upstream_seconds, upstream, calls,
            error, self._request.headers.get("traceparent", ""), self._reason(outcome),
            self._prefix_event(bill) if outcome in ("miss", "bypass") else None, self._semantic_event, tried,
            open_until, self.route_name, paid.usd_estimated,
        )  # fmt: skip

    def _prefix_event(self, bill: Bill | None) -> PrefixEvent | None:
        """Report the input tokens of a paid answer to the prefix tier, and return what is recorded of them."""
        counted = None if bill is None else bill.input
        return reported_event("off", counted) if self._sender is None else self._sender.prefix_event(counted)

    def _reason(self, outcome: str) -> str:
        """Return what in the request explains the outcome."""
        exchange = self.exchange
        if outcome == "rejected":
            return self._refused
        if outcome == "bypass":
            return exchange.bypass or UNUSABLE
        return exchange.control.asked if outcome != "hit" and exchange.control is not NO_DIRECTIVES else ""

    def _with_attempts(self, event: Event) -> Event:
        found = self._take_calls()
        if found is None:
            return event
        upstream, attempts, error, tried, open_until = found
        return event._replace(upstream=upstream, attempts=attempts, error=error, tried=tried, open_until=open_until)

    def _take_calls(self) -> Calls | None:
        """Return the upstream calls that are in no event yet; None: there are none."""
        if self._sender is not None:
            return self._sender.take_calls()
        if not self._error:
            return None
        error, self._error = self._error, ""
        return self.upstream.name, (), error, (), 0.0


async def finish_within(fetched: Fetched, seconds: float) -> tuple[Answer, ...]:
    """Finish a fetch whose client has disconnected, or abort it after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await fetched.finish()
    except TimeoutError:
        await fetched.abort()
        return ()
