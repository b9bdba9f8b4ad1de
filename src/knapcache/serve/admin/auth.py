"""The door of the admin API and the dashboard: every request passes here before anything is done.

    host      must be one of ours. A page of another site can make its own name lead to this address (DNS rebinding) and
              would then count as ours in a browser; but it cannot change the name that the browser sends
    origin    of what changes something must be the host that was asked: another site's forms and scripts are refused
    token     Authorization: Bearer …, or
    session   the cookie; what changes something needs its csrf token as well

Whoever shows a token is judged by it, whatever else is in the request: a wrong one with a good cookie is refused.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.requests import Request

from knapcache.serve.admin.sessions import COOKIE, Session, Sessions, Tokens
from knapcache.serve.http.asgi_request import RequestRejected

SAFE = ("GET", "HEAD", "OPTIONS")
AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{0,5})?")
CHALLENGE = [("www-authenticate", 'Bearer realm="knapcache"')]


class Guard:
    """Knows the token, the sessions, and the names of this host."""

    def __init__(self, token: str, hosts: Iterable[str]) -> None:
        self.tokens, self.sessions = Tokens(token), Sessions()
        self._hosts = frozenset(host.lower() for host in hosts)

    def admit(self, request: Request) -> None:
        """Host and origin."""
        given = request.headers.getlist("host")
        host = given[0].lower() if len(given) == 1 else ""
        if "*" not in self._hosts and name_of(host) not in self._hosts:
            raise RequestRejected(
                421, "the Host header names no host of this proxy (allowed_hosts)", "host_not_allowed"
            )
        if request.method in SAFE:
            return
        origin = request.headers.get("origin")
        foreign = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        if foreign or (origin is not None and not same_host(origin, host)):
            raise RequestRejected(403, "pages of other sites may not ask", "origin_not_allowed")

    def identify(self, request: Request) -> Session | None:
        """The session of who asks, None for the bearer of the token; RequestRejected for anybody else."""
        authorization = request.headers.get("authorization")
        if authorization is not None:
            scheme, _, token = authorization.strip().partition(" ")
            if scheme.lower() != "bearer" or not self.tokens.check(token.strip(), address_of(request)):
                raise RequestRejected(401, "this is not the admin token", "invalid_token", CHALLENGE)
            return None
        session = self.session(request)
        if session is None:
            raise RequestRejected(401, "the admin token is needed: Authorization: Bearer …", "missing_token", CHALLENGE)
        if request.method not in SAFE:
            csrf = request.headers.get("x-csrf-token", "")
            if not hmac.compare_digest(csrf.encode("utf-8", "replace"), session.csrf.encode()):
                raise RequestRejected(403, "x-csrf-token is missing or of another session", "invalid_csrf_token")
        return session

    def session(self, request: Request) -> Session | None:
        """The session of the cookie."""
        found = request.cookies.get(COOKIE)
        return self.sessions.find(found) if found is not None else None


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client is not None else ""


def name_of(authority: str) -> str:
    """The host of `host:port`, in the form of allowed_hosts; empty for what is none."""
    found = AUTHORITY.fullmatch(authority)
    return found[1].removesuffix(".") if found else ""


def same_host(origin: str, host: str) -> bool:
    """Whether a page is from this host and port. The scheme may differ: TLS may end in front of the proxy."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host and not parts.path
