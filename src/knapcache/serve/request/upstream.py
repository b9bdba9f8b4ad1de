"""The way to the providers. Where it leads the settings say: no caller names an address, and none is redirected.

    url of kind openai      as OpenAI's SDK has its base_url, the version in it:    https://api.openai.com/v1
    url of kind anthropic   as Anthropic's SDK has it, the version in the path:     https://api.anthropic.com

Credentials: where the upstream has a key of its own, that one is sent and the caller's is not; else the caller's is, as
it came, unless it is one that we have given out.

A call is tried again only while nothing of its answer has come: no connection, or a status that says so. It waits as
Retry-After says, where that is not long, and no longer than that; and there is a budget, a tenth of the calls: a
provider that is down is not helped by twice the calls.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import CREDENTIALS
from knapcache.serve.local import HEADERS

if TYPE_CHECKING:
    from knapcache.serve.settings import Settings, UpstreamSettings

Pairs = list[tuple[str, str]]

AGAIN = (429, 500, 502, 503, 504, 529)
"""Statuses that may pass."""
LONGEST_PAUSE = 10.0
"""Seconds: a provider that wants more time gets it from the caller, who is told."""
SHARE, BURST = 0.1, 10.0
"""Of calls that may be made again, and how many may at once."""
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade", "host", "expect", "cookie", "forwarded", "via")
)  # fmt: skip
"""Headers that end here: of one connection, or about who is behind it."""
REWRITTEN = frozenset(("content-length", "content-encoding", "accept-encoding"))
"""Headers of a body that we read and send anew."""
FOR_US = ("cache-control", "pragma", "helicone-", "cf-aig-", "x-portkey-", "x-knapcache", "x-forwarded-")
"""How headers begin that speak to caches and proxies."""
MOST = 256 << 20
"""Bytes of an answer that is not a stream: more is no answer of a language model."""


class Place(Protocol):
    """An embedded model: an address that comes when it is ready."""

    async def ready(self) -> str:
        """Its base URL."""


class Response:
    """A response of aiohttp, as `Received`."""

    def __init__(self, response: aiohttp.ClientResponse, name: str) -> None:
        self._response, self._name = response, name
        self.status = response.status
        self.pairs: Pairs = list(response.headers.items())
        self.headers = {key.lower(): value for key, value in self.pairs}

    async def read(self) -> bytes:
        """All of the body."""
        pieces: list[bytes] = []
        size = 0
        async for piece in self.pieces():
            pieces.append(piece)
            size += len(piece)
            if size > MOST:
                raise UpstreamFailed(502, f"{self._name} sent more than {MOST} bytes")
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise failed(self._name, error) from error

    async def close(self) -> None:
        """Let go of it: the connection is used again if all was read."""
        self._response.release()


class Upstream:
    """One provider, or a model on this machine."""

    def __init__(self, settings: UpstreamSettings, session: aiohttp.ClientSession, local: Place | None = None) -> None:
        self.settings, self.name = settings, settings.name
        self.context = {"upstream": settings.url}
        """What keys depend on: another address is another provider."""
        self.calls = self.errors = self.retries = self.failing = 0
        """How many, and how many failed in a row."""
        self._session, self._local = session, local
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_timeout, sock_read=settings.timeout
        )
        self._key = settings.key
        self._allowance = BURST

    @property
    def state(self) -> str:
        """ok, or failing: the last calls all failed."""
        return "failing" if self.failing >= 3 else "ok"

    async def call(self, path: str, headers: Iterable[tuple[str, str]], content: bytes) -> Response:
        """Send a request that may be sent again. headers: as `outgoing` makes them."""
        self._allowance = min(BURST, self._allowance + SHARE)
        attempt = 0
        while True:
            try:
                response = await self.once("POST", path, headers, content)
            except UpstreamFailed as error:
                pause = self._pause(attempt, {}) if error.before else None
                if pause is None:
                    raise
            else:
                if response.status not in AGAIN:
                    return response
                pause = self._pause(attempt, response.headers)
                if pause is None:
                    return response
                await response.close()
            attempt += 1
            self.retries += 1
            self._allowance -= 1.0
            await asyncio.sleep(pause)

    def _pause(self, attempt: int, headers: Mapping[str, str]) -> float | None:
        """Seconds to wait before the next attempt; None: there is none."""
        if attempt >= self.settings.retries or self._allowance < 1.0:
            return None
        asked = retry_after(headers)
        if asked is not None:
            return asked if asked <= LONGEST_PAUSE else None
        return min(LONGEST_PAUSE, 0.25 * 2.0**attempt) * random.uniform(0.5, 1.0)

    async def once(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        content: bytes | AsyncIterator[bytes] | None,
        *,
        raw: bool = False,
    ) -> Response:
        """Send it, and wait for the head of the response. raw: the body is passed on as it is packed."""
        self.calls += 1
        try:
            base = self.settings.url if self._local is None else await self._local.ready()
            response = await self._session.request(
                method,
                URL(base.rstrip("/") + path, encoded=True),  # as it was spelled
                data=content,
                headers=CIMultiDict(headers),
                allow_redirects=False,
                timeout=self._timeout,
                auto_decompress=not raw,
                skip_auto_headers=("User-Agent", "Accept-Encoding") if raw else ("User-Agent",),
            )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._count(ok=False)
            raise failed(self.name, error, before=True) from error
        self._count(ok=response.status < 500)
        return Response(response, self.name)

    def _count(self, *, ok: bool) -> None:
        self.errors += not ok
        self.failing = 0 if ok else self.failing + 1

    def path(self, asked: str) -> str:
        """Where a path of ours is at this provider; both begin with a slash."""
        if self.settings.kind == "anthropic":
            return asked
        return asked.removeprefix("/v1") if asked.startswith("/v1/") else asked

    def outgoing(self, headers: Pairs, own_key: bool, *, raw: bool = False) -> Pairs:
        """A caller's headers as they go on. own_key: the caller's credential is meant for the provider."""
        settings, key = self.settings, self._key
        passed = [
            (name, value)
            for name, value in headers
            if name not in HOP_BY_HOP
            and not name.startswith(FOR_US)
            and (raw or name not in REWRITTEN)
            and (name not in CREDENTIALS or (own_key and key is None))
            and name not in settings.headers
        ]
        if self._local is not None:
            passed += HEADERS.items()
        if key is not None:
            passed.append(("x-api-key", key) if settings.kind == "anthropic" else ("authorization", f"Bearer {key}"))
        return [*passed, *settings.headers.items()]


class Upstreams:
    """All of them, by model."""

    def __init__(self, settings: Settings, session: aiohttp.ClientSession, local: Place | None) -> None:
        self.all = [Upstream(each, session, local if each.local else None) for each in settings.upstreams]
        self._settings = settings
        self._known: dict[str, Upstream | None] = {}

    def of(self, model: str) -> Upstream | None:
        """Who answers for a model; None: nobody."""
        try:
            return self._known[model]
        except KeyError:
            settings = self._settings.upstream_for(model)
            found = next((upstream for upstream in self.all if upstream.settings is settings), None)
            if len(self._known) < 1000:  # names come from outside
                self._known[model] = found
            return found


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a provider asks for, by any of the headers that are in use."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        given = headers.get(name)
        if given is None:
            continue
        try:
            return max(0.0, float(given) * unit)
        except ValueError:
            pass
        try:
            return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
        except (ValueError, TypeError):
            continue
    return None


def failed(name: str, error: Exception, *, before: bool = False) -> UpstreamFailed:
    """What a caller is told: who, and what kind of trouble; no address, for it may be nobody's business."""
    if isinstance(error, TimeoutError):
        return UpstreamFailed(504, f"{name} did not answer in time", before)
    return UpstreamFailed(502, f"{name} cannot be reached, or broke off: {type(error).__name__}", before)
