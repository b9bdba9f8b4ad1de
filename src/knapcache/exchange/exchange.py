"""One HTTP exchange with a provider, seen by the cache: what is asked, what may be kept of the answer, what is given.

Pure, and shared by all transports. What the answer depends on goes into the key:

    namespace   the caller's credentials, hashed: two API keys never share an answer, unless a tenant is named
    context     where it is sent (scheme, host, path; the query hashed) and headers that change answers

What is kept of an answer is its body in the form it came in (`knapcache.wire`) and the provider's id of the request; no
other header, for cookies and limits are nobody else's. What may not be kept (errors, answers that are not whole) still
goes to all who wait for the same call, with its headers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from knapcache.cache import Answer, Reply
from knapcache.errors import Incomplete, Uncacheable
from knapcache.keys.canonical import embedding_inputs
from knapcache.keys.parse import ParsedBody, parse_body
from knapcache.keys.rules import STATEFUL_FIELDS
from knapcache.model import Endpoint
from knapcache.wire import Collector, Control, as_plain, as_stream, control_of, embeddings, endpoint_of, plain_answer
from knapcache.wire.base import CONTENT_TYPE, USAGE_APART, Form
from knapcache.wire.cache_control import wants_stream, wants_usage, with_usage
from knapcache.wire.json_util import compact, read_object

CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "openai-organization", "openai-project")
GATEWAYS = (
    "cf-aig-authorization", "helicone-auth", "ocp-apim-subscription-key", "x-portkey-api-key", "x-portkey-virtual-key",
)  # fmt: skip
"""Where gateways look for credentials."""
VARY_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")
"""Headers that change answers."""
ROUTING = ("helicone-target-url", "x-portkey-config", "x-portkey-custom-host", "x-portkey-provider")
"""Headers that tell a gateway where to send a request. They may have keys in them, and are hashed."""
REQUEST_IDS = ("x-request-id", "request-id")
OWN = frozenset(
    ("connection", "content-encoding", "content-length", "keep-alive", "set-cookie", "trailer", "transfer-encoding")
)
"""Headers of one connection or one client."""
CACHE_STATUS = {
    "hit": "knapcache; hit",
    "coalesced": "knapcache; fwd=miss; collapsed",
    "miss": "knapcache; fwd=miss",
    "bypass": "knapcache; fwd=bypass",
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request to an endpoint whose answers are kept."""

    endpoint: Endpoint
    body: ParsedBody
    """Read once; the cache takes it as it is."""
    raw: bytes
    control: Control
    namespace: str | None
    """None: the cache's own."""
    context: Mapping[str, str]
    bypass: bool = False
    """It has no key: it is sent as it is."""
    fresh: float | None = None
    """Seconds after which the answer is stale, where it is kept for longer than that."""

    @property
    def stream(self) -> bool:
        """Whether the answer is to be a stream."""
        return wants_stream(self.body) and self.endpoint is not Endpoint.EMBEDDINGS

    @property
    def usage(self) -> bool:
        """Whether a stream is to end with its usage."""
        return wants_usage(self.body)

    @property
    def whose(self) -> dict[str, Any]:
        """Whose it is, as the cache wants to know."""
        return {"namespace": self.namespace, "context": self.context}

    def wishes(self, refresh: bool) -> dict[str, Any]:
        """How the cache is to serve it."""
        control = self.control
        return {
            "namespace": self.namespace,
            "context": self.context,
            "refresh": refresh,
            "store": control.store,
            "only_cached": control.only_cached,
            "max_age": control.max_age,
        }

    def sent(self, ask_usage: bool) -> bytes:
        """The body for the provider: without what speaks to us, and with usage where that is to be asked for."""
        body: dict[str, Any] = self.body
        if isinstance(body.get("cache"), dict):
            body = {name: value for name, value in body.items() if name != "cache"}
        if ask_usage and self.usage_apart:
            return with_usage(body)
        return self.raw if body is self.body else compact(body)

    @property
    def usage_apart(self) -> bool:
        """A stream whose usage, and so its price, comes only if it is asked for, and was not."""
        return self.stream and self.endpoint in USAGE_APART and not self.usage


