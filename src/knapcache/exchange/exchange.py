"""One HTTP exchange with a provider, as the cache sees it: the request, the part of the answer that is stored, and the
response. Pure, and shared by all transports.

The key depends on the body and on

    namespace   a hash of the caller's credentials: two API keys never share an answer, unless a tenant is named
    context     where the request is sent (scheme, host, path; the query hashed) and headers that may change answers

An entry holds the body in the form in which it came (`knapcache.wire`) and the provider's request id. No other header
is stored: cookies and rate limits belong to one client. Answers that are not stored (errors, incomplete answers) still
go to all waiters of the same fetch, with their headers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, get_args

from knapcache.cache import Answer, Reply
from knapcache.cache.values import SimilarMatch
from knapcache.errors import Incomplete, Uncacheable
from knapcache.exchange.headers import (
    Pairs,
    cache_headers,
    credentials_namespace,
    fingerprint,
    forwarded_headers,
    outcome_headers,
    request_ids,
    sandboxed,
    stored_ids,
    vary_context,
)
from knapcache.keys.canonical import embedding_inputs, reject_fields
from knapcache.keys.edited_text import edited_text
from knapcache.keys.parse import SHORT, ParsedBody, parse_body
from knapcache.keys.public import public_reason
from knapcache.keys.request import KeyedRequest
from knapcache.keys.rules import CROSS_ITEM_OPTIONS, STATEFUL_FIELDS
from knapcache.keys.scan import check_cost
from knapcache.model import Endpoint
from knapcache.store.base import Entry
from knapcache.wire import FORMATS, CacheControl, Format, StreamCollector, endpoint_of, parse_cache_control
from knapcache.wire.base import CONTENT_TYPE, CompleteAnswer, Form, compacted, to_json
from knapcache.wire.cache_control import CONTROL_HEADERS, NO_DIRECTIVES, with_usage

EMBEDDED = "local"
"""`upstream` in the context of requests that the embedded model answers."""
FORMS = frozenset(get_args(Form))
STORED = frozenset(("hit", "stale", "similar"))
"""Outcomes of answers that come from the store. Only complete answers are stored."""


class BodyMarker(Protocol):
    """Marks the body of a request for the provider's prefix cache, when it is sent."""

    async def mark(self) -> Mapping[str, Any] | None:
        """Return the marked body, or None: the body is sent as it came."""

    def answered(self, status: int, *, marked: bool) -> None:
        """Take note of the status with which the upstream has answered a body with or without marks."""

    @property
    def refusable(self) -> bool:
        """Whether the upstream has not yet accepted a marked body for this model."""

    @property
    def upstream(self) -> str:
        """Name of the upstream for which the body is, or that has answered."""

    @property
    def fallback(self) -> FallbackAnswer | None:
        """The model that has answered instead of the usual one; None: the usual one has."""


class FallbackAnswer(NamedTuple):
    """An answer of another model than usual, because its upstream stood in for another one."""

    model: str
    keep: bool
    """Whether the answer may be stored."""


class SimilarFinder(Protocol):
    """Looks for the answer to a question in another wording, after an exact miss. It raises no exception."""

    async def find(self, request: KeyedRequest) -> tuple[Entry, SimilarMatch] | None:
        """Return the entry that may answer the request, or None: the request is sent upstream."""


class Exchange(NamedTuple):
    """A request to an endpoint whose answers are cached. A tuple, which is created in a third of a dataclass' time."""

    format: Format
    body: ParsedBody
    raw: bytes
    control: CacheControl
    namespace: str | None
    """None: the cache's default namespace."""
    context: Mapping[str, str]
    bypass: str = ""
    """Why the request has no key and is sent as it is; empty: it has one."""
    fresh_for: float | None = None
    """Seconds after which the answer is stale, if it is stored for longer (`stale.py`)."""
    stream: bool = False
    """Whether the caller gets a stream."""
    marker: BodyMarker | None = None
    """None: the body is sent as it came."""
    finder: SimilarFinder | None = None
    """None: only the answer to the same request is served."""
    fallback: FallbackAnswer | None = None
    """Set when another model than usual has answered."""

    @property
    def is_embedded(self) -> bool:
        """Whether the embedded model answers."""
        return self.context.get("upstream") == EMBEDDED

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the format."""
        return self.format.endpoint

    @property
    def include_usage(self) -> bool:
        """Whether the caller asks for the usage of a stream."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @property
    def lacks_usage(self) -> bool:
        """Whether the answer is a stream whose usage, and so its cost, is unknown unless the proxy asks for it."""
        return self.stream and self.format.usage_on_request and not self.include_usage

    @property
    def key_args(self) -> dict[str, Any]:
        """The arguments of `InternalCache.keyed_request` and `InternalCache.lookup` beside the body."""
        return {"namespace": self.namespace, "context": self.context}

    def fetch_args(self, refresh: bool) -> dict[str, Any]:
        """The arguments of `InternalCache.begin`."""
        control = self.control
        return {
            "refresh": refresh,
            "store": control.store,
            "only_cached": control.only_cached,
            "max_age": control.max_age,
        }

    def upstream_body(self, ask_usage: bool, marked: Mapping[str, Any] | None = None) -> bytes:
        """Return the body for the provider: without directives for the cache, with usage asked for if it is needed.

        Everything else is sent byte for byte as it came. marked: the body with marks for the provider's prefix cache
        """
        body: Mapping[str, Any] = self.body if marked is None else marked
        if isinstance(body.get("cache"), dict):
            body = {name: value for name, value in body.items() if name != "cache"}
        if ask_usage and self.lacks_usage:
            body = with_usage(body)
        return self.raw if body is self.body else edited_text(self.raw, self.body, body)


