"""One request to an endpoint whose answers are kept, top to bottom.

    who asks         access.py          nobody: 401
    what is asked    exchange.py      the body is read once; its model says which upstream
    the answer       fetcher.py     kept, or fetched under single flight
    what is said     headers, and a line in the journal

A stale answer (past its time, within a window that the settings allow) is given at once while a fresh one is fetched
behind it, or when fetching one has failed.

A caller that leaves in the middle of a stream is a line of status 499, written when the fetch that it began is over:
only then is known what it cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from knapcache.cache import Answer
from knapcache.errors import Incomplete, UpstreamFailed
from knapcache.exchange.exchange import CachedResponse, Exchange, body_of, given, hashed, is_stale, opened, passing
from knapcache.exchange.fetcher import Fetcher, StreamDelivered, miss_said
from knapcache.exchange.stream_tee import Heard, Opened, StreamTee
from knapcache.model import Endpoint
from knapcache.serve.http.access import AccessControl, RequestHead
from knapcache.serve.http.asgi_request import (
    CLIENT_CLOSED_REQUEST,
    AsgiRequest,
    RawPairs,
    RequestRejected,
    ResponseWriter,
)
from knapcache.serve.http.fast_path import FastPath, Known, raw_headers
from knapcache.serve.observe.events import Event
from knapcache.serve.upstream import Pairs, Response, encode_headers
from knapcache.serve.upstream.upstream import Upstream

if TYPE_CHECKING:
    from knapcache.serve.http.auth import Principal
    from knapcache.serve.proxy import Proxy

SAID_BY_THE_SERVER = ("date", "server")
BYPASS = [("x-knapcache", "bypass"), ("cache-status", "knapcache; fwd=bypass")]


class Handler:
    """Serves them."""

    def __init__(self, proxy: Proxy, access: AccessControl) -> None:
        settings = proxy.settings
        self._access, self._upstreams, self._write = access, proxy.upstreams, proxy.events.append
        # The server does not cancel a request when its caller leaves.
        self._answering = Fetcher(proxy.cache, finish=settings.finish_abandoned, shielded=True)
        self._most, self._most_unpacked = settings.max_body, settings.max_decompressed
        self._ttl = settings.ttl
        self._revalidate, self._on_error = settings.stale_while_revalidate, settings.stale_if_error
        self._window = max(self._revalidate, self._on_error)
        self._refreshing: dict[str, asyncio.Task[None]] = {}
        self._shortcut, self._at_hand = FastPath(proxy.cache), proxy.cache.get_nowait

    async def serve(self, request: AsgiRequest, endpoint: Endpoint) -> None:
        """Answer, and write it down."""
        head = self._access.authorize(request)
        request.headers = head.headers
        raw = await request.read_body(self._most, self._most_unpacked)
        usual = head.plain and not self._window and not request.query
        if usual:
            known = self._shortcut.get((raw, head.principal.namespace, endpoint))
            answer = None if known is None else self._at_hand(known.question)
            if known is not None and answer is not None and await self._hit(request, head, known, answer):
                return
        exchange, upstream, model = self._read(request, head.principal, endpoint, raw)
        call = Call(request, exchange, upstream, head, model, self._write)
        try:
            found = await self._answering.tell(exchange, upstream.name, call.send, call, call.early)
            if isinstance(found, CachedResponse) and found.answer is not None and found.answer.outcome == "hit":
                if usual:
                    self._shortcut.remember(exchange, upstream, model, found.answer)
                elif is_stale(found.answer):
                    found = await self._stale(call, found, found.answer)
            await call.give(found)
        except UpstreamFailed as error:
            await call.failed(error, error.status)
        except Incomplete as error:  # the caller has left, and what it asked for is not wanted by anybody else
            await call.failed(error, 502)

    def fast_response(self, headers: RawPairs, endpoint: Endpoint, body: bytes) -> list[bytes] | None:
        """Head and body of a hit that can be given at once, but for its first line; None where it takes more."""
        started = time.perf_counter()
        head = None if self._window else self._access.known(headers)
        if head is None or not head.plain:
            return None
        principal = head.principal
        known = self._shortcut.get((body, principal.namespace, endpoint))
        if known is None or not known.plain:
            return None
        answer = self._at_hand(known.question)
        if answer is None or answer.meta.get("form") != "json":
            return None
        usd, upstream_seconds, cost, _ = answer.bill
        seconds = time.perf_counter() - started
        self._write(
            Event(
                time=time.time(), endpoint=endpoint.value, model=known.model, tenant=principal.name, outcome="hit",
                status=200, seconds=seconds, ttfb=seconds, stream=False, key=answer.key, size=answer.size, cost=cost,
                usd=usd, upstream_seconds=upstream_seconds,
            )
        )  # fmt: skip
        said = [b"%b: %b\r\n" % pair for pair in raw_headers(answer)]
        return [*said, b"\r\n", answer.payload]

    async def _hit(self, request: AsgiRequest, head: RequestHead, known: Known, answer: Answer) -> bool:
        """Give an answer at hand to a request that was known by its bytes.

        False where a younger answer came in its place since, which has not what is asked for.
        """
        call = Call(request, known.exchange, known.upstream, head, known.model, self._write)
        if known.plain and answer.meta.get("form") == "json":
            await request.respond_raw(raw_headers(answer), answer.payload)
            call.over("hit", 200, answer)
            return True
        try:
            found = given(known.exchange, answer, None)
        except Incomplete:
            return False
        await call.give(found)
        return True

    def _read(
        self, request: AsgiRequest, principal: Principal, endpoint: Endpoint, raw: bytes
    ) -> tuple[Exchange, Upstream, str]:
        """What is asked, and of whom."""
        body = body_of(raw)
        model = body.get("model", "") if body is not None else ""
        model = model if type(model) is str else ""
        upstream = self._upstreams.for_model(model) if body is not None else self._upstreams.all[0]
        if upstream is None:
            raise RequestRejected(404, f"No upstream serves the model {model[:100]!r}.", "model_not_found")
        context = upstream.context
        if request.query:
            context = {**context, "query": hashed(request.query)}
        exchange = opened(endpoint, request.headers, raw, body, principal.namespace, context)
        if self._window and endpoint is not Endpoint.EMBEDDINGS:
            exchange = self._lasting(exchange)
        return exchange, upstream, model

    # Answers past their time.

    def _lasting(self, exchange: Exchange) -> Exchange:
        """The exchange, its answer to be kept for longer than it is fresh."""
        fresh = self._ttl if exchange.control.ttl is None else exchange.control.ttl
        if fresh is None:
            return exchange
        return replace(exchange, fresh=fresh, control=replace(exchange.control, ttl=fresh + self._window))

    async def _stale(
        self, call: Call, found: CachedResponse, answer: Answer
    ) -> CachedResponse | StreamDelivered | None:
        age = answer.age - float(answer.meta["fresh"])
        marked = found._replace(headers=[(n, "stale" if n == "x-knapcache" else v) for n, v in found.headers])
        call.outcome = "stale"
        if age <= self._revalidate:
            if answer.key not in self._refreshing:
                task = call.refresh = asyncio.create_task(self._refresh(call))
                self._refreshing[answer.key] = task
                task.add_done_callback(lambda _: self._refreshing.pop(answer.key, None))
            return marked
        try:
            fresh = await self._answering.tell(fresher(call.exchange), call.upstream.name, call.send, call)
        except UpstreamFailed:
            if call.request.response_started:
                raise
            return marked if age <= self._on_error else None
        if isinstance(fresh, CachedResponse) and (fresh.status >= 500 or fresh.status == 429) and age <= self._on_error:
            return marked
        call.outcome = ""
        return fresh

    async def _refresh(self, call: Call) -> None:
        """Fetch behind the caller's back; a failure changes nothing."""
        with contextlib.suppress(UpstreamFailed):
            await self._answering.tell(fresher(call.exchange), call.upstream.name, call.send, Nobody())

    async def drain(self, patience: float) -> None:
        """Wait for what is fetched behind the backs of callers. What they have asked for the server waits for."""
        if self._refreshing:
            await asyncio.wait(self._refreshing.values(), timeout=patience)


