"""Authentication of the admin API and the dashboard: the admin token, sessions and CSRF tokens.

    host, origin   checked first (http/hosts.py). A request that changes something must come from the same origin
    token          `Authorization: Bearer TOKEN`, compared in constant time
    session        32 random bytes in an HttpOnly, SameSite=Strict cookie; the server stores their digest
    csrf           HMAC(key of this process, session); required with a session for requests that change something

A request with a token is judged by the token alone: a wrong one is rejected, even with a valid cookie. Sessions are in
memory. They end with the process, after SESSION_SECONDS, on logout, or when MAX_SESSIONS newer ones exist.

Wrong tokens are counted per address. After MAX_WRONG_TOKENS different ones within WINDOW seconds, every token from that
address is rejected until the window ends, including the right one; otherwise guessing could continue. Repeating the
same wrong token is not counted, so that a script with an old token does not lock out its owner.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from starlette.requests import Request

from knapcache.serve.http.asgi_request import RequestRejected
from knapcache.serve.http.hosts import HostCheck

COOKIE = "knapcache-session"
SESSION_SECONDS = 12 * 3600.0
MAX_SESSIONS = 100
MAX_WRONG_TOKENS = 10
WINDOW = 60.0
MAX_ADDRESSES = 1000
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
CHALLENGE = [("www-authenticate", 'Bearer realm="knapcache"')]


class Session(NamedTuple):
    """One login."""

    id: str
    """Value of the cookie."""
    csrf: str


class TokenCheck:
    """Compares tokens with the admin token, and limits guessing."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._digest, self._clock = _digest(token), clock
        self._wrong: dict[str, tuple[float, set[bytes]]] = {}
        """By address: start of the window, and the digests of the wrong tokens."""

    def check(self, token: str, address: str) -> bool:
        """Return whether this is the admin token. Raises RequestRejected (429) after too many wrong ones."""
        digest = _digest(token)
        now = self._clock()
        began, wrong = self._wrong.get(address, (now, set()))
        if now - began >= WINDOW:
            began, wrong = now, set()
        if len(wrong) >= MAX_WRONG_TOKENS:
            wait = str(int(began + WINDOW - now) + 1)
            raise RequestRejected(
                429, "Too many wrong tokens. Wait a minute.", "too_many_attempts", [("retry-after", wait)]
            )
        # Digests have equal lengths, so the comparison does not reveal the token's length.
        if hmac.compare_digest(digest, self._digest):
            return True
        wrong.add(digest)
        self._wrong.pop(address, None)
        self._wrong[address] = began, wrong
        if len(self._wrong) > MAX_ADDRESSES:
            del self._wrong[next(iter(self._wrong))]
        return False


class Sessions:
    """Sessions of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._expiry: dict[bytes, float] = {}
        """By the session's digest, oldest first. Invariant: at most MAX_SESSIONS."""

    def begin(self) -> Session:
        """Create a session. The oldest one ends if there are too many."""
        if len(self._expiry) >= MAX_SESSIONS:
            del self._expiry[next(iter(self._expiry))]
        session = secrets.token_urlsafe(32)
        self._expiry[_digest(session)] = self._clock() + SESSION_SECONDS
        return Session(session, self._csrf(session))

    def find(self, session: str) -> Session | None:
        """Return the session of a cookie, or None if it is unknown or has expired."""
        # A dictionary lookup by digest: its timing reveals nothing about other sessions.
        digest = _digest(session)
        expiry = self._expiry.get(digest)
        if expiry is None:
            return None
        if self._clock() >= expiry:
            del self._expiry[digest]
            return None
        return Session(session, self._csrf(session))

    def end(self, session: Session) -> None:
        """Log out."""
        self._expiry.pop(_digest(session.id), None)

    def __len__(self) -> int:
        return len(self._expiry)

    def _csrf(self, session: str) -> str:
        return hmac.new(self._key, b"csrf\0" + _bytes(session), hashlib.sha256).hexdigest()


class AdminAuth:
    """Checks every request to the admin API and the dashboard."""

    def __init__(self, token: str, allowed_hosts: Iterable[str]) -> None:
        self.tokens, self.sessions = TokenCheck(token), Sessions()
        self._hosts = HostCheck(allowed_hosts)

    def check_origin(self, request: Request) -> None:
        """Raise RequestRejected for an unknown host or a foreign origin."""
        hosts = request.headers.getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        self._hosts.check(host, request.headers.get("origin"))
        if request.method in SAFE_METHODS:
            return
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise RequestRejected(403, "Pages of other sites may not use this proxy.", "origin_not_allowed")

    def identify(self, request: Request) -> Session | None:
        """Return the session, or None if the request has the admin token. Raises RequestRejected otherwise."""
        authorization = request.headers.get("authorization")
        if authorization is not None:
            scheme, _, token = authorization.strip().partition(" ")
            if scheme.lower() != "bearer" or not self.tokens.check(token.strip(), client_address(request)):
                raise RequestRejected(401, "This is not the admin token.", "invalid_token", CHALLENGE)
            return None
        session = self.session(request)
        if session is None:
            raise RequestRejected(
                401, "The admin token is required: Authorization: Bearer TOKEN.", "missing_token", CHALLENGE
            )
        if request.method not in SAFE_METHODS:
            csrf = request.headers.get("x-csrf-token", "")
            if not hmac.compare_digest(csrf.encode("utf-8", "replace"), session.csrf.encode()):
                raise RequestRejected(
                    403, "x-csrf-token is missing or belongs to another session.", "invalid_csrf_token"
                )
        return session

    def session(self, request: Request) -> Session | None:
        """Return the session of the request's cookie, or None."""
        found = request.cookies.get(COOKIE)
        return self.sessions.find(found) if found is not None else None


def client_address(request: Request) -> str:
    """Return the client's IP address, or an empty string."""
    return request.client.host if request.client is not None else ""


def cookie(session: str, *, secure: bool, seconds: float = SESSION_SECONDS) -> str:
    """Return the Set-Cookie header for a session. 0 seconds deletes the cookie."""
    value = f"{COOKIE}={session}; Path=/; Max-Age={int(seconds)}; HttpOnly; SameSite=Strict"
    return f"{value}; Secure" if secure else value


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _digest(text: str) -> bytes:
    return hashlib.sha256(_bytes(text)).digest()
