"""Requests to the endpoints whose answers are cached: from the body that was read to the event.

    read      access.py             its principal (401 without a valid key), and its body
    key       exchange.py           what it asks for, and its upstream, which the model selects
    fetch     fetcher.py, stale.py  from the cache, or from the upstream under single flight
    write     asgi_request.py       the response
    event     events.py             what it cost, and how long it took

`call.py` has the last two, and the calls of the upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from knapcache.errors import Incomplete, InvalidInput, Uncacheable, UpstreamFailed
from knapcache.exchange.exchange import Exchange, make_exchange, parse_request
from knapcache.exchange.fetched import Fetched
from knapcache.exchange.fetcher import Fetcher
from knapcache.exchange.headers import fingerprint
from knapcache.exchange.stale import StaleFetcher
from knapcache.keys.parse import SHORT, ParsedBody
from knapcache.keys.scan import MAX_MODEL_LENGTH, find_model
from knapcache.model import Endpoint
from knapcache.proxy.http.access import AccessControl, RequestHead
from knapcache.proxy.http.asgi_request import (
    AsgiRequest,
    RequestRejected,
    model_not_found,
)
from knapcache.proxy.http.call import Call
from knapcache.proxy.http.fast_path import FastPath
from knapcache.proxy.http.process import ProxyProcess
from knapcache.proxy.http.turns import Turns
from knapcache.proxy.routing import RoutedRequest, Router, bypass_reason
from knapcache.proxy.settings.routes import RouteSettings
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.tags import ALLOWED_TAGS

FastResponse = Callable[[RequestHead, Endpoint, bytes], tuple[bytes, ...] | None]

MAX_NAMESPACE = 256
"""Characters of a namespace that a caller chooses."""


class Handler:
    """Serves the requests of one proxy to cached endpoints."""

    def __init__(self, proxy: ProxyProcess, access: AccessControl) -> None:
        settings = proxy.settings
        self._access, self._upstreams, self._events = access, proxy.upstreams, proxy.events
        self._max_body, self._max_decompressed = settings.max_body, settings.max_decompressed
        self._ttl, self._abandoned_timeout = settings.ttl, settings.abandoned_timeout
        self._max_cached, self._workers, self._meter = settings.max_cached_body, proxy.body_pool, proxy.meter
        self._features, self._router = proxy.features, Router(settings.route)
        self._pause = Turns().pause
        self._fetcher = fetcher = Fetcher(
            proxy.cache,
            finish_abandoned=settings.finish_abandoned,
            max_answer=settings.max_answer,
            offload=proxy.body_pool.call,
            pause=self._pause,
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
        elif not proxy.features.sees_hits:  # the fast path knows neither stale answers nor the text of requests
            self._fast_path = FastPath(proxy.cache, proxy.events.append_short)
            self.fast_response = self._fast_path.respond

    async def serve(self, request: AsgiRequest, endpoint: Endpoint) -> None:
        """Send the response to a request, and record its event."""
        head = self._access.authorize(request)
        request.headers = head.headers
        raw = await request.read_body(self._max_body, self._max_decompressed, self._workers)
        fast_path = self._fast_path if head.plain and not request.query and not request.deployment else None
        if fast_path is not None and await self._serve_known(fast_path, request, head, endpoint, raw):
            return
        if len(raw) <= SHORT:
            call = self._call(request, head, endpoint, raw)
        else:
            call = await self._workers.call(partial(self._call, request, head, endpoint, raw))
        try:
            exchange = call.begin(self._features, self._workers)
            fetch = partial(self._fetch, upstream=call.upstream.name, send=call.send)
            fetched = None
            if call.may_substitute:
                fetched = await call.fetch_substituted(exchange, fetch, self._workers)
            if fetched is None:
                fetched = await call.fetch(exchange, fetch)
            if fetched is None:
                await call.forward()
                return
            hit = len(fetched.answers) == 1 and fetched.answers[0].outcome == "hit"
            if fast_path is not None and hit and not call.substituted:
                fast_path.remember(
                    call.exchange, call.upstream, call.model, fetched.answers[0], head.known_as, call.route_name
                )
            await call.respond(fetched, self._abandoned_timeout, self._pause)
        except UpstreamFailed as error:
            await call.fail(error)
        finally:
            call.end()

    async def _serve_known(
        self, fast_path: FastPath, request: AsgiRequest, head: RequestHead, endpoint: Endpoint, raw: bytes
    ) -> bool:
        """Serve a hit of a request that is known by its bytes."""
        found = await fast_path.find(raw, head.known_as, endpoint)
        if found is None:
            return False
        known, answer = found
        try:
            fetched = Fetched(await self._fetcher.response(known.exchange, answer), (answer,))
        except Incomplete:  # a newer answer took its place, and lacks what the request asks for
            return False
        call = Call(
            request,
            head,
            known.exchange,
            known.upstream,
            known.model,
            self._events,
            self._meter,
            route_name=known.route,
        )
        await call.respond(fetched, self._abandoned_timeout, self._pause)
        return True

    def _call(self, request: AsgiRequest, head: RequestHead, endpoint: Endpoint, raw: bytes) -> Call:
        """Parse a request and select its upstream. Long ones in a thread (`keys/scan.py` has the reasons)."""
        parsed = parse_request(raw) if len(raw) <= self._max_cached else too_long_to_key(len(raw), self._max_cached)
        body = parsed if isinstance(parsed, ParsedBody) else None
        model = self._find_model(raw) if body is None else model_of(body)
        model = request.deployment or model
        if len(model) > MAX_MODEL_LENGTH:
            raise name_too_long("model", len(model), MAX_MODEL_LENGTH)
        route = self._route(head, endpoint, model, body) if self._router.routes else None
        group = None if route is None else self._upstreams.groups.get(route.name)
        if group is not None:
            upstream, base = group.members[0].upstream, group.context
        else:
            upstream = self._upstream_of(model, known=body is not None)
            base = upstream.context
        context = key_context(base, request, head, route)
        exchange = self._exchange(request, head, endpoint, raw, parsed, context)
        if route is not None and not exchange.bypass:
            exchange = exchange._replace(bypass=bypass_reason(route, exchange.body))
        return Call(request, head, exchange, upstream, model, self._events, self._meter, route, group)

    def _upstream_of(self, model: str, *, known: bool) -> Upstream:
        """Return the upstream that serves a model. known: "" is the model of the body; False: no model was found."""
        if not model and not known:
            return self._upstreams.all[0]
        upstream = self._upstreams.for_model(model)
        if upstream is None:
            raise RequestRejected(404, f"No upstream serves the model {model[:100]!r}.", "model_not_found")
        return upstream

    def _exchange(
        self,
        request: AsgiRequest,
        head: RequestHead,
        endpoint: Endpoint,
        raw: bytes,
        parsed: ParsedBody | Uncacheable,
        context: Mapping[str, str],
    ) -> Exchange:
        """Return the exchange of a request. Raises RequestRejected for a tag or a namespace that is not allowed."""
        try:
            exchange = make_exchange(
                endpoint, request.headers, raw, parsed, head.principal.namespace, context, self._ttl
            )
        except InvalidInput as error:  # it quotes a tag
            reason = f"The request has a tag that is not allowed; allowed are {ALLOWED_TAGS}."
            raise RequestRejected(400, f"{error}.", "invalid_request", reason=reason) from None
        namespace = exchange.control.namespace
        if namespace is not None and len(namespace) > MAX_NAMESPACE:
            raise name_too_long("cache.namespace", len(namespace), MAX_NAMESPACE)
        return exchange

    def _find_model(self, raw: bytes) -> str:
        """Return the model of a body that is not parsed; "" if nothing depends on it, or it has none."""
        several = len(self._upstreams.all) > 1
        if not several and not self._router.routes and not self._features.needs_model:
            return ""
        try:
            return find_model(raw)
        except Uncacheable as reason:
            if several:
                raise model_not_found(reason) from None
            return ""  # the cost of its answer is known by the model that the answer names
        except InvalidInput as error:
            raise RequestRejected(400, f"{error}.", "invalid_request") from None

    def _route(
        self, head: RequestHead, endpoint: Endpoint, model: str, body: ParsedBody | None
    ) -> RouteSettings | None:
        return self._router.find(RoutedRequest(endpoint.value, head.principal.name, model, head.headers, body))

    async def drain(self, seconds: float) -> None:
        """Wait for background fetches, for this time at most. The server waits for requests."""
        if self._stale is not None:
            await self._stale.drain(seconds)


def model_of(body: ParsedBody) -> str:
    """Return the model of a request; "" if it has none."""
    model = body.get("model", "")
    return model if type(model) is str else ""


def key_context(
    base: Mapping[str, str], request: AsgiRequest, head: RequestHead, route: RouteSettings | None
) -> Mapping[str, str]:
    """Return what the answer depends on beside the body. base: that of the upstream, or of its group."""
    context = base
    if route is not None and route.namespace is not None:
        context = {**context, "route namespace": route.namespace}
    if head.vary:
        context = {**context, **head.vary}
    if request.query:
        context = {**context, "query": fingerprint(request.query)}
    if request.deployment:
        context = {**context, "deployment": request.deployment}
    return context


def name_too_long(field: str, length: int, limit: int) -> RequestRejected:
    """Return the error for a name that is too long. Tables are kept by these names."""
    return RequestRejected(400, f"{field} has {length} characters; at most {limit} are allowed.", "invalid_request")


def too_long_to_key(length: int, limit: int) -> Uncacheable:
    """Return why a long body has no key."""
    return Uncacheable(f"the body has {length} bytes, and only bodies of up to max_cached_body = {limit} are cached")


def no_fast_response(_head: RequestHead, _endpoint: Endpoint, _body: bytes) -> None:
    """Serve nothing at once."""