class CachedResponse(NamedTuple):
    """A response whose whole body is in memory."""

    status: int
    headers: Pairs
    body: bytes | Iterable[bytes]
    """An iterable yields the blocks of a stream."""


def cacheable_endpoint(method: str, path: str) -> Endpoint | None:
    """Return the endpoint of a request; None if its answers are not cached."""
    return endpoint_of(path) if method == "POST" else None


def exchange_of(
    endpoint: Endpoint,
    url: Any,
    headers: Mapping[str, str],
    raw: bytes,
    tenant: str | None = None,
    ignored_headers: Collection[str] = (),
) -> Exchange:
    """Return the exchange of a request to a URL, which has scheme, host, port, path and query."""
    namespace = credentials_namespace(headers) if tenant is None else tenant
    context = {
        "url": f"{url.scheme}://{url.host}:{url.port or ''}{url.path}",
        **vary_context(headers, ignored_headers),
    }
    if url.query:
        context["query"] = fingerprint(bytes(url.query))  # it may contain a key
    return make_exchange(endpoint, headers, raw, parse_request(raw), namespace, context)


def parse_request(raw: bytes) -> ParsedBody | Uncacheable:
    """Return the parsed body of a request, or the reason why it can have no key."""
    try:
        return parse_body(raw)
    except Uncacheable as reason:
        return reason.with_traceback(None)


def make_exchange(
    endpoint: Endpoint,
    headers: Mapping[str, str],
    raw: bytes,
    parsed: ParsedBody | Uncacheable,
    namespace: str | None,
    context: Mapping[str, str],
    max_ttl: float | None = None,
) -> Exchange:
    """Return the exchange of a parsed request.

    parsed    the body, or why it can have no key
    context   has `vary_context` of the headers
    max_ttl   bound on the caller's `ttl`; None: no bound

    Raises InvalidInput for bad tags.
    """
    wire_format = FORMATS[endpoint]
    control = NO_DIRECTIVES
    body = ParsedBody() if isinstance(parsed, Uncacheable) else parsed
    if "cache" in body or not CONTROL_HEADERS.isdisjoint(headers):
        control = parse_cache_control(headers, body)
        if control.ttl is not None and max_ttl is not None and control.ttl > max_ttl:
            control = replace(control, ttl=max_ttl)
        if control.namespace is not None:
            context = {**context, "namespace": control.namespace}
    return Exchange(
        format=wire_format,
        body=body,
        raw=raw,
        control=control,
        namespace=namespace,
        context=context,
        bypass=public_reason(parsed) if isinstance(parsed, Uncacheable) else why_no_key(wire_format, body),
        stream=body.get("stream") is True and wire_format.streaming is not None,
    )


def why_no_key(wire_format: Format, body: ParsedBody) -> str:
    """Return why a request has no key as a whole, although some of its items may have one; empty: it has one.

    In `["a", ["b"]]` the second item is neither a text nor tokens; on its own it would be a list of one text.
    """
    if wire_format.per_item is not None:
        try:
            embedding_inputs(body)
            reject_fields(body, CROSS_ITEM_OPTIONS, "the embeddings depend on one another")
        except Uncacheable as reason:
            return public_reason(reason)
    for name in STATEFUL_FIELDS.get(wire_format.endpoint, ()):
        if body.get(name) not in (None, False):
            return f"the answer depends on the state of a server at {name}"
    return ""


