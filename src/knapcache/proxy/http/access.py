"""Access control: hosts, origins and credentials, checked on the head of a request.

A client sends the same head with every request, apart from the length of its body. So heads are cached by their bytes:
the principal, whether a header affects caching, and the headers for the upstream are worked out once per head.

    Invariant: at most MAX_HEADS heads of at most MAX_HEAD_SIZE bytes, oldest evicted first. Rejected heads are not
    cached.

A head that is repeated on one connection need not even be parsed (`RepeatedHead`). It is recognised if the bytes that
arrive are

    before  digits  after  body          before, after: of the earlier head; digits: the length of the body

and nothing else: then the parser would report the same method, target, version and headers, with another length.
Anything else goes to the parser: a head that differs in one byte, a body in several reads, pipelined requests. Parsing
a head of six headers takes as long as everything else that a hit needs. Clients that send an id with each request send
a new head each time; such heads are not known here, and nothing is stored for them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from knapcache.exchange.headers import vary_context
from knapcache.model import Endpoint
from knapcache.proxy.http.asgi_request import AsgiRequest, RawPairs, RequestRejected
from knapcache.proxy.http.auth import EVERYONE, Authenticator, Principal
from knapcache.proxy.http.hosts import HostCheck
from knapcache.proxy.routing import NO_ROUTES, Router
from knapcache.tags import are_tags
from knapcache.wire.cache_control import CONTROL_HEADERS, TAGS_HEADER

if TYPE_CHECKING:
    from knapcache.proxy.settings import Settings

MAX_HEADS, MAX_HEAD_SIZE = 1024, 8192
SPECIAL_HEADERS = CONTROL_HEADERS - {TAGS_HEADER} | {"content-encoding"}
"""Headers that change how the cache is used, or how the body is read. Tags do not change hits."""
HEADER_OVERHEAD = 64
"""Bytes charged for each header beside its text: thousands of short ones take far more than their text."""
LENGTH = b"content-length"
LENGTH_LINE = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
MAX_DIGITS = 20
"""Digits of a Content-Length for which there must be room in a repeated head."""
HEAD_END = b"\r\n\r\n"


class RequestHead:
    """The facts about a head: its headers without content-length, and its principal."""

    __slots__ = ("headers", "known_as", "plain", "principal", "upstream_headers", "vary")

    def __init__(
        self,
        headers: dict[str, str],
        principal: Principal,
        ignored: Collection[str] = (),
        router: Router = NO_ROUTES,
    ) -> None:
        self.headers, self.principal = headers, principal
        self.vary = vary_context(headers, ignored)
        """The part of the key that depends on headers."""
        special = SPECIAL_HEADERS | router.headers
        self.plain = not self.vary and special.isdisjoint(headers) and are_tags(headers.get(TAGS_HEADER, ""))
        """Whether no header is part of the key, or changes how a stored answer is served. Bad tags are refused."""
        # Tenants of a group have the same namespace, and may have different routes.
        self.known_as = f"{principal.namespace} {principal.name}" if router.by_tenant else principal.namespace
        """Under which name requests are remembered by their bytes."""
        self.upstream_headers: dict[str, bytes] = {}
        """Encoded headers for each upstream, by its name."""


class AccessControl:
    """Checks heads, and caches the accepted ones."""

    def __init__(self, settings: Settings, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._hosts = HostCheck(settings.allowed_hosts, settings.allowed_origins)
        self._max_requests = settings.max_requests_per_caller
        self._in_flight: dict[str, int] = {}
        """Requests in flight by caller. Invariant: none is 0."""
        self._ignored, self._router = settings.ignored_headers, Router(settings.route)
        self._heads: dict[tuple[tuple[bytes, bytes], ...], RequestHead] = {}
        authenticator.on_change(self._heads.clear)

    def known(self, raw: RawPairs) -> RequestHead | None:
        """Return a head that was accepted before, or None."""
        return self._heads.get(tuple([pair for pair in raw if pair[0] != LENGTH]))

    def known_without_length(self, raw: tuple[tuple[bytes, bytes], ...]) -> RequestHead | None:
        """Return a head that was accepted before, or None. raw: its headers without content-length."""
        return self._heads.get(raw)

    def authorize(self, request: AsgiRequest) -> RequestHead:
        """Return the request's head, and count the request as in flight until `release`. Raises RequestRejected."""
        head: RequestHead | None = request.known_head or self.known(request.raw_headers)
        if head is None:
            sent = request.headers
            self._hosts.check(sent.get("host", ""), sent.get("origin"), sent.get("sec-fetch-site"))
            principal = self._authenticator.authenticate(request.headers)
            if principal is None:
                challenge = [("www-authenticate", "Bearer")]
                raise RequestRejected(401, "No valid API key was sent.", "authentication_error", challenge)
            headers = {name: value for name, value in request.headers.items() if name != "content-length"}
            head = RequestHead(headers, principal, self._ignored, self._router)
            raw = tuple([pair for pair in request.raw_headers if pair[0] != LENGTH])
            if sum(len(name) + len(value) + HEADER_OVERHEAD for name, value in raw) <= MAX_HEAD_SIZE:
                if len(self._heads) >= MAX_HEADS:
                    del self._heads[next(iter(self._heads))]
                self._heads[raw] = head
        self._count(request, head.principal)
        return head

    def _count(self, request: AsgiRequest, principal: Principal) -> None:
        """Count a request as in flight. Raises RequestRejected (429) if its caller has too many."""
        if request.caller is not None:  # counted already
            return
        # With share_all all callers have one name.
        caller = principal.credential or principal.name if principal.name == EVERYONE else principal.name
        count = self._in_flight.get(caller, 0)
        if count >= self._max_requests:
            message = f"{count} requests of this caller are in flight (max_requests_per_caller)."
            raise RequestRejected(429, message, "too_many_requests", [("retry-after", "1")])
        self._in_flight[caller] = count + 1
        request.caller = caller

    def release(self, request: AsgiRequest) -> None:
        """End a request that `authorize` has counted. Others are ignored."""
        caller, request.caller = request.caller, None
        if caller is not None:
            self._in_flight[caller] -= 1
            if not self._in_flight[caller]:
                del self._in_flight[caller]