class CachedResponse(NamedTuple):
    """What the caller gets."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | Iterable[bytes]
    answer: Answer | None = None
    """What the cache had to say about it; None where it was not asked."""
    parts: tuple[Answer, ...] = ()
    """The same for each item of several."""


def cacheable_endpoint(method: str, path: str) -> Endpoint | None:
    """The endpoint, if it is one whose answers are kept."""
    return endpoint_of(path) if method == "POST" else None


def exchange_of(
    endpoint: Endpoint, url: Any, headers: Mapping[str, str], raw: bytes, tenant: str | None = None
) -> Exchange:
    """The exchange that a request opens. `url` has scheme, host, port, path and query."""
    namespace = credentials(headers) if tenant is None else tenant
    context = {"url": f"{url.scheme}://{url.host}:{url.port or ''}{url.path}"}
    if url.query:
        context["query"] = hashed(bytes(url.query))  # Some send their key in it.
    return opened(endpoint, headers, raw, body_of(raw), namespace, context)


def body_of(raw: bytes) -> ParsedBody | None:
    """The request read; None where it is nothing that has a key."""
    try:
        return parse_body(raw)
    except Uncacheable:
        return None


def opened(
    endpoint: Endpoint,
    headers: Mapping[str, str],
    raw: bytes,
    body: ParsedBody | None,
    namespace: str | None,
    context: Mapping[str, str],
) -> Exchange:
    """An exchange whose body was read, in a context to which headers may add."""
    if body is None:
        return Exchange(endpoint, ParsedBody(), raw, Control(), namespace, context, bypass=True)
    control = control_of(headers, body)
    more = {name: headers[name] for name in VARY_HEADERS if name in headers}
    more |= {name: hashed(headers[name].encode()) for name in ROUTING if name in headers}
    if control.namespace is not None:
        more["namespace"] = control.namespace
    told = {**context, **more} if more else context
    return Exchange(endpoint, body, raw, control, namespace, told, bypass=keyless(endpoint, body))


def keyless(endpoint: Endpoint, body: ParsedBody) -> bool:
    """Whether a request has no key as a whole, though parts of it may look as if they had one.

    In `["a", ["b"]]` the second item is neither a text nor tokens; asked for alone it would be a list of one text.
    """
    if endpoint is Endpoint.EMBEDDINGS:
        try:
            embedding_inputs(body)
        except Uncacheable:
            return True
    return any(body.get(name) not in (None, False) for name in STATEFUL_FIELDS.get(endpoint, ()))


def credentials(headers: Mapping[str, str]) -> str | None:
    """Whose cache it is: a hash, for a namespace is written down and a key must not be."""
    found = "\n".join(f"{name}: {headers[name]}" for name in (*CREDENTIALS, *GATEWAYS) if name in headers)
    return f"key-{hashed(found.encode())}" if found else None


def hashed(secret: bytes) -> str:
    """A name for something that is not to be read."""
    return hashlib.blake2b(secret, digest_size=16, person=b"knapcache").hexdigest()


def is_stream(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer is a stream, whatever was asked for."""
    return status == 200 and headers.get("content-type", "").lower().startswith("text/event-stream")


def plain_reply(exchange: Exchange, status: int, headers: Mapping[str, str], content: bytes) -> Reply:
    """What a plain answer comes to."""
    meta, ttl = kept_meta(headers, "json", exchange.fresh), exchange.control.ttl
    try:
        if status != 200:
            raise Incomplete(f"status {status}")
        if exchange.endpoint is Endpoint.EMBEDDINGS:
            (part,) = embeddings.parts(read_object(content), embeddings.items(exchange.body.get("input")))
            return Reply(part.payload, part.model, part.usage, meta=meta, ttl=ttl)
        whole = plain_answer(exchange.endpoint, content)
    except Incomplete:
        cost = None if status == 200 else 0.0  # nobody bills an error
        return Reply(content, meta=failed_meta(status, headers, "json"), cacheable=False, cost=cost)
    return Reply(content, whole.model, whole.usage, meta=meta, ttl=ttl, tier=whole.tier)


