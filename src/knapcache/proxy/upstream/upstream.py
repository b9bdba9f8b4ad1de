"""Upstreams as the proxy uses them: paths, headers, credentials and retries.

    url of kind openai      as OpenAI's SDK has its base_url, with the version:    https://api.openai.com/v1
    url of kind anthropic   as Anthropic's SDK has it; the path has the version:   https://api.anthropic.com

Addresses come only from the settings. Redirects are not followed.

Credentials: an upstream with a key of its own is sent that key, and none of the caller's. Otherwise the caller's
credential is passed on unchanged, unless it is one that the proxy has issued to a tenant.

Retries. `send_with_retries` sends a request again in two cases only:
    no byte of a response was received (`UpstreamFailed.safe_to_retry`), which includes failed connects;
    the response's status is in RETRYABLE_STATUSES, and none of its body was passed on.
At most `retries` times (a setting). The delay is what Retry-After asks for, up to MAX_RETRY_DELAY; a longer Retry-After
is the caller's to obey, and the response is returned. Without Retry-After: 0.25 s, doubled each time, with jitter.
A token bucket bounds retries to RETRY_RATIO of all requests, with bursts of RETRY_BURST: an upstream that is down gets
10 % more requests, and not twice as many.

Health. It is passive: the results of real requests in this process. Groups use it to choose (upstreams.py).

    HEALTHY     requests are sent
    OPEN        groups send requests to other members, until `open_until`
    HALF_OPEN   that time has passed: the next request is the probe

    state       event                                                      next state
    HEALTHY     MAX_FAILURES failures in a row, or MAX_FAILED of the       OPEN for FIRST_OPEN seconds
                last WINDOW requests
    any         a failure with a time to wait (429 with Retry-After)       OPEN for that time, up to MAX_RETRY_AFTER
    HALF_OPEN   the probe fails                                            OPEN for twice as long, up to MAX_OPEN
    HALF_OPEN   the probe has no result after PROBE_SECONDS                HALF_OPEN: the next request is a probe, too
    not HEALTHY a success                                                  HEALTHY

A result counts only if its request began after the last change of state: requests that were on their way when the
upstream was opened neither close it nor open it for longer. A group without another member sends requests to an open
upstream, too. Their failures change nothing, and a success closes it.

`events/upstream_health.py` is the owner's view of all processes, for people: it logs the first failed request. This
state is one process's, and decides where requests go.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, urlsplit

from knapcache.errors import UpstreamFailed
from knapcache.exchange.headers import CREDENTIALS, GATEWAY_CREDENTIALS, nominated
from knapcache.proxy.settings.endpoints import has_own_credential
from knapcache.proxy.settings.value_types import is_below
from knapcache.proxy.upstream.client import Client, parse_base_url
from knapcache.proxy.upstream.connect import TlsFiles
from knapcache.proxy.upstream.connection import Pairs
from knapcache.proxy.upstream.embedded_model import REQUEST_HEADERS
from knapcache.proxy.upstream.failures import upstream_failed
from knapcache.proxy.upstream.proxies import HttpProxy, environment_proxy
from knapcache.proxy.upstream.response import MAX_BODY, Response

if TYPE_CHECKING:
    from knapcache.proxy.settings import UpstreamSettings

log = logging.getLogger("knapcache.serve")

RETRYABLE_STATUSES = (429, 500, 502, 503, 504, 529)
MAX_RETRY_DELAY = 10.0
"""Seconds."""
RETRY_RATIO, RETRY_BURST = 0.1, 10.0
MAX_KNOWN_MODELS = 1000
"""Model names whose upstream is remembered. Callers choose the names, so their number is bounded."""
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade", "host", "expect", "cookie", "forwarded", "via")
)  # fmt: skip
"""Headers of one connection, and of one client."""
NOT_SENT = HOP_BY_HOP | {
    "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-http-method", "x-http-method-override",
    "x-method-override", "x-original-url", "x-rewrite-url",
}  # fmt: skip
"""Headers that are not passed on: also the client's address, and what some servers take for another method or path."""
BODY_HEADERS = frozenset(("content-length", "content-encoding", "accept-encoding", "idempotency-key"))
"""Headers that do not hold for a body that the proxy has decoded. A provider may answer a second request with the same
idempotency key by the first one's answer. The proxy may send a request twice, with and without `stream_options`, and
its answer is shared and stored, so the caller's idempotency key must not select it."""
CACHE_HEADER_PREFIXES = ("cache-control", "pragma", "helicone-", "cf-aig-", "x-portkey-", "x-knapcache", "x-forwarded-")
"""Beginnings of header names that are meant for caches and proxies, and not passed on."""


