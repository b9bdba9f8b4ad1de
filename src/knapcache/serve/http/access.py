"""Access control: hosts, origins and credentials, checked on the head of a request.

A client sends the same head with every request, apart from the length of its body. So heads are cached by their bytes:
the principal, whether a header affects caching, and the headers for the upstream are worked out once per head.

    Invariant: at most MAX_HEADS heads of at most MAX_HEAD_SIZE bytes, oldest evicted first. Rejected heads are not
    cached.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from knapcache.exchange.headers import vary_context
from knapcache.serve.http.asgi_request import AsgiRequest, RawPairs, RequestRejected
from knapcache.serve.http.auth import EVERYONE, Authenticator, Principal
from knapcache.serve.http.hosts import HostCheck
from knapcache.wire.cache_control import CONTROL_HEADERS

if TYPE_CHECKING:
    from knapcache.serve.settings import Settings

MAX_HEADS, MAX_HEAD_SIZE = 1024, 8192
SPECIAL_HEADERS = frozenset((*CONTROL_HEADERS, "content-encoding"))
"""Headers that change how the cache is used, or how the body is read."""
HEADER_OVERHEAD = 64
"""Bytes charged for each header beside its text: thousands of short ones take far more than their text."""
LENGTH = b"content-length"


class RequestHead:
    """The facts about a head: its headers without content-length, and its principal."""

    __slots__ = ("headers", "plain", "principal", "upstream_headers", "vary")

    def __init__(self, headers: dict[str, str], principal: Principal, ignored: Collection[str] = ()) -> None:
        self.headers, self.principal = headers, principal
        self.vary = vary_context(headers, ignored)
        """The part of the key that depends on headers."""
        self.plain = not self.vary and SPECIAL_HEADERS.isdisjoint(headers)
        """Whether no header is part of the key, or changes how the cache is used."""
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
        self._ignored = settings.ignored_headers
        self._heads: dict[tuple[tuple[bytes, bytes], ...], RequestHead] = {}
        authenticator.on_change(self._heads.clear)

    def known(self, raw: RawPairs) -> RequestHead | None:
        """Return a head that was accepted before, or None."""
        return self._heads.get(tuple([pair for pair in raw if pair[0] != LENGTH]))

    def authorize(self, request: AsgiRequest) -> RequestHead:
        """Return the request's head, and count the request as in flight until `release`. Raises RequestRejected."""
        head = self.known(request.raw_headers)
        if head is None:
            sent = request.headers
            self._hosts.check(sent.get("host", ""), sent.get("origin"), sent.get("sec-fetch-site"))
            principal = self._authenticator.authenticate(request.headers)
            if principal is None:
                challenge = [("www-authenticate", "Bearer")]
                raise RequestRejected(401, "No valid API key was sent.", "authentication_error", challenge)
            headers = {name: value for name, value in request.headers.items() if name != "content-length"}
            head = RequestHead(headers, principal, self._ignored)
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
