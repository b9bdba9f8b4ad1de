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
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol

from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import CREDENTIALS
from knapcache.serve.upstream import Client, Pairs, Response, upstream_failed
from knapcache.serve.upstream.embedded_model import HEADERS

if TYPE_CHECKING:
    from knapcache.serve.settings import Settings, UpstreamSettings

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


class Place(Protocol):
    """An embedded model: an address that comes when it is ready."""

    async def ready(self) -> str:
        """Its base URL."""


class Upstream:
    """One provider, or a model on this machine."""

    def __init__(self, settings: UpstreamSettings, local: Place | None = None) -> None:
        self.settings, self.name = settings, settings.name
        self.context = {"upstream": settings.url}
        """What keys depend on: another address is another provider."""
        self._local = local
        self.client = Client(settings.name, settings.connect_timeout, settings.timeout)
        self._key = settings.key
        self._allowance = BURST

    async def send_with_retries(self, path: str, headers: bytes, content: bytes, attempts: list[int]) -> Response:
        """Send a request that may be sent again. headers: the lines of what `request_headers` says.

        attempts: the status of every attempt is appended, 0 if no response came.
        """
        self._allowance = min(BURST, self._allowance + SHARE)
        attempt = 0
        while True:
            try:
                response = await self.send("POST", path, headers, content, attempts)
            except UpstreamFailed as error:
                pause = self._pause(attempt, {}) if error.safe_to_retry else None
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

    async def send(
        self,
        method: str,
        path: str,
        headers: bytes,
        content: bytes | AsyncIterator[bytes] | None,
        attempts: list[int],
        *,
        raw: bool = False,
    ) -> Response:
        """Send it, and wait for the head of the response. raw: the body is passed on as it is packed.

        attempts: the status is appended, 0 if no response came.
        """
        try:
            base = self.settings.url if self._local is None else await self._local.ready()
            response = await self.client.request(method, base, path, headers, content, raw=raw)
        except UpstreamFailed:
            attempts.append(0)
            raise
        except OSError as error:  # the local model is not there
            attempts.append(0)
            raise upstream_failed(self.name, error, safe_to_retry=True) from error
        attempts.append(response.status)
        return response

    def path(self, asked: str) -> str:
        """Where a path of ours is at this provider; both begin with a slash."""
        if self.settings.kind == "anthropic":
            return asked
        return asked.removeprefix("/v1") if asked.startswith("/v1/") else asked

    def request_headers(self, headers: Mapping[str, str], own_key: bool, *, raw: bool = False) -> Pairs:
        """A caller's headers as they go on. own_key: the caller's credential is meant for the provider."""
        settings, key = self.settings, self._key
        passed = [
            (name, value)
            for name, value in headers.items()
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

    def __init__(self, settings: Settings, local: Place | None) -> None:
        self.all = [Upstream(each, local if each.local else None) for each in settings.upstreams]
        self._settings = settings
        self._known: dict[str, Upstream | None] = {}

    def for_model(self, model: str) -> Upstream | None:
        """Who answers for a model; None: nobody."""
        try:
            return self._known[model]
        except KeyError:
            settings = self._settings.upstream_for(model)
            found = next((upstream for upstream in self.all if upstream.settings is settings), None)
            if len(self._known) < 1000:  # names come from outside
                self._known[model] = found
            return found

    def close(self) -> None:
        """Close all connections."""
        for upstream in self.all:
            upstream.client.close()


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
