"""Authentication of the admin API and the dashboard: tokens, roles, sessions and CSRF tokens.

    host, origin   checked first (http/hosts.py). A page of another origin may only open the dashboard
    token          `Authorization: Bearer TOKEN` (tokens.py)
    session        32 random bytes in an HttpOnly, SameSite=Strict cookie for /admin; the server stores their digest
    csrf           HMAC(key of this process, session); every request with a session needs it, also those that only read

A request with a token is judged by the token alone: a wrong one is rejected, even with a valid cookie. Sessions are in
memory. They end with the process, after SESSION_SECONDS, on logout, with their token, or when MAX_SESSIONS newer ones
exist. Those of proxies with a shared store are also in its server (shared_sessions.py).

The CSRF token does more than its name says. Cookies ignore ports: every server on the same host name gets the session
cookie. The dashboard keeps the CSRF token in the storage of its own origin, so that the cookie alone is worth nothing.

Wrong tokens are counted per address. After MAX_WRONG_TOKENS different ones within WINDOW seconds, tokens from that
address are rejected until the window ends. A right one that is too long to be guessed is still accepted, so nobody
locks out others who have the same address. A right one that is shorter is rejected too; otherwise guessing could
continue. Repeating the same wrong token is not counted, so that a script with an old token does not lock out its owner.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from starlette.requests import Request

from knapcache.proxy.admin.tokens import AdminTokens, Identity, Role, token_digest
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.proxy.http.hosts import HostCheck

COOKIE = "knapcache-session"
SECURE_COOKIE = f"__Secure-{COOKIE}"
"""Name with TLS: no page without TLS can set it. Not `__Host-`, which does not allow a Path."""
SESSION_SECONDS = 12 * 3600.0
MAX_SESSIONS = 100
MAX_WRONG_TOKENS = 10
WINDOW = 60.0
MAX_ADDRESSES = 1000
CHALLENGE = [("www-authenticate", 'Bearer realm="knapcache"')]
PAGES = re.compile(r"/(dashboard(/\w+)?)?")
"""Paths that a link on another site may open: the views of the dashboard. Its files have a suffix."""


class Session(NamedTuple):
    """One login."""

    id: str
    """Value of the cookie."""
    csrf: str
    identity: Identity

    @property
    def label(self) -> str:
        """The start of the session's digest, for the audit log."""
        return token_digest(self.id).hex()[:8]


class Caller(NamedTuple):
    """Who sent a request."""

    identity: Identity
    session: Session | None