HEADER_CHARACTERS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""Characters of a name that are sent in a header as they are; others are percent-encoded."""
MAX_FAILURES = 3
WINDOW, MAX_FAILED = 20, 10
FIRST_OPEN, MAX_OPEN = 1.0, 60.0
"""Seconds."""
MAX_RETRY_AFTER = 3600.0
"""Seconds of a Retry-After that is obeyed. An upstream must not end its own use for days by one header."""
PROBE_SECONDS = 60.0
_MASK = (1 << WINDOW) - 1


class HealthState(enum.StrEnum):
    """State of an upstream; the table of transitions is in the module's docstring."""

    HEALTHY = "healthy"
    OPEN = "open"
    HALF_OPEN = "half-open"


class PassiveHealth:
    """The health of one upstream. Times are of the monotonic clock."""

    __slots__ = ("_failures", "_probing", "_recent", "_seconds", "generation", "last_failure", "open_until")

    def __init__(self) -> None:
        self.generation = 0
        """Changes of state so far. A request keeps the number at its begin, and passes it with its result."""
        self.open_until = 0.0
        """0: healthy."""
        self.last_failure = float("-inf")
        self._failures = self._recent = 0
        """Failures in a row, and the last results: one bit each, 1 for a failure."""
        self._seconds = 0.0
        """How long it was opened the last time; 0: it was not, since it was healthy."""
        self._probing = False

    def state(self, now: float) -> HealthState:
        """Return the state."""
        if not self.open_until:
            return HealthState.HEALTHY
        return HealthState.HALF_OPEN if self._probing or now >= self.open_until else HealthState.OPEN

    def available(self, now: float) -> bool:
        """Return whether a request may be sent: it is healthy, or half-open without a probe."""
        return now >= self.open_until

    def begin(self, now: float) -> int:
        """Begin a request. Return the number to pass with its result. In half-open state it is the probe."""
        if self.open_until and now >= self.open_until:
            self._probing, self.open_until = True, now + PROBE_SECONDS
        return self.generation

    def succeed(self, generation: int) -> None:
        """Count a request that was answered."""
        if generation != self.generation:
            return
        self._failures = 0
        if self.open_until:
            self.open_until = self._seconds = 0.0
            self._recent, self._probing = 0, False
            self.generation += 1
        elif self._recent:
            self._recent = self._recent << 1 & _MASK

    def fail(self, generation: int, now: float, retry_after: float | None = None) -> None:
        """Count a request that was not answered. retry_after: seconds for which the upstream wants no requests."""
        self.last_failure = now
        if generation != self.generation:
            return
        if retry_after:
            self._open(now, min(retry_after, MAX_RETRY_AFTER))
        elif self._probing:
            self._seconds = min(MAX_OPEN, max(FIRST_OPEN, 2.0 * self._seconds))
            self._open(now, self._seconds)
        elif not self.open_until:
            self._failures += 1
            self._recent = (self._recent << 1 | 1) & _MASK
            if self._failures >= MAX_FAILURES or self._recent.bit_count() >= MAX_FAILED:
                self._seconds = FIRST_OPEN
                self._open(now, FIRST_OPEN)

    def release(self, generation: int, now: float) -> None:
        """End a request whose result says nothing about the upstream: the caller's error, or a caller that left."""
        if self._probing and generation == self.generation:
            self._probing, self.open_until = False, now

    def _open(self, now: float, seconds: float) -> None:
        self.open_until, self._probing = now + seconds, False
        self._failures = self._recent = 0
        self.generation += 1

    def open_until_unix(self) -> float:
        """Return the Unix time until which it is open; 0: it is healthy."""
        return self.open_until and time.time() + self.open_until - time.monotonic()


class LocalModel(Protocol):
    """A model server on this machine, whose address is known when it is ready."""

    async def ready(self) -> str:
        """Return its base URL. OSError if it does not start."""


