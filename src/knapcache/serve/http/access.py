"""Who may come in: hosts, origins and credentials, read off the head of a request.

A client sends the same head with every request, but for the length of its body. So heads are known by their bytes: what
was found out about one holds for the next, and is made once: who asks, whether anything in it changes answers or speaks
to the cache, and what goes on to a provider.

    Invariant: at most MOST heads of at most LONGEST bytes, the oldest goes first; what was refused is not remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from knapcache.exchange.exchange import ROUTING, VARY_HEADERS
from knapcache.serve.http.asgi_request import AsgiRequest, RawPairs, Refused
from knapcache.serve.http.auth import Authenticator, Principal
from knapcache.wire.cache_control import SPEAKING

if TYPE_CHECKING:
    from knapcache.serve.settings import Settings

MOST, LONGEST = 1024, 4096
SPECIAL = frozenset((*SPEAKING, *VARY_HEADERS, *ROUTING, "content-encoding"))
"""Headers that change the answer, or what is wanted of the cache."""
LENGTH = b"content-length"


class Head:
    """What is known of one."""

    __slots__ = ("caller", "headers", "sent", "usual")

    def __init__(self, headers: dict[str, str], caller: Principal) -> None:
        self.headers, self.caller = headers, caller
        self.usual = SPECIAL.isdisjoint(headers)
        self.sent: dict[str, bytes] = {}
        """As it goes on, by the name of the upstream."""


class AccessControl:
    """Lets in."""

    def __init__(self, settings: Settings, callers: Authenticator) -> None:
        self._callers = callers
        self._hosts = None if "*" in settings.allowed_hosts else frozenset(settings.allowed_hosts)
        self._most_bytes = settings.max_headers
        self._known: dict[tuple[tuple[bytes, bytes], ...], Head] = {}

    def known(self, raw: RawPairs) -> Head | None:
        """A head that was let in before."""
        return self._known.get(tuple([pair for pair in raw if pair[0] != LENGTH]))

    def enter(self, request: AsgiRequest) -> Head:
        """Who asks, and how; Refused where it may not."""
        head = self.known(request.raw_headers)
        if head is None:
            self._check(request.headers)
            caller = self._callers.admit(request.headers)
            if caller is None:
                told = [("www-authenticate", "Bearer")]
                raise Refused(401, "no valid API key was given", "authentication_error", told)
            head = Head({name: value for name, value in request.headers.items() if name != "content-length"}, caller)
            raw = tuple([pair for pair in request.raw_headers if pair[0] != LENGTH])
            if sum(len(name) + len(value) for name, value in raw) <= LONGEST:
                if len(self._known) >= MOST:
                    del self._known[next(iter(self._known))]
                self._known[raw] = head
        return head

    def _check(self, headers: dict[str, str]) -> None:
        """What no honest client sends."""
        if sum(map(len, headers)) + sum(map(len, headers.values())) > self._most_bytes:
            raise Refused(431, f"the headers have more than {self._most_bytes} bytes", "too_large")
        if self._hosts is None:
            return
        # Only browsers say where a page is from; one of another site must not spend our money, by whatever name.
        origin = headers.get("origin")
        if origin is not None and host_of(origin.partition("://")[2]) not in self._hosts:
            raise Refused(403, "pages of other sites may not ask", "origin_not_allowed")
        if host_of(headers.get("host", "")) not in self._hosts:
            raise Refused(421, "the Host header names no host of this proxy (allowed_hosts)", "host_not_allowed")


def host_of(authority: str) -> str:
    """The host of `host:port`."""
    if authority.startswith("["):
        return authority.partition("]")[0].lower() + "]"
    return authority.partition(":")[0].lower()
