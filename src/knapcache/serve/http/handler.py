"""Serves requests to the endpoints whose answers are cached.

    read      access.py             its principal (401 without a valid key), and its body
    key       exchange.py           what it asks for, and its upstream, which the model selects
    fetch     fetcher.py, stale.py  from the cache, or from the upstream under single flight
    write     asgi_request.py       the response
    event     events.py             what it cost, and how long it took

If a client disconnects in the middle of a stream, its event has the status 499. It is recorded when the fetch is over,
because only then is its cost known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from knapcache.cache import Answer
from knapcache.errors import Incomplete, Uncacheable, UpstreamFailed
from knapcache.exchange.cache_headers import outcome_headers
from knapcache.exchange.exchange import Exchange, make_exchange, parse_request
from knapcache.exchange.fetched import Fetched, LiveStream
from knapcache.exchange.fetcher import Fetcher
from knapcache.exchange.headers import fingerprint, forwarded_headers, sandboxed
from knapcache.exchange.stale import StaleAnswer, StaleFetcher
from knapcache.keys.parse import SHORT, ParsedBody
from knapcache.keys.scan import MAX_MODEL_LENGTH
from knapcache.model import Endpoint
from knapcache.serve.http.access import AccessControl, RequestHead
from knapcache.serve.http.asgi_request import (
    CLIENT_CLOSED_REQUEST,
    AsgiRequest,
    RequestRejected,
    ResponseWriter,
    model_not_found,
)
from knapcache.serve.http.fast_path import FastPath
from knapcache.serve.observe.events import Event, PrefixEvent, SemanticEvent
from knapcache.serve.semantic.call import SemanticCall, SemanticCalls
from knapcache.serve.upstream import Pairs, Response, encode_headers
from knapcache.serve.upstream.prefix_tier import PrefixMarker, reported_event
from knapcache.serve.upstream.upstream import Upstream
from knapcache.threads import DeadlinePool
from knapcache.wire.cache_control import NO_DIRECTIVES

if TYPE_CHECKING:
    from knapcache.serve.proxy import Proxy

FastResponse = Callable[[RequestHead, Endpoint, bytes], tuple[bytes, ...] | None]

MAX_NAMESPACE = 256
"""Characters of a namespace that a caller chooses."""
UNUSABLE = "a stored answer does not have what this request asks for"
"""Why a request that has a key is sent without the cache."""


class Handler:
    """Serves them for one proxy."""

    def __init__(self, proxy: Proxy, access: AccessControl) -> None:
        settings = proxy.settings
        self._access, self._upstreams, self._append_event = access, proxy.upstreams, proxy.events.append
        self._max_body, self._max_decompressed = settings.max_body, settings.max_decompressed
        self._ttl, self._abandoned_timeout = settings.ttl, settings.abandoned_timeout
        self._max_cached, self._workers, self._semantic = settings.max_cached_body, proxy.body_pool, proxy.semantic
        self._fetcher = fetcher = Fetcher(
            proxy.cache,
            finish_abandoned=settings.finish_abandoned,
            max_answer=settings.max_answer,
            offload=proxy.body_pool.call,
            pause=partial(asyncio.sleep, 0),
        )
        self._fetch = fetcher.fetch
        self._stale: StaleFetcher | None = None
        self._fast_path: FastPath | None = None
        self.fast_response: FastResponse = no_fast_response
        """Return the header lines and the body of a hit that can be served at once, or None."""
        if settings.stale_while_revalidate or settings.stale_if_error:
            self._stale = StaleFetcher(
                fetcher,
                proxy.cache,
                ttl=settings.ttl,
                while_revalidate=settings.stale_while_revalidate,
                if_error=settings.stale_if_error,
            )
            self._fetch = self._stale.fetch
        else:  # the fast path does not know stale answers
            self._fast_path = FastPath(proxy.cache, proxy.events.append_short)
            self.fast_response = self._fast_path.respond

    async def serve(self, request: AsgiRequest, endpoint: Endpoint) -> None:
        """Send the response to a request, and record its event."""
        head = self._access.authorize(request)
        request.headers = head.headers
        raw = await request.read_body(self._max_body, self._max_decompressed, self._workers)
        fast_path = self._fast_path if head.plain and not request.query else None
        if fast_path is not None and await self._serve_known(fast_path, request, head, endpoint, raw):
            return
        if len(raw) <= SHORT:
            call = self._call(request, head, endpoint, raw)
        else:
            call = await self._workers.call(partial(self._call, request, head, endpoint, raw))
        try:
            fetched = await self._fetch(
                call.full_exchange(self._workers, self._semantic), call.upstream.name, call.send
            )
            if fetched is None:
                await call.forward()
                return
            if fast_path is not None and len(fetched.answers) == 1 and fetched.answers[0].outcome == "hit":
                fast_path.remember(call.exchange, call.upstream, call.model, fetched.answers[0])
            await call.respond(fetched, self._abandoned_timeout)
        except UpstreamFailed as error:
            await call.fail(error)

    async def _serve_known(
        self, fast_path: FastPath, request: AsgiRequest, head: RequestHead, endpoint: Endpoint, raw: bytes
    ) -> bool:
        """Serve a hit of a request that is known by its bytes."""
        found = await fast_path.find(raw, head.principal.namespace, endpoint)
        if found is None:
            return False
        known, answer = found
        try:
            fetched = Fetched(await self._fetcher.response(known.exchange, answer), (answer,))
        except Incomplete:  # a newer answer took its place, and lacks what the request asks for
            return False
        call = Call(request, head, known.exchange, known.upstream, known.model, self._append_event)
        await call.respond(fetched, self._abandoned_timeout)
        return True

    def _call(self, request: AsgiRequest, head: RequestHead, endpoint: Endpoint, raw: bytes) -> Call:
        """Parse a request and select its upstream. Long ones in a thread (`keys/scan.py` has the reasons)."""
        parsed = parse_request(raw) if len(raw) <= self._max_cached else too_long_to_key(len(raw), self._max_cached)
        if isinstance(parsed, ParsedBody):
            model = parsed.get("model", "")
            model = model if type(model) is str else ""
        else:
            try:
                model = self._upstreams.find_model(raw)
            except Uncacheable as reason:
                raise model_not_found(reason) from None
        if len(model) > MAX_MODEL_LENGTH:
            raise name_too_long("model", len(model), MAX_MODEL_LENGTH)
        known = isinstance(parsed, ParsedBody) or model
        upstream = self._upstreams.for_model(model) if known else self._upstreams.all[0]
        if upstream is None:
            raise RequestRejected(404, f"No upstream serves the model {model[:100]!r}.", "model_not_found")
        context = upstream.context
        if head.vary:
            context = {**context, **head.vary}
        if request.query:
            context = {**context, "query": fingerprint(request.query)}
        exchange = make_exchange(endpoint, request.headers, raw, parsed, head.principal.namespace, context, self._ttl)
        namespace = exchange.control.namespace
        if namespace is not None and len(namespace) > MAX_NAMESPACE:
            raise name_too_long("cache.namespace", len(namespace), MAX_NAMESPACE)
        return Call(request, head, exchange, upstream, model, self._append_event)

    async def drain(self, seconds: float) -> None:
        """Wait for background fetches, for so many seconds at most. The server waits for requests."""
        if self._stale is not None:
            await self._stale.drain(seconds)


class Call:
    """One request while it is served."""

    __slots__ = (
        "_append_event", "_attempts", "_error", "_head", "_marker", "_request", "_semantic", "_semantic_event", "_time",
        "_ttfb", "_writer", "exchange", "model", "upstream",
    )  # fmt: skip

    def __init__(
        self,
        request: AsgiRequest,
        head: RequestHead,
        exchange: Exchange,
        upstream: Upstream,
        model: str,
        append_event: Callable[[Event], Any],
    ) -> None:
        self._request, self._head, self._append_event = request, head, append_event
        self.exchange, self.upstream, self.model = exchange, upstream, model
        self._writer: ResponseWriter | None = None
        self._marker: PrefixMarker | None = None
        self._semantic: SemanticCall | None = None
        self._semantic_event: SemanticEvent | None = None
        self._time, self._ttfb = time.time(), 0.0
        self._attempts: list[int] = []
        """Statuses of upstream calls that are in no event yet."""
        self._error = ""
        """Why the last of them failed."""

    def full_exchange(self, workers: DeadlinePool, semantic: SemanticCalls | None) -> Exchange:
        """Return the exchange with the finder of the semantic tier and the marker of the upstream's prefix tier."""
        upstream, exchange = self.upstream, self.exchange
        if semantic is not None:
            self._semantic = semantic.begin(exchange, self._head.principal.name)
            exchange = exchange._replace(finder=self._semantic)
        if upstream.prefix is None:
            return exchange
        account = upstream.account(self._head.principal.credential)
        self._marker = PrefixMarker(
            upstream.prefix,
            exchange.endpoint,
            exchange.body,
            len(exchange.raw),
            model=self.model,
            account=account,
            pool=workers,
        )
        return exchange._replace(marker=self._marker)

    async def send(self, content: bytes) -> Response:
        """Send the request upstream, with this body."""
        upstream, head = self.upstream, self._head
        headers = head.upstream_headers.get(upstream.name)
        if headers is None:
            headers = head.upstream_headers[upstream.name] = encode_headers(
                upstream.request_headers(head.headers, head.principal.credential is not None)
            )
        # Not the path as sent: the key has the endpoint only, so another spelling must not reach another route.
        path, query = f"/v1/{self.exchange.endpoint.value}", self._request.query.decode("latin-1")
        target = upstream.path(f"{path}?{query}" if query else path)
        try:
            response = await upstream.send_with_retries(target, headers, content, self._attempts)
        except UpstreamFailed as error:
            self._error = error.reason
            raise
        self._error = ""
        return response

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
        if self._semantic is not None:
            self._semantic_event = await self._semantic.finish(answers[0] if answers else None)
        background = fetched.refresh if isinstance(fetched, StaleAnswer) else None
        if background is not None:  # its calls belong to the event of this request
            event = self._event("stale", status, answers[0])
            background.add_done_callback(lambda _: self._append_event(self._with_attempts(event)))
            return
        for answer in answers:
            self._record("failed" if fetched.failed else answer.outcome, status, answer)
        if not answers:
            too_long = isinstance(fetched, LiveStream) and fetched.overflowed
            self._record("miss" if too_long else "failed", status)

    async def _write(self, fetched: Fetched) -> int:
        """Write the response. Return the status for the event."""
        headers, body = fetched.headers, fetched.body
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
            headers = [*sandboxed(forwarded_headers(response.pairs)), *outcome_headers("bypass")]
            await self._request.send_head(response.status, headers)
            async for piece in response.iter_bytes():
                self._mark_first_byte()
                await self._request.send_body(piece)
            await self._request.send_body(b"", more=False)
        finally:
            await response.close()
        self._record("bypass", response.status)

    async def fail(self, error: UpstreamFailed) -> None:
        """Send an error, as an event if a stream has begun."""
        status, self._error = error.status, error.reason
        if self._writer is not None:
            self._writer.write(self.exchange.format.error_event(str(error)), more=False)
            await self._request.drain()
            status = CLIENT_CLOSED_REQUEST if self._writer.disconnected else status
        elif not self._request.response_started:
            await self._request.respond_error(status, str(error), "upstream_failed")
        self._record("failed", status)

    def _mark_first_byte(self) -> None:
        if not self._ttfb:
            self._ttfb = time.perf_counter() - self._request.started

    def _record(self, outcome: str, status: int, answer: Answer | None = None) -> None:
        self._append_event(self._event(outcome, status, answer, attempts=outcome != "hit"))

    def _event(self, outcome: str, status: int, answer: Answer | None, *, attempts: bool = False) -> Event:
        """Return the event of the request. attempts: with the upstream calls that are in no event yet."""
        seconds = time.perf_counter() - self._request.started
        key, size, cost, usd, upstream_seconds, tokens = "", 0, 0.0, None, 0.0, 0
        if answer is not None:
            key, size, (usd, upstream_seconds, cost, _, tokens, _) = answer.key, answer.size, answer.bill
        exchange, upstream, error = self.exchange, self.upstream.name, ""
        calls: tuple[int, ...] = ()
        if attempts and (self._attempts or self._error):
            upstream, calls, error = self._take_attempts()
        elif outcome in ("hit", "similar", "stale"):
            upstream = ""
        return Event(  # positional: keywords take twice as long
            self._time, exchange.endpoint.value, self.model, self._head.principal.name, outcome, status, seconds,
            self._ttfb or seconds, exchange.stream, key, size, cost, usd, tokens, upstream_seconds, upstream, calls,
            error, self._request.headers.get("traceparent", ""), self._reason(outcome),
            self._prefix_event(answer) if outcome == "miss" else None, self._semantic_event,
        )  # fmt: skip

    def _prefix_event(self, answer: Answer | None) -> PrefixEvent | None:
        """Report the input tokens of a paid answer to the prefix tier, and return what is recorded of them."""
        counted = None if answer is None else answer.bill.input
        if self._marker is not None:
            return self._marker.report(counted)
        return reported_event("off", counted)

    def _reason(self, outcome: str) -> str:
        """Return what in the request explains the outcome."""
        exchange = self.exchange
        if outcome == "bypass":
            return exchange.bypass or UNUSABLE
        return exchange.control.asked if outcome != "hit" and exchange.control is not NO_DIRECTIVES else ""

    def _with_attempts(self, event: Event) -> Event:
        if not self._attempts and not self._error:
            return event
        upstream, attempts, error = self._take_attempts()
        return event._replace(upstream=upstream, attempts=attempts, error=error)

    def _take_attempts(self) -> tuple[str, tuple[int, ...], str]:
        """Return the upstream, the statuses and the error of the upstream calls that are in no event yet.

        Of several embeddings, the first that was fetched has them.
        """
        attempts, error = tuple(self._attempts), self._error
        self._attempts.clear()
        self._error = ""
        return self.upstream.name, attempts, error


async def finish_within(fetched: Fetched, seconds: float) -> tuple[Answer, ...]:
    """Finish a fetch whose client has disconnected, or abort it after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await fetched.finish()
    except TimeoutError:
        await fetched.abort()
        return ()


def name_too_long(field: str, length: int, limit: int) -> RequestRejected:
    """Return the error for a name that is too long. Tables are kept by these names."""
    return RequestRejected(400, f"{field} has {length} characters; at most {limit} are allowed.", "invalid_request")


def too_long_to_key(length: int, limit: int) -> Uncacheable:
    """Return why a long body has no key."""
    return Uncacheable(f"the body has {length} bytes, and only bodies of up to max_cached_body = {limit} are cached")


def no_fast_response(_head: RequestHead, _endpoint: Endpoint, _body: bytes) -> None:
    """Serve nothing at once."""