def stream_reply(
    exchange: Exchange, headers: Mapping[str, str], collector: Collector, passed: list[bytes], asked: bool
) -> Reply:
    """What a stream comes to. passed: as the caller got it; asked: usage was asked for, by the caller or for it."""
    try:
        whole = collector.whole()
    except Incomplete:
        return Reply(b"".join(passed), meta=failed_meta(200, headers, "sse"), cacheable=False)
    meta = kept_meta(headers, "sse", exchange.fresh)
    if exchange.endpoint in USAGE_APART and whole.usage is None and not asked:
        meta["lacks"] = "usage"
    return Reply(whole.body, whole.model, whole.usage, meta=meta, ttl=exchange.control.ttl, tier=whole.tier)


def kept_meta(headers: Mapping[str, str], form: str, fresh: float | None = None) -> dict[str, Any]:
    """What is kept beside a body."""
    ids = {name: headers[name] for name in REQUEST_IDS if name in headers}
    return {"form": form, **({"ids": ids} if ids else {}), **({} if fresh is None else {"fresh": fresh})}


def is_stale(answer: Answer) -> bool:
    """Whether a kept answer is past its time, and was kept for when there is no other."""
    fresh = answer.meta.get("fresh")
    return fresh is not None and answer.outcome == "hit" and answer.age > fresh


def failed_meta(status: int, headers: Mapping[str, str], form: str) -> dict[str, Any]:
    """What those who wait are told of an answer that is not kept."""
    return {"form": form, "status": status, "headers": passing(headers.items())}


def passing(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers that may be given to another client."""
    return [(name, value) for name, value in headers if name.lower() not in OWN]


def given(exchange: Exchange, answer: Answer, headers: Iterable[tuple[str, str]] | None) -> CachedResponse:
    """An answer of the cache as an HTTP response, or Incomplete where it has not what is asked for.

    headers   those of the provider, for the one whose call it was
    """
    meta = answer.meta
    wanted: Form = "sse" if exchange.stream else "json"
    said = cache_headers(answer)
    if "status" in meta:
        if headers is None and meta["status"] == 200 and meta["form"] != wanted:
            raise Incomplete("an answer that is not whole, in the other form")
        given_headers = passing(headers) if headers is not None else [(name, value) for name, value in meta["headers"]]
        return CachedResponse(meta["status"], given_headers + said, answer.payload, answer)
    if meta.get("lacks") == "usage" and (exchange.usage or not exchange.stream):
        raise Incomplete("a stream without usage")
    body: bytes | Iterable[bytes]
    if exchange.endpoint is Endpoint.EMBEDDINGS:
        body = embeddings.join([answer.payload])
    elif exchange.stream:
        body = as_stream(exchange.endpoint, answer.payload, meta["form"], exchange.usage)
    else:
        body = as_plain(exchange.endpoint, answer.payload, meta["form"])
    if headers is None:
        headers = meta.get("ids", {}).items()
    kept = [(name, value) for name, value in passing(headers) if name.lower() != "content-type"]
    return CachedResponse(
        200, [("content-type", CONTENT_TYPE["sse" if exchange.stream else "json"]), *kept, *said], body, answer
    )


def cache_headers(answer: Answer) -> list[tuple[str, str]]:
    """What a caller is told of where its answer comes from: in words of our own, and in those of RFC 9211."""
    outcome = answer.outcome
    said = [("x-knapcache", outcome), ("x-knapcache-key", answer.key), ("cache-status", CACHE_STATUS[outcome])]
    if outcome in ("hit", "coalesced"):
        said.append(("age", str(int(answer.age))))
        if answer.saved_usd is not None:
            said.append(("x-knapcache-saved-usd", f"{answer.saved_usd:.8f}"))
    return said


def not_cached() -> CachedResponse:
    """Only a kept answer was asked for, and there is none."""
    error = {"message": "only-if-cached was asked for, and there is no kept answer", "type": "not_cached"}
    headers = [("content-type", "application/json"), ("x-knapcache", "miss"), ("x-should-retry", "false")]
    return CachedResponse(504, headers, compact({"error": error}))