class Upstream:
    """One upstream: a provider, or the embedded model."""

    def __init__(self, settings: UpstreamSettings, local: LocalModel | None = None, max_answer: int = MAX_BODY) -> None:
        self.settings, self.name = settings, settings.name
        self.context = {"upstream": settings.url}
        """A part of every key: answers of different upstreams are never mixed."""
        self.header = "x-knapcache-upstream", quote(settings.name, safe=HEADER_CHARACTERS)
        """The response header of answers from this upstream."""
        self.health = PassiveHealth()
        self.alone: object = None
        """The `UpstreamGroup` for requests that no route gives another one; None until `group_of_one` has made it."""
        self.own_credential = has_own_credential(settings)
        """Whether requests are sent with a key of the settings, and never with the caller's."""
        self._local = local
        self._key = settings.key
        self._key_header = key_header(settings)
        self._retry_tokens = RETRY_BURST
        proxy = None if local is not None else proxy_of(settings)
        if proxy is not None:
            log.info("upstream %s is reached through the proxy %s", self.name, proxy)
        self.client = Client(
            settings.name,
            settings.connect_timeout,
            settings.timeout,
            settings.total_timeout,
            proxy=proxy,
            tls=TlsFiles(settings.ca_file, settings.client_cert, settings.client_key),
            max_body=max_answer,
        )

    def account(self, credential: str | None) -> str:
        """Return what tells accounts at the provider apart: the caller's credential, if that is what is sent."""
        return credential or "" if self._key is None else ""

    @property
    def has_credentials(self) -> bool:
        """Whether requests are sent with credentials of the settings: a key, headers, or a client certificate."""
        return self._key is not None or bool(self.settings.headers) or self.settings.client_cert is not None

    async def send_with_retries(
        self, path: str, headers: bytes, content: bytes, attempts: list[int], retries: int | None = None
    ) -> Response:
        """Send a POST request, again where the module's rules allow it. Raises UpstreamFailed.

        headers    `encode_headers(self.request_headers(…))`
        attempts   the status of every attempt is appended; 0: there was no response
        retries    instead of the setting
        """
        if retries is None:
            retries = self.settings.retries
        self._retry_tokens = min(RETRY_BURST, self._retry_tokens + RETRY_RATIO)
        attempt = 0
        while True:
            try:
                response = await self.send("POST", path, headers, content, attempts)
            except UpstreamFailed as error:
                delay = self._retry_delay(attempt, retries, {}) if error.safe_to_retry else None
                if delay is None:
                    raise
            else:
                if response.status not in RETRYABLE_STATUSES:
                    return response
                delay = self._retry_delay(attempt, retries, response.headers)
                if delay is None:
                    return response
                await response.close()
            attempt += 1
            self._retry_tokens -= 1.0
            await asyncio.sleep(delay)

    def _retry_delay(self, attempt: int, retries: int, headers: Mapping[str, str]) -> float | None:
        """Seconds until the next attempt; None if there is none."""
        if attempt >= retries or self._retry_tokens < 1.0:
            return None
        requested = retry_after(headers)
        if requested is not None:
            return requested if requested <= MAX_RETRY_DELAY else None
        return min(MAX_RETRY_DELAY, 0.25 * 2.0**attempt) * random.uniform(0.5, 1.0)

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
        """Send a request once, and return when the head of its response was received. Raises UpstreamFailed.

        attempts   the status is appended; 0: there was no response
        raw        leave the response's body encoded
        """
        try:
            base_url = self.settings.url if self._local is None else await self._local.ready()
            response = await self.client.request(method, base_url, path, headers, content, raw=raw)
        except UpstreamFailed:
            attempts.append(0)
            raise
        except OSError as error:  # the embedded model does not start
            attempts.append(0)
            raise upstream_failed(self.name, error, safe_to_retry=True) from error
        attempts.append(response.status)
        return response

    def path(self, path: str) -> str:
        """The upstream's path for one of the proxy's; both begin with a slash."""
        if self.settings.kind == "anthropic":
            return path
        return path.removeprefix("/v1") if path.startswith("/v1/") else path

    def request_headers(self, headers: Mapping[str, str], own_key: bool, *, raw: bool = False) -> Pairs:
        """The headers to send for a caller's headers, which have lower-case names.

        own_key   the caller's credential is the provider's, not one that the proxy has issued
        raw       the body is passed on as it came, with its BODY_HEADERS
        """
        settings, key = self.settings, self._key
        of_connection = nominated(headers.get("connection", ""))
        passed = [
            (name, value)
            for name, value in headers.items()
            if name not in NOT_SENT
            and name not in of_connection
            and not name.startswith(CACHE_HEADER_PREFIXES)
            and (raw or name not in BODY_HEADERS)
            and (name not in CREDENTIALS or (own_key and key is None))
            and (name not in GATEWAY_CREDENTIALS or not self.own_credential)
            and name not in settings.headers
        ]
        if self._local is not None:
            passed += REQUEST_HEADERS.items()
        if key is not None:
            name = self._key_header
            passed.append((name, f"Bearer {key}" if name == "authorization" else key))
        return [*passed, *settings.headers.items()]


def key_header(settings: UpstreamSettings) -> str:
    """Return the name of the header in which the provider expects its key."""
    if settings.kind == "anthropic":
        return "x-api-key"
    host = urlsplit(settings.url).hostname or ""
    return "api-key" if is_below(host, "azure.com") else "authorization"


def proxy_of(settings: UpstreamSettings) -> HttpProxy | None:
    """The proxy that an upstream's settings name, or that of the environment. InvalidInput if it cannot be used."""
    if settings.proxy is None:
        return environment_proxy(parse_base_url(settings.url).origin)
    url = settings.proxy.get_secret_value()
    return HttpProxy.parse(url) if url else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait, from retry-after-ms or retry-after (a number or a date); None: no such."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            return max(0.0, float(value) * unit)
        except ValueError:
            pass
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except (ValueError, TypeError):
            continue
    return None