class TokenCheck:
    """Finds the holder of a token, and limits guessing."""

    def __init__(self, tokens: AdminTokens, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens, self._clock = tokens, clock
        self._wrong: dict[str, tuple[float, set[bytes]]] = {}
        """By network: start of the window, and the digests of the wrong tokens."""

    def check(self, token: str, address: str) -> Identity:
        """Return the holder of a token. Raises RequestRejected: 401 if it is wrong, 429 after too many wrong ones."""
        network, now = _network(address), self._clock()
        began, wrong = self._wrong.get(network, (now, set()))
        if now - began >= WINDOW:
            began, wrong = now, set()
        limited = len(wrong) >= MAX_WRONG_TOKENS
        identity = self._tokens.find(token)
        if identity is not None and not (limited and identity.guessable):
            return identity
        if limited:
            wait = str(int(began + WINDOW - now) + 1)
            raise RequestRejected(
                429, "Too many wrong tokens. Wait a minute.", "too_many_attempts", [("retry-after", wait)]
            )
        wrong.add(token_digest(token))
        self._wrong.pop(network, None)
        self._wrong[network] = began, wrong
        if len(self._wrong) > MAX_ADDRESSES:
            del self._wrong[next(iter(self._wrong))]
        raise RequestRejected(401, "This is not a valid admin token.", "invalid_token", CHALLENGE)


class Sessions:
    """Sessions of this process. key: of the CSRF tokens; None: a new one."""

    def __init__(
        self, tokens: AdminTokens, clock: Callable[[], float] = time.monotonic, key: bytes | None = None
    ) -> None:
        self._tokens, self._clock = tokens, clock
        self._key = key or secrets.token_bytes(32)
        self._sessions: dict[bytes, tuple[float, Identity]] = {}
        """Expiry and holder by the session's digest, oldest first. Invariant: at most MAX_SESSIONS."""

    async def begin(self, identity: Identity) -> Session:
        """Create a session. The oldest one ends if there are too many."""
        session = secrets.token_urlsafe(32)
        self._add(token_digest(session), self._clock() + SESSION_SECONDS, identity)
        return Session(session, self._csrf(session), identity)

    def _add(self, digest: bytes, expiry: float, identity: Identity) -> None:
        if len(self._sessions) >= MAX_SESSIONS and digest not in self._sessions:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[digest] = expiry, identity

    async def refresh(self, session: str) -> None:
        """Do what `find` needs before it is called. Sessions of one process need nothing."""

    def find(self, session: str) -> Session | None:
        """Return the session of a cookie, or None if it is unknown, has expired, or its token is no longer valid."""
        # A dictionary lookup by digest: its timing reveals nothing about other sessions.
        digest = token_digest(session)
        found = self._sessions.get(digest)
        if found is None:
            return None
        expiry, identity = found
        if self._clock() >= expiry or not self._tokens.current(identity):
            del self._sessions[digest]
            return None
        return Session(session, self._csrf(session), identity)

    async def end(self, session: Session) -> None:
        self._sessions.pop(token_digest(session.id), None)

    def __len__(self) -> int:
        return len(self._sessions)

    def _csrf(self, session: str) -> str:
        return hmac.new(self._key, b"csrf\0" + session.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


class AdminAuth:
    """Checks every request to the admin API and the dashboard."""

    def __init__(self, tokens: AdminTokens, allowed_hosts: Iterable[str], sessions: Sessions | None = None) -> None:
        self.tokens = tokens
        self.check = TokenCheck(tokens)
        self.sessions = Sessions(tokens) if sessions is None else sessions
        self._hosts = HostCheck(allowed_hosts)

    def check_origin(self, request: Request) -> None:
        """Raise RequestRejected for an unknown host, and for requests of pages of another origin, of any method."""
        hosts = request.headers.getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        self._hosts.check(host, None)
        for origin in request.headers.getlist("origin"):
            self._hosts.check(host, origin)
        if _foreign(request) and not _opens(request):
            raise RequestRejected(403, "Pages of other sites may not use this proxy.", "origin_not_allowed")

    def identify(self, request: Request) -> Caller:
        """Return who sent a request, by its token or its session. Raises RequestRejected."""
        authorization = request.headers.get("authorization")
        if authorization is not None:
            scheme, _, token = authorization.strip().partition(" ")
            if scheme.lower() != "bearer":
                raise RequestRejected(401, "This is not a valid admin token.", "invalid_token", CHALLENGE)
            return Caller(self.check.check(token.strip(), client_address(request)), None)
        session = self.session(request)
        if session is None:
            raise RequestRejected(
                401, "An admin token is required: Authorization: Bearer TOKEN.", "missing_token", CHALLENGE
            )
        csrf = request.headers.get("x-csrf-token", "")
        if not hmac.compare_digest(csrf.encode("utf-8", "replace"), session.csrf.encode()):
            raise RequestRejected(403, "x-csrf-token is missing or belongs to another session.", "invalid_csrf_token")
        return Caller(session.identity, session)

    async def refresh(self, request: Request) -> None:
        """Do what `identify` needs before it is called: read changed tokens, and sessions of other proxies."""
        await self.tokens.refresh()
        session = _session_cookie(request)
        if session is not None and "authorization" not in request.headers:
            await self.sessions.refresh(session)

    def session(self, request: Request) -> Session | None:
        found = _session_cookie(request)
        return self.sessions.find(found) if found is not None else None


def require(identity: Identity, role: Role) -> None:
    """Raise RequestRejected (403) if a token's role is too weak."""
    if role == "operator" and identity.role != "operator":
        message = f"The token {identity.name!r} has the role {identity.role}; this needs the role operator."
        raise RequestRejected(403, message, "role_too_weak")


def _session_cookie(request: Request) -> str | None:
    return request.cookies.get(SECURE_COOKIE if is_secure(request) else COOKIE)


def client_address(request: Request) -> str:
    """Return the client's IP address, or an empty string."""
    return request.client.host if request.client is not None else ""


def is_secure(request: Request) -> bool:
    """Return whether the client uses TLS, as far as it is known (`trusted_proxies`)."""
    return bool(request.scope.get("scheme") == "https")


def cookie(session: str, *, secure: bool, seconds: float = SESSION_SECONDS) -> str:
    """Return the Set-Cookie header for a session. 0 seconds deletes the cookie."""
    name, suffix = (SECURE_COOKIE, "; Secure") if secure else (COOKIE, "")
    return f"{name}={session}; Path=/admin; Max-Age={int(seconds)}; HttpOnly; SameSite=Strict{suffix}"


def _foreign(request: Request) -> bool:
    """Return whether a browser says that a page of another origin sent the request."""
    return any(site not in ("same-origin", "none") for site in request.headers.getlist("sec-fetch-site"))


def _opens(request: Request) -> bool:
    """Return whether the request opens the dashboard in a window: a link on another site may do that."""
    return (
        request.method == "GET"
        and PAGES.fullmatch(request.scope["path"]) is not None
        and request.headers.get("sec-fetch-mode") == "navigate"
        and request.headers.get("sec-fetch-dest") == "document"
    )


def _network(address: str) -> str:
    """Return the network whose guesses are counted together: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else address
