"""Headers: which of a request are part of the key, which of a response reach the caller, and those of the cache.

Every header of a request may change its answer, so every header is part of the key, except

    credentials   they are part of the namespace
    neutral       known not to change answers: transport, tracing, request ids, the client's name and version
    ignored       those that the settings name

The values of `VARY_HEADERS` are in the key as they are. All others are hashed together, because they may be secret.

These response headers say how the cache served a request. Every response gets them from here.

    x-knapcache             the outcome: hit, similar, miss, coalesced, stale, bypass or passthrough
    cache-status            the outcome in the terms of RFC 9211; none for `passthrough`, which never reached the cache
    x-knapcache-key         the digest of the key, in hex
    x-knapcache-matched-key, x-knapcache-similarity, x-knapcache-bound, x-knapcache-match    of an answer to a similar
                            question: the entry that answered, the cosine of the two questions, the certified share of
                            wrong answers, and the id of the match for feedback
    age                     seconds since the answer was fetched
    x-knapcache-saved-usd   US dollars not spent because the answer was stored, if its price is known; otherwise
    x-knapcache-saved-seconds, x-knapcache-saved-tokens    upstream time and tokens not needed
    x-knapcache-prices      simulated: the dollars are of the embedded model, which is free; its price is made up

    x-knapcache-model       the model that answered, if it is not the one that was asked for

The proxy adds `x-knapcache-upstream`, the name of the upstream, to answers that it has fetched. The saved amounts are
sent with answers that were not paid for again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from knapcache.cache import Answer
from knapcache.cache.values import EMPTY, SimilarMatch
from knapcache.price.meter import Bill
from knapcache.wire.base import to_json
from knapcache.wire.cache_control import CONTROL_HEADERS

Pairs = list[tuple[str, str]]

ACCOUNTS = ("openai-organization", "openai-project")
CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", *ACCOUNTS)
"""Headers by which a provider knows its user, and the proxy its tenant. Each has its place in `auth.py`."""
GATEWAY_CREDENTIALS = (
    "cf-aig-authorization", "helicone-auth", "ocp-apim-subscription-key", "proxy-authorization", "x-amz-security-token",
    "x-litellm-api-key", "x-portkey-api-key", "x-portkey-virtual-key",
)  # fmt: skip
"""Headers by which a gateway between the caller and the provider knows the caller."""
SECRET_HEADERS = tuple(name for name in (*CREDENTIALS, *GATEWAY_CREDENTIALS) if name not in ACCOUNTS)
"""Headers whose values are never logged."""
VARY_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")
"""Headers that change answers. All other headers that are not neutral count, too."""
NEUTRAL_HEADERS = frozenset((
    *CREDENTIALS, *GATEWAY_CREDENTIALS, *CONTROL_HEADERS,
    # the connection and the transport of the message
    "accept", "accept-charset", "accept-encoding", "connection", "content-encoding", "content-length", "date", "dnt",
    "expect", "host", "keep-alive", "pragma", "priority", "proxy-connection", "te", "trailer", "transfer-encoding",
    "upgrade", "upgrade-insecure-requests",
    # the client
    "anthropic-dangerous-direct-browser-access", "cdn-loop", "cookie", "forwarded", "from", "http-referer", "origin",
    "referer", "true-client-ip", "user-agent", "via", "x-client-ip", "x-goog-api-client", "x-real-ip",
    "x-requested-with", "x-title",
    # traces and ids of requests
    "b3", "baggage", "idempotency-key", "langsmith-trace", "request-id", "sentry-trace", "traceparent", "tracestate",
    "uber-trace-id", "x-amzn-trace-id", "x-client-request-id", "x-cloud-trace-context", "x-correlation-id",
    "x-ms-client-request-id", "x-request-id", "x-request-start", "x-trace-id",
))  # fmt: skip
"""Headers that do not change answers."""
NEUTRAL_PREFIXES = (
    "cf-aig-metadata", "cf-connecting-", "cf-ip", "cf-ray", "cf-visitor", "cf-worker", "helicone-cache-",
    "helicone-property-", "helicone-request-id", "helicone-session-", "helicone-user-id", "sec-", "x-b3-",
    "x-claude-code-", "x-datadog-", "x-envoy-", "x-forwarded-", "x-knapcache", "x-portkey-cache-",
    "x-portkey-metadata", "x-portkey-span-", "x-portkey-trace-", "x-stainless-",
)  # fmt: skip
"""Beginnings of names of neutral headers. Other headers of gateways may select a model, so they are not neutral."""
NEUTRAL_VALUES = {
    "accept-language": re.compile(r"\s*\*\s*"),
    "content-type": re.compile(r"\s*(?:application/json\s*(?:;\s*charset=\"?utf-8\"?\s*)?)?", re.IGNORECASE),
}
"""Values that do not change answers, of headers that are not neutral."""
REQUEST_IDS = ("x-request-id", "request-id")
MAX_REQUEST_ID = 200
"""Characters of a provider's request id that is stored."""
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""Characters of the value of a header."""
NOT_FORWARDED = frozenset((
    # of one connection
    "connection", "content-encoding", "content-length", "keep-alive", "proxy-authenticate", "proxy-authentication-info",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "via",
    # of one client
    "set-cookie", "set-cookie2",
    # for browsers: they would apply to our origin, on which the dashboard is
    "accept-ch", "alt-svc", "clear-site-data", "content-security-policy", "content-security-policy-report-only",
    "critical-ch", "expect-ct", "nel", "observe-browsing-topics", "origin-agent-cluster", "origin-trial",
    "permissions-policy", "public-key-pins", "public-key-pins-report-only", "referrer-policy", "refresh", "report-to",
    "reporting-endpoints", "service-worker-allowed", "sourcemap", "speculation-rules", "strict-transport-security",
    "supports-loading-mode", "timing-allow-origin", "x-content-type-options", "x-dns-prefetch-control",
    "x-frame-options", "x-sourcemap", "x-xss-protection",
    # our own
    "cache-status",
))  # fmt: skip
"""Response headers that belong to one connection, to one client, or to the provider's own origin."""
NOT_FORWARDED_PREFIXES = ("access-control-", "cross-origin-", "x-knapcache")
INERT_TYPES = re.compile(
    r"application/(?:json|octet-stream|[\w.-]+\+json)|text/(?:event-stream|plain)|(?:audio|video)/[\w.+-]+"
    r"|image/(?:png|jpeg|webp|gif|avif)"
)
"""Content types that a browser neither runs nor renders as a page."""
SANDBOX: Pairs = [
    ("x-content-type-options", "nosniff"),
    ("content-security-policy", "sandbox; default-src 'none'; frame-ancestors 'none'"),
]
"""Response headers under which a page has no access to our origin."""