class RepeatedHead:
    """A head, except for the digits of its Content-Length.

    max_body   bytes of a body for which the head is recognised
    """

    __slots__ = ("_after", "_before", "_last", "_max_size", "_start", "endpoint", "headers", "position", "url")

    def __init__(
        self, before: bytes, after: bytes, max_body: int, url: bytes, endpoint: Endpoint, headers: RawPairs
    ) -> None:
        self._before, self._after, self._start = before, after, len(before)
        self._last = len(before) + MAX_DIGITS + len(after)  # where the head ends at most
        self._max_size = len(before) + len(after) + max_body
        self.url, self.endpoint = url, endpoint
        self.position = next(k for k, (name, _) in enumerate(headers) if name == LENGTH)
        """Of Content-Length among the headers."""
        self.headers = tuple(pair for pair in headers if pair[0] != LENGTH)
        """The other headers, with names in lower case."""

    def body_of(self, data: bytes) -> bytes | None:
        """Return the body of a request with this head; None if the data is anything else than one whole request."""
        start = self._start
        end = data.find(self._after, start, self._last)
        if end < 0 or len(data) > self._max_size or not data.startswith(self._before):
            return None
        body = data[end + len(self._after) :]
        return body if data[start:end] == b"%d" % len(body) else None

    def headers_with_length(self, length: int) -> RawPairs:
        """Return all headers of a request whose body has `length` bytes."""
        headers = list(self.headers)
        headers.insert(self.position, (LENGTH, b"%d" % length))
        return headers


def repeated_head(
    data: bytes, url: bytes, endpoint: Endpoint, headers: RawPairs, *, max_head: int, max_body: int
) -> RepeatedHead | None:
    """Return the head of a request that was parsed; None if later ones cannot be recognised by it.

    data       what the parser got: one whole request
    headers    as the parser reported them
    """
    end = data.find(HEAD_END) + len(HEAD_END)
    found = LENGTH_LINE.findall(data, 0, end)
    names = [name for name, _ in headers]
    if len(found) != 1 or names.count(LENGTH) != 1 or int(found[0]) != len(data) - end:
        return None
    if b"transfer-encoding" in names or end + MAX_DIGITS > max_head or not data.startswith(b"POST "):
        return None
    match = LENGTH_LINE.search(data, 0, end)
    assert match is not None
    return RepeatedHead(data[: match.start(1)], data[match.end(1) : end], max_body, url, endpoint, headers)
