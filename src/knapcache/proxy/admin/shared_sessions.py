"""Sessions of proxies with a shared store: a login at one is valid at all, behind a load balancer without affinity.

A session is also a document in the server, by the digest of its cookie, with the digest and the name of its token. A
proxy trusts the copy in its memory for CHECK_SECONDS; then it looks whether the document is still there. So a logout is
effective everywhere within that time. The key of the CSRF tokens follows from the secret, which all proxies have.

    the server is away     sessions in memory stay valid; a new login is valid here, and published later
    logout while away      the session is refused here, and its document is removed when the server answers
    another token          a proxy that does not know the token of a session refuses it

Who can write to the server, but does not know the secret, can end sessions and not begin one: documents are sealed.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import orjson

from knapcache.errors import StoreError
from knapcache.proxy.admin.auth import SESSION_SECONDS, Session, Sessions
from knapcache.proxy.admin.tokens import AdminTokens, Identity, token_digest
from knapcache.store.redis.documents import Documents

KIND = "session"
VERSION = 1
CHECK_SECONDS = 1.0
MAX_SHARED = 1000
"""Sessions in the server. The oldest end first."""
MAX_COOKIE = 128
"""Characters of a cookie that is looked for."""
DEADLINE = 2.0
"""Seconds that a request waits for the server. Its own timeout is shorter."""
THREADS = 4
T = TypeVar("T")


def csrf_key(secret: bytes) -> bytes:
    """Return the key of the CSRF tokens of all proxies with a secret."""
    return hmac.new(secret, b"csrf key", hashlib.sha256).digest()


class SharedSessions(Sessions):
    """Sessions of this process and of the other proxies."""

    def __init__(
        self, tokens: AdminTokens, documents: Documents, secret: bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(tokens, clock, csrf_key(secret))
        self._documents = documents
        self._checked: dict[bytes, float] = {}
        """When the document of a session in memory was last seen; −inf: it has not been published yet."""
        self._ended: dict[bytes, float] = {}
        """Expiry by digest: sessions that have ended here, and whose documents may still be there."""
        self._threads = anyio.CapacityLimiter(THREADS)

    async def begin(self, identity: Identity) -> Session:
        session = await super().begin(identity)
        await self._publish(token_digest(session.id))
        return session

    async def refresh(self, session: str) -> None:
        digest = token_digest(session)
        if len(session) > MAX_COOKIE or digest in self._ended:
            await self._remove_ended()
            return
        checked = self._checked.get(digest)
        if checked == -math.inf and digest in self._sessions:
            await self._publish(digest)
        elif checked is None or self._clock() - checked >= CHECK_SECONDS:
            await self._read(digest)

    def find(self, session: str) -> Session | None:
        return None if token_digest(session) in self._ended else super().find(session)

    async def end(self, session: Session) -> None:
        digest = token_digest(session.id)
        self._ended[digest] = self._clock() + SESSION_SECONDS
        await super().end(session)
        self._checked.pop(digest, None)
        await self._remove_ended()

    async def _publish(self, digest: bytes) -> None:
        expiry, identity = self._sessions[digest]
        seconds = expiry - self._clock()
        content = orjson.dumps(
            {
                "version": VERSION,
                "token": identity.digest.hex(),
                "name": identity.name,
                "expires": time.time() + seconds,
            }
        )
        try:
            await self._in_thread(lambda: self._documents.put(KIND, digest.hex(), content, seconds, limit=MAX_SHARED))
            self._checked[digest] = self._clock()
        except StoreError:
            self._checked[digest] = -math.inf

    async def _read(self, digest: bytes) -> None:
        """Look for the document of a session, and update the copy in memory."""
        now = self._clock()
        if digest in self._sessions:
            self._checked[digest] = now  # other requests do not wait
        try:
            document = await self._in_thread(lambda: self._documents.get(KIND, digest.hex()))
        except StoreError:
            return  # what is in memory stays valid
        found = None if document is None else self._decode(document)
        if found is None:
            self._sessions.pop(digest, None)
            self._checked.pop(digest, None)
        elif digest not in self._ended:  # a logout may have been meanwhile
            self._add(digest, *found)
            self._checked[digest] = now
            self._checked = {each: at for each, at in self._checked.items() if each in self._sessions}

    def _decode(self, document: bytes) -> tuple[float, Identity] | None:
        """Return expiry and holder; None for a document that is not valid, and for a token that is not known here."""
        try:
            found: Any = orjson.loads(document)
            version, token, name, expires = (found[each] for each in ("version", "token", "name", "expires"))
            identity = self._tokens.by_digest(bytes.fromhex(token))
            left = float(expires) - time.time()
        except (ValueError, TypeError, LookupError):
            return None
        if version != VERSION or identity is None or identity.name != name or not left > 0.0:
            return None
        return self._clock() + min(left, SESSION_SECONDS), identity

    async def _remove_ended(self) -> None:
        """Remove the documents of sessions that have ended. What fails is tried again with a later request."""
        now = self._clock()
        for digest, expiry in list(self._ended.items()):
            try:
                await self._in_thread(partial(self._documents.remove, KIND, digest.hex()))
            except StoreError:
                if now < expiry:
                    return
            self._ended.pop(digest, None)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            with anyio.fail_after(DEADLINE):
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        except TimeoutError:
            raise StoreError("the server did not answer in time") from None