def fingerprint(secret: bytes) -> str:
    """Return a hash that identifies a secret."""
    return hashlib.blake2b(secret, digest_size=16, person=b"knapcache").hexdigest()


def credentials_namespace(headers: Mapping[str, str]) -> str | None:
    """Return the namespace of a caller: a hash, because namespaces are stored and credentials must not be."""
    names = (*CREDENTIALS, *GATEWAY_CREDENTIALS)
    found = "\n".join(f"{name}: {headers[name]}" for name in names if name in headers)
    return f"key-{fingerprint(found.encode())}" if found else None


def vary_context(headers: Mapping[str, str], ignored: Collection[str] = ()) -> dict[str, str]:
    """Return the part of the key that depends on a request's headers, which have lower-case names.

    ignored   patterns of names of further headers that are not part of the key
    """
    context: dict[str, str] = {}
    others = []
    for name, value in headers.items():
        if name in VARY_HEADERS:
            context[name] = value
        elif not is_neutral(name, value) and not any(fnmatchcase(name, pattern) for pattern in ignored):
            others.append((name, value))
    if others:
        context["headers"] = fingerprint(to_json(sorted(others)))
    return context


def is_neutral(name: str, value: str) -> bool:
    """Return whether a header is known not to change answers."""
    if name in NEUTRAL_HEADERS or name.startswith(NEUTRAL_PREFIXES):
        return True
    neutral = NEUTRAL_VALUES.get(name)
    return neutral is not None and neutral.fullmatch(value) is not None


def nominated(connection: str) -> frozenset[str]:
    """Return the names of the headers that a Connection header declares to be of one connection only."""
    return frozenset(name.strip().lower() for name in connection.split(","))


def forwarded_headers(headers: Iterable[tuple[str, str]], keep: Collection[str] = ()) -> Pairs:
    """Return the response headers that may be sent to a client. keep: names that are forwarded after all."""
    found: Pairs = []
    of_connection: frozenset[str] = frozenset()
    for pair in headers:
        name = pair[0]
        if _forwarded.get(name) or is_forwarded(name) or (keep and name.lower() in keep):
            found.append(pair)
        elif name.lower() == "connection" and pair[1].lower() not in ("keep-alive", "close"):
            of_connection |= nominated(pair[1])
    return [pair for pair in found if pair[0].lower() not in of_connection] if of_connection else found