def is_event_stream(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether a provider's answer is a stream, whatever was asked for."""
    return status == 200 and headers.get("content-type", "").lower().startswith("text/event-stream")


def plain_reply(exchange: Exchange, status: int, headers: Mapping[str, str], content: bytes) -> Reply:
    """Return the reply to the cache for a plain answer."""
    try:
        if status != 200:
            raise Incomplete(f"status {status}")
        if len(content) > SHORT:
            check_cost(content)
        answer = exchange.format.parse(content, exchange.body)
    except (Incomplete, Uncacheable):
        cost = None if status == 200 else 0.0  # providers do not bill errors
        return Reply(content, meta=failed_meta(status, headers, "json"), cacheable=False, cost=cost)
    return stored_reply(exchange, answer, stored_meta(headers, "json", exchange.fresh_for))


def stream_reply(
    exchange: Exchange,
    headers: Mapping[str, str],
    collector: StreamCollector,
    forwarded: list[bytes],
    usage_asked: bool,
) -> Reply:
    """Return the reply to the cache for a stream. forwarded: the blocks that the caller got."""
    try:
        answer = compacted(collector.complete())
    except Incomplete:
        return Reply(b"".join(forwarded), meta=failed_meta(200, headers, "sse"), cacheable=False)
    meta = stored_meta(headers, answer.form, exchange.fresh_for)
    if exchange.format.usage_on_request and answer.usage is None and not usage_asked:
        meta["lacks"] = "usage"
    return stored_reply(exchange, answer, meta)


def stored_reply(exchange: Exchange, answer: CompleteAnswer, meta: dict[str, Any]) -> Reply:
    """Return the reply to the cache for a complete answer."""
    fallback = exchange.fallback
    if fallback is not None:
        meta["fallback"] = fallback.model
    elif exchange.is_embedded:
        meta["embedded"] = True
    return Reply(
        payload=answer.body,
        model=answer.model,
        usage=answer.usage,
        meta=meta,
        cacheable=fallback is None or fallback.keep,
        ttl=exchange.control.ttl,
        tags=exchange.control.tags,
        tier=answer.tier,
    )


def stored_meta(headers: Mapping[str, str], form: Form, fresh_for: float | None = None) -> dict[str, Any]:
    """Return what is stored beside a body. `cache/transfer_checks.py` has the names of all fields."""
    ids = request_ids(headers)
    return {"form": form, **({"ids": ids} if ids else {}), **({} if fresh_for is None else {"fresh": fresh_for})}


def failed_meta(status: int, headers: Mapping[str, str], form: Form) -> dict[str, Any]:
    """Return what waiters need to know about an answer that is not stored."""
    return {"form": form, "status": status, "headers": forwarded_headers(headers.items())}


def to_response(
    exchange: Exchange, answer: Answer, upstream_headers: Iterable[tuple[str, str]] | None = None
) -> CachedResponse:
    """Return an answer of the cache as a response, or raise Incomplete if it lacks what the request asks for.

    upstream_headers   the provider's, for the caller that made the fetch
    """
    meta = answer.meta
    form: Form = "sse" if exchange.stream else "json"
    if meta.get("form") not in FORMS or ("status" in meta and answer.outcome in STORED):
        raise Incomplete("an answer that no proxy has stored")  # a library, or a forged import
    if "status" in meta:
        if upstream_headers is None and meta["status"] == 200 and meta["form"] != form:
            raise Incomplete("an incomplete answer in the other form")
        headers = [(name, value) for name, value in meta["headers"]]
        if upstream_headers is not None:
            headers = forwarded_headers(upstream_headers)
        return CachedResponse(meta["status"], sandboxed(headers) + cache_headers(answer), answer.payload)
    if meta.get("lacks") == "usage" and (exchange.include_usage or not exchange.stream):
        raise Incomplete("a stream without usage")
    body: bytes | Iterable[bytes]
    if exchange.stream:
        body = exchange.format.to_stream(answer.payload, meta["form"], exchange.include_usage)
    else:
        body = exchange.format.to_plain(answer.payload, meta["form"])
    if upstream_headers is None:
        upstream_headers = stored_ids(meta).items()
    headers = [("content-type", CONTENT_TYPE[form])]
    headers += [pair for pair in forwarded_headers(upstream_headers) if pair[0].lower() != "content-type"]
    headers += cache_headers(answer)
    return CachedResponse(200, headers, body)


def not_cached() -> CachedResponse:
    """Return the response to `only-if-cached` without a stored answer."""
    error = {"message": "only-if-cached was requested and no answer is stored", "type": "not_cached"}
    headers = [("content-type", "application/json"), *outcome_headers("miss", forwarded=False)]
    return CachedResponse(504, [*headers, ("x-should-retry", "false")], to_json({"error": error}))