class Nobody:
    """Listens to what is only to be kept."""

    def begin(self, relay: StreamTee) -> None:
        """Nobody cares."""

    def hear(self, heard: Heard) -> None:
        """Nobody hears."""


class Call:
    """One request while it is being served."""

    __slots__ = (
        "_attempts",
        "_relay",
        "_write",
        "_writer",
        "exchange",
        "head",
        "model",
        "outcome",
        "refresh",
        "request",
        "time",
        "ttfb",
        "upstream"
    )  # fmt: skip

    def __init__(
        self,
        request: AsgiRequest,
        exchange: Exchange,
        upstream: Upstream,
        head: RequestHead,
        model: str,
        write: Callable[[Event], Any],
    ) -> None:
        self.request, self.exchange, self.upstream, self.head, self.model = request, exchange, upstream, head, model
        self._write = write
        self._writer: ResponseWriter | None = None
        self._relay: StreamTee | None = None
        self.time = time.time()
        self.ttfb = 0.0
        self.outcome = ""
        """What it is called in place of what the cache calls it."""
        self.refresh: asyncio.Task[None] | None = None
        """The background fetch that this request has started."""
        self._attempts: list[int] = []
        """Statuses of the calls that were made upstream and are in no event yet."""

    async def send(self, content: bytes) -> Response:
        """Send it upstream."""
        upstream, head = self.upstream, self.head
        sent = head.upstream_headers.get(upstream.name)
        if sent is None:
            sent = head.upstream_headers[upstream.name] = encode_headers(
                upstream.request_headers(head.headers, head.principal.credential is not None)
            )
        return await upstream.send_with_retries(upstream.path(self.request.target), sent, content, self._attempts)

    async def early(self, found: CachedResponse) -> None:
        """Give the caller an answer that is still to be kept. Should it have left, that changes nothing."""
        assert isinstance(found.body, bytes)
        if self.request.response_started:
            return
        with contextlib.suppress(OSError):
            await self.request.respond(found.status, ours(found.headers), found.body)
        self._first()

    def begin(self, relay: StreamTee) -> None:
        """A stream is fetched for the caller."""
        self._relay = relay

    def hear(self, heard: Heard) -> None:
        """Pass it on."""
        if isinstance(heard, Opened):
            self._writer = self.request.open_writer(200, ours([*passing(heard.headers), *miss_said()]))
        elif isinstance(heard, bytes) and not self._left():
            assert self._writer is not None
            self._writer.write(heard)
            self._first()

    def _left(self) -> bool:
        """Whether the caller of a stream has gone; whoever fetches it is told."""
        if self._relay is None or self._writer is None:
            return False
        self._relay.left = self._writer.disconnected
        return self._relay.left

    async def give(self, found: CachedResponse | StreamDelivered | None) -> None:
        """Give the caller what was found."""
        if isinstance(found, StreamDelivered):
            assert self._writer is not None
            for block in found.relay.held:
                self._writer.write(block)
            self._writer.write(b"", more=False)
            await self.request.drain()
            outcome = found.answer.outcome if "status" not in found.answer.meta else "failed"
            self.over(outcome, CLIENT_CLOSED_REQUEST if self._left() else 200, found.answer)
        elif self.request.response_started:
            assert isinstance(found, CachedResponse)
            self._given(found)
        elif found is None:
            await self._pass()
        elif isinstance(found.body, bytes):
            await self.request.respond(found.status, ours(found.headers), found.body)
            self._first()
            self._given(found)
        else:
            self._first()
            await self.request.respond_blocks(found.status, ours(found.headers), found.body)
            self._given(found)

    def _given(self, found: CachedResponse) -> None:
        if found.parts:  # several embeddings at once: a line for each
            for part in found.parts:
                self.over(part.outcome, found.status, part)
        elif found.answer is None:  # an error, or nothing that is kept
            self.over("failed", found.status)
        else:
            self.over(found.answer.outcome if found.status == 200 else "failed", found.status, found.answer)

    async def failed(self, error: Exception, status: int) -> None:
        """Tell the caller of an error, in the middle of a stream if need be."""
        if self._writer is not None:
            self._writer.write(broken_off(self.exchange.endpoint, str(error)), more=False)
            await self.request.drain()
        elif not self.request.response_started:
            await self.request.respond_error(status, str(error), "upstream_failed")
        self.over("failed", CLIENT_CLOSED_REQUEST if self._left() else status)

    async def _pass(self) -> None:
        """Without the cache."""
        response = await self.send(self.exchange.sent(False))
        try:
            await self.request.send_head(response.status, ours([*passing(response.pairs), *BYPASS]))
            async for piece in response.iter_bytes():
                self._first()
                await self.request.send_body(piece)
            await self.request.send_body(b"", more=False)
        finally:
            await response.close()
        self.over("bypass", response.status)

    def _first(self) -> None:
        if not self.ttfb:
            self.ttfb = time.perf_counter() - self.request.started

    def over(self, outcome: str, status: int, answer: Answer | None = None) -> None:
        """Record the event, after the background refresh that this request has started."""
        seconds = time.perf_counter() - self.request.started
        exchange, outcome = self.exchange, self.outcome or outcome
        key, size, cost, usd, upstream_seconds = "", 0, 0.0, None, 0.0
        if answer is not None:
            key, size, (usd, upstream_seconds, cost, _) = answer.key, answer.size, answer.bill
        attempts: tuple[int, ...] = ()
        if outcome != "hit" and self.refresh is None:  # of several embeddings, the first that was fetched has them
            attempts = tuple(self._attempts)
            self._attempts.clear()
        upstream = self.upstream.name if attempts or outcome not in ("hit", "stale") else ""
        event = Event(
            time=self.time, endpoint=exchange.endpoint.value, model=self.model, tenant=self.head.principal.name,
            outcome=outcome, status=status, seconds=seconds, ttfb=self.ttfb or seconds, stream=exchange.stream, key=key,
            size=size, cost=cost, usd=usd, upstream_seconds=upstream_seconds, upstream=upstream, attempts=attempts,
            trace=self.request.headers.get("traceparent", ""),
        )  # fmt: skip
        if self.refresh is None:
            self._write(event)
        else:
            self.refresh.add_done_callback(
                lambda _: self._write(event._replace(upstream=self.upstream.name, attempts=tuple(self._attempts)))
            )


def ours(headers: Pairs) -> Pairs:
    """Headers without those that our own server says."""
    return [pair for pair in headers if pair[0].lower() not in SAID_BY_THE_SERVER]


def fresher(exchange: Exchange) -> Exchange:
    """The same, and a kept answer will not do."""
    return replace(exchange, control=replace(exchange.control, refresh=True, only_cached=False))


def broken_off(endpoint: Endpoint, message: str) -> bytes:
    """The end of a stream that has none: an error that the SDKs know, and no terminator."""
    said = orjson.dumps({"type": "error", "error": {"message": message, "type": "upstream_failed"}})
    name = b"event: error\n" if endpoint in (Endpoint.MESSAGES, Endpoint.RESPONSES) else b""
    return b"%bdata: %b\n\n" % (name, said)