MAX_KNOWN_NAMES = 1000
_forwarded: dict[str, bool] = {}
"""Names of response headers that are forwarded, as upstreams spell them. Invariant: at most MAX_KNOWN_NAMES."""


def is_forwarded(spelled: str) -> bool:
    """Return whether a response header may be sent to a client."""
    name = spelled.lower()
    found = name not in NOT_FORWARDED and not name.startswith(NOT_FORWARDED_PREFIXES)
    if found and len(_forwarded) < MAX_KNOWN_NAMES and len(name) <= MAX_REQUEST_ID:
        _forwarded[spelled] = True
    return found


def sandboxed(headers: Pairs) -> Pairs:
    """Return the headers of a response, with SANDBOX unless its content type is inert."""
    kinds = [value for name, value in headers if name.lower() == "content-type"]
    kind = kinds[0].partition(";")[0].strip().lower() if len(kinds) == 1 else ""
    return headers if INERT_TYPES.fullmatch(kind) else [*headers, *SANDBOX]


def request_ids(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the provider's request ids, which are stored beside an answer."""
    return {name: value for name in REQUEST_IDS if (value := headers.get(name)) and len(value) <= MAX_REQUEST_ID}


def stored_ids(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the request ids in the metadata of a stored answer. An import may have put anything there."""
    ids = meta.get("ids")
    found = request_ids(ids) if isinstance(ids, dict) and all(isinstance(each, str) for each in ids.values()) else {}
    return {name: value for name, value in found.items() if VALUE.fullmatch(value)}


CACHE_STATUS = {
    "hit": "knapcache; hit",
    "stale": "knapcache; hit",
    "similar": "knapcache; hit; detail=similar",
    "coalesced": "knapcache; fwd=miss; collapsed",
    "miss": "knapcache; fwd=miss",
    "bypass": "knapcache; fwd=bypass",
}
REUSED = ("hit", "stale", "coalesced", "similar")


def outcome_headers(outcome: str, *, forwarded: bool = True) -> Pairs:
    """Return the headers of a response without an answer of the cache. forwarded=False: no upstream was asked."""
    if not forwarded or outcome not in CACHE_STATUS:
        return [("x-knapcache", outcome)]
    return [("x-knapcache", outcome), ("cache-status", CACHE_STATUS[outcome])]


def cache_headers(answer: Answer) -> Pairs:
    """Return the headers of an answer."""
    headers = [*outcome_headers(answer.outcome), ("x-knapcache-key", answer.key)]
    if answer.similar is not None:
        headers += similar_headers(answer.similar)
    if answer.outcome in REUSED:
        headers.append(("age", str(int(answer.age))))
        if answer.saved_usd is not None:
            headers.append(("x-knapcache-saved-usd", f"{answer.saved_usd:.8f}"))
            if "embedded" in answer.meta:
                headers.append(("x-knapcache-prices", "simulated"))
        else:
            headers.append(("x-knapcache-saved-seconds", f"{answer.bill.seconds:.3f}"))
            headers.append(("x-knapcache-saved-tokens", str(answer.bill.tokens)))
        if "fallback" in answer.meta:
            headers.append(("x-knapcache-model", answer.meta["fallback"]))
    return headers


def similar_headers(match: SimilarMatch) -> Pairs:
    """Return the headers of an answer to a similar question."""
    return [
        ("x-knapcache-matched-key", match.key.hex()),
        ("x-knapcache-similarity", f"{match.similarity:.4f}"),
        ("x-knapcache-bound", f"{match.bound:.4f}"),
        ("x-knapcache-match", match.match_id),
    ]


def hit_header_lines(
    key: str, usd: float | None, seconds: float, tokens: int, meta: Mapping[str, Any] = EMPTY
) -> tuple[bytes, bytes]:
    """Return `cache_headers` of a hit as encoded header lines: up to its age, and after it. Only the age changes."""
    bill = Bill(usd, seconds, 0.0, "stored", tokens)
    answer = Answer(payload=b"", meta=meta, outcome="hit", key=key, age=0.0, saved_usd=usd, model="", bill=bill)
    text = "".join(f"{name}: {value}\r\n" for name, value in cache_headers(answer))
    before, name, after = text.partition("age: ")
    return (before + name).encode(), after.removeprefix("0").encode()
