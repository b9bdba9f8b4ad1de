"""Who may look and change: the admin token, and sessions of those who have shown it once.

    session   32 random bytes in a cookie that no script can read and no other site can send; known here by its digest
    csrf      HMAC(key of this process, session): a page of ours can ask for it, one of another site cannot read it

Sessions are in memory and end with the process, after LIFE, by logging out, or when MOST newer ones have come.

A token is compared in constant time. Wrong ones are counted by address: after TRIES different ones within a minute
every token from there is refused until the minute is over, the right one too, or guessing would go on. The same wrong
token again teaches nobody anything and is not counted: a script with an old token must not lock its owner out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from knapcache.serve.http.asgi_request import RequestRejected

COOKIE = "knapcache-session"
LIFE = 12 * 3600.0
MOST = 100
TRIES = 10
WINDOW = 60.0
MOST_ADDRESSES = 1000


class Session(NamedTuple):
    """One login."""

    id: str
    """What the cookie holds."""
    csrf: str


class Tokens:
    """The admin token, and those who guess at it."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._digest, self._clock = _digest(token), clock
        self._wrong: dict[str, tuple[float, set[bytes]]] = {}
        """By address: when its minute began, and the digests of what was tried."""

    def check(self, given: str, address: str) -> bool:
        """Is this the token? RequestRejected where too many others came from there."""
        digest = _digest(given)
        now = self._clock()
        began, tried = self._wrong.get(address, (now, set()))
        if now - began >= WINDOW:
            began, tried = now, set()
        if len(tried) >= TRIES:
            wait = str(int(began + WINDOW - now) + 1)
            raise RequestRejected(
                429, "too many wrong tokens: wait a minute", "too_many_attempts", [("retry-after", wait)]
            )
        # Digests, so that not even the token's length shows in the time it takes.
        if hmac.compare_digest(digest, self._digest):
            return True
        tried.add(digest)
        self._wrong.pop(address, None)
        self._wrong[address] = began, tried
        if len(self._wrong) > MOST_ADDRESSES:
            del self._wrong[next(iter(self._wrong))]
        return False


class Sessions:
    """Logins that hold."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._ends: dict[bytes, float] = {}
        """By the digest of the session, the oldest first. Invariant: at most MOST."""

    def begin(self) -> Session:
        """A new one; the oldest makes room."""
        if len(self._ends) >= MOST:
            del self._ends[next(iter(self._ends))]
        session = secrets.token_urlsafe(32)
        self._ends[_digest(session)] = self._clock() + LIFE
        return Session(session, self._csrf(session))

    def find(self, session: str) -> Session | None:
        """The session of a cookie; None: there is none, or it has ended."""
        # A look into a dict by digest: its time tells nothing of sessions that one does not have.
        digest = _digest(session)
        ends = self._ends.get(digest)
        if ends is None:
            return None
        if self._clock() >= ends:
            del self._ends[digest]
            return None
        return Session(session, self._csrf(session))

    def end(self, session: Session) -> None:
        """Log out."""
        self._ends.pop(_digest(session.id), None)

    def __len__(self) -> int:
        return len(self._ends)

    def _csrf(self, session: str) -> str:
        return hmac.new(self._key, b"csrf\0" + _bytes(session), hashlib.sha256).hexdigest()


def cookie(session: str, *, secure: bool, life: float = LIFE) -> str:
    """The header that sets it; a life of 0 takes it away."""
    value = f"{COOKIE}={session}; Path=/; Max-Age={int(life)}; HttpOnly; SameSite=Strict"
    return f"{value}; Secure" if secure else value


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _digest(text: str) -> bytes:
    return hashlib.sha256(_bytes(text)).digest()
