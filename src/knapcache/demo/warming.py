"""`knapcache warm`: sends the requests of a file through a running proxy, to fill its cache.

Costs are counted here, from the usage of the answers and the price list, because the proxy does not report them.

    estimate       before a request is sent: the price of its input, and of as many output tokens as it allows, or of
                   DEFAULT_OUTPUT; at least what the dearest answer of the model has cost so far
    reserved       Σ estimates of the requests in flight
    Invariant: a request is sent only if spent + reserved + its estimate ≤ max_usd

So the spend passes max_usd only by what the requests in flight cost more than their estimates. Hits cost nothing. An
answer whose usage cannot be billed, and a request that was sent and not answered, cost their estimates.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from knapcache.demo.traffic import CACHED_OUTCOMES, CONNECT_TIMEOUT, REQUEST_TIMEOUT, error_text
from knapcache.errors import InvalidInput, MissingExtra, UpstreamFailed, install_command, reason_text
from knapcache.model import Endpoint
from knapcache.price.meter import PLAIN_NAMES, Meter

if TYPE_CHECKING:
    from knapcache.serve.upstream import Client

BYTES_PER_TOKEN = 4
DEFAULT_OUTPUT = 1000
"""Output tokens of a request without a limit of its own."""
OUTPUT_FIELDS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
MAX_ATTEMPTS = 6
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
"""Seconds before the second attempt, doubled for each further one, and the longest Retry-After that is waited for."""
FATAL_STATUSES = (401, 403)
"""Every further request would get the same response."""
SMALLEST = 1e-12
"""Dollars. Sums of floats may be wrong by less."""


class WarmRequest(NamedTuple):
    """One request of the file."""

    endpoint: Endpoint
    model: str
    body: bytes
    usd: float | None
    """Estimated dollars; None: the price of the model is unknown."""


@dataclass(slots=True)
class WarmFile:
    """The requests of a file."""

    requests: list[WarmRequest]
    duplicates: int
    """Requests that occur before in the file."""
    skipped: int
    """Lines of a content log without a whole request."""

    @property
    def usd(self) -> float:
        """The estimate for all requests with a price, if none of them is in the cache."""
        return sum(request.usd or 0.0 for request in self.requests)

    @property
    def priced(self) -> list[str]:
        """Models with a known price."""
        return sorted({request.model for request in self.requests if request.usd is not None})

    @property
    def unpriced(self) -> list[str]:
        """Models without a known price."""
        return sorted({request.model for request in self.requests if request.usd is None})


@dataclass(slots=True)
class WarmResult:
    """What was sent, and what it cost."""

    requests: int = 0
    hits: int = 0
    misses: int = 0
    not_stored: int = 0
    """Answers that the cache does not keep: the request or the answer is not cacheable."""
    failed: int = 0
    retries: int = 0
    usd: float = 0.0
    stopped: str | None = None
    """Why not all requests were sent: max_usd, interrupted, or the proxy's reason."""
    last_error: str = ""
    reserved: float = 0.0
    """Estimates of the requests in flight, in dollars."""
    dearest: dict[str, float] = field(default_factory=dict)
    """The highest cost of an answer so far, by model."""

    @property
    def finished(self) -> int:
        return self.hits + self.misses + self.not_stored + self.failed

    def summary(self) -> dict[str, Any]:
        """Return the numbers for people and programs."""
        return {
            "requests": self.requests,
            "sent": self.finished,
            "hits": self.hits,
            "misses": self.misses,
            "not_stored": self.not_stored,
            "failed": self.failed,
            "retries": self.retries,
            "usd": round(self.usd, 8),
            "stopped": self.stopped,
            "last_error": self.last_error,
        }


def read_requests(path: Path, meter: Meter, endpoint: str | None = None) -> WarmFile:
    """Return the distinct requests of a JSONL file. endpoint: of lines that do not name theirs."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read requests from {path}: {reason_text(error)}") from None
    found: dict[tuple[Endpoint, bytes], WarmRequest] = {}
    lines = skipped = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            parsed = request_of(json.loads(line), endpoint)
        except InvalidInput as error:
            raise InvalidInput(f"{path}, line {number}: {error}") from None
        except ValueError:
            raise InvalidInput(f"{path}, line {number}: must be a JSON object") from None
        if parsed is None:
            skipped += 1
            continue
        lines += 1
        kind, body = parsed
        raw = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        if (kind, raw) not in found:
            model = str(body["model"])
            found[kind, raw] = WarmRequest(kind, model, raw, estimate(meter, kind, model, body, len(raw)))
    if not found:
        raise InvalidInput(f"{path} has no requests")
    return WarmFile(list(found.values()), lines - len(found), skipped)


def request_of(line: Any, endpoint: str | None) -> tuple[Endpoint, dict[str, Any]] | None:
    """Return endpoint and body of a line; None for a line of a content log without a request.

    A line is a body, a line of OpenAI's batch API (url, body) or Anthropic's (params), or one of the proxy's content
    log (endpoint, request). The body is sent without `stream`: one entry serves both forms.
    """
    from knapcache.wire import endpoint_of

    if not isinstance(line, dict):
        raise ValueError("not an object")
    kind: Endpoint | None = None
    body: Any = line
    if isinstance(line.get("url"), str) and "body" in line:
        kind, body = endpoint_of(line["url"]), line["body"]
        if kind is None:
            raise InvalidInput(f"url must be that of a cacheable endpoint, not {line['url']!r}")
    elif "params" in line and "model" not in line:
        kind, body = Endpoint.MESSAGES, line["params"]
    elif "request" in line and "endpoint" in line:
        kind, body = endpoint_named(str(line["endpoint"])), line["request"]
        if not body or line.get("cut"):
            return None
    if not isinstance(body, dict) or not isinstance(body.get("model"), str) or not body["model"]:
        raise InvalidInput('must have the body of a request, with a "model"')
    kind = kind or (endpoint_named(endpoint) if endpoint else fitting_endpoint(body))
    return kind, {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


def endpoint_named(name: str) -> Endpoint:
    """Return the endpoint of a name such as chat/completions."""
    try:
        return Endpoint(name.removeprefix("/v1/"))
    except ValueError:
        names = ", ".join(endpoint.value for endpoint in Endpoint)
        raise InvalidInput(f"endpoint must be one of {names}, not {name!r}") from None


def fitting_endpoint(body: Mapping[str, Any]) -> Endpoint:
    """Return the endpoint of a body that does not name it, by its fields and its model."""
    model = str(body["model"]).lower()
    if "messages" in body:
        return Endpoint.MESSAGES if model.startswith("claude") else Endpoint.CHAT
    if "input" in body:
        return Endpoint.EMBEDDINGS if "embed" in model else Endpoint.RESPONSES
    if "prompt" in body:
        return Endpoint.COMPLETIONS
    raise InvalidInput("the request has none of messages, input, prompt, so its endpoint must be given (--endpoint)")


def estimate(meter: Meter, endpoint: Endpoint, model: str, body: Mapping[str, Any], size: int) -> float | None:
    """Return the dollars that a miss is expected to cost at most, or None if the model has no known price."""
    limits = [body[name] for name in OUTPUT_FIELDS if isinstance(body.get(name), int)]
    output = 0 if endpoint is Endpoint.EMBEDDINGS else min(limits, default=DEFAULT_OUTPUT)
    count = body.get("n")
    output *= count if isinstance(count, int) and count > 0 else 1
    names = ("input_tokens", "output_tokens") if endpoint in PLAIN_NAMES else ("prompt_tokens", "completion_tokens")
    usage = dict(zip(names, (size // BYTES_PER_TOKEN + 1, max(0, output)), strict=True))
    return meter.bill(endpoint, model, usage, 0.0).usd


class Warmer:
    """Sends requests, and counts what they cost."""

    def __init__(
        self,
        url: str,
        meter: Meter,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_usd: float | None = None,
        ca: Path | None = None,
        on_progress: Callable[[WarmResult], None] = lambda _result: None,
        pause: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._url, self._meter, self._key, self._headers = url, meter, key, dict(headers or {})
        self._max_usd, self._on_progress, self._pause, self._ca = max_usd, on_progress, pause, ca
        self._changed = asyncio.Condition()
        self._in_flight = 0
        self.result = WarmResult()

    async def run(self, requests: list[WarmRequest], concurrency: int) -> None:
        """Send requests until all are sent, or `result.stopped` says why not. Cancellation leaves `result` consistent.

        Raises InvalidInput if the server is down, rejects the requests, or is not a proxy of knapcache.
        """
        try:
            from knapcache.serve.upstream import Client
            from knapcache.serve.upstream.connect import TlsFiles
        except ImportError:
            raise MissingExtra(f"warm needs the proxy's HTTP client: {install_command('serve')}") from None
        self.result.requests = len(requests)
        waiting = iter(requests)
        with contextlib.closing(
            Client("the proxy", CONNECT_TIMEOUT, REQUEST_TIMEOUT, tls=TlsFiles(self._ca))
        ) as client:
            first = next(waiting, None)
            if first is not None:  # alone: a server that is down must fail one request
                await self._send(client, first)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(concurrency, len(requests))):
                        group.create_task(self._send_all(client, waiting))
            except ExceptionGroup as error:
                raise error.exceptions[0] from None

    async def _send_all(self, client: Client, waiting: Iterator[WarmRequest]) -> None:
        while self.result.stopped is None:
            request = next(waiting, None)
            if request is None:
                return
            await self._send(client, request)

    async def _reserve(self, request: WarmRequest) -> float | None:
        """Reserve the estimate of a request, and return it. Return None if the spend would pass `max_usd`.

        While requests are in flight it waits: they may cost less than their estimates.
        """
        result = self.result
        async with self._changed:
            while result.stopped is None:
                needed = max(request.usd or 0.0, result.dearest.get(request.model, 0.0))
                if self._max_usd is None or result.usd + result.reserved + needed <= self._max_usd + SMALLEST:
                    result.reserved += needed
                    self._in_flight += 1
                    return needed
                if not self._in_flight:
                    result.stopped = "max_usd"
                    break
                await self._changed.wait()
            self._changed.notify_all()
            return None

    async def _send(self, client: Client, request: WarmRequest) -> None:
        """Send a request, unless the spend would pass `max_usd`, and count its answer."""
        reserved = await self._reserve(request)
        if reserved is None:
            return
        try:
            await self._send_with_retries(client, request)
        finally:
            self._in_flight -= 1
            self.result.reserved = self.result.reserved - reserved if self._in_flight else 0.0
            async with self._changed:
                self._changed.notify_all()
        self._on_progress(self.result)

    async def _send_with_retries(self, client: Client, request: WarmRequest) -> None:
        from knapcache.serve.upstream import encode_headers

        result = self.result
        headers = encode_headers(self._request_headers(request.endpoint).items())
        for attempt in range(MAX_ATTEMPTS):
            retry_after = None
            try:
                response = await client.request("POST", self._url, f"/{request.endpoint.value}", headers, request.body)
                content = await response.read()
            except UpstreamFailed as error:
                cause = error.__cause__
                if isinstance(cause, ConnectionError | socket.gaierror) and not result.finished:
                    raise InvalidInput(
                        f"cannot connect to {self._url}: {error.reason}; is the proxy running?"
                    ) from None
                result.last_error = f"{cause or error}"
                if not error.safe_to_retry:  # it may have been billed
                    result.usd += request.usd or 0.0
                    if self._max_usd is not None and result.usd + result.reserved > self._max_usd + SMALLEST:
                        result.stopped = "max_usd"
                        break
            else:
                if response.status == 200:
                    self._count(request, response.headers.get("x-knapcache"), content)
                    return
                result.last_error = error_text(response.status, content)
                if response.status in FATAL_STATUSES:
                    hint = " (--key-env NAME sends the key of a tenant)" if response.status == 401 else ""
                    raise InvalidInput(f"{self._url} rejected the request: {result.last_error}{hint}")
                if response.status != 429 and response.status < 500:
                    break
                retry_after = seconds_of(response.headers.get("retry-after"))
                if retry_after is not None and retry_after > MAX_PAUSE:
                    result.stopped = f"the proxy asks to wait {retry_after:,.0f} s"
                    break
            if attempt + 1 < MAX_ATTEMPTS:
                result.retries += 1
                pause = min(MAX_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0)
                await self._pause(max(pause, retry_after or 0.0))
        result.failed += 1

    def _request_headers(self, endpoint: Endpoint) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if endpoint is Endpoint.MESSAGES:
            headers["anthropic-version"] = "2023-06-01"
            if self._key:
                headers["x-api-key"] = self._key
        elif self._key:
            headers["authorization"] = f"Bearer {self._key}"
        return headers | self._headers

    def _count(self, request: WarmRequest, outcome: str | None, content: bytes) -> None:
        """Count an answer and its cost."""
        result = self.result
        if outcome is None:
            raise InvalidInput(f"{self._url} is not a knapcache proxy: its response has no x-knapcache header")
        if outcome in CACHED_OUTCOMES:
            result.hits += 1
            return
        if outcome == "miss":
            result.misses += 1
        else:
            result.not_stored += 1
        try:
            answer = json.loads(content)
            usage = answer.get("usage") if isinstance(answer, dict) else None
        except (ValueError, RecursionError):
            usage = None
        usd = self._meter.bill(request.endpoint, request.model, usage, 0.0).usd if isinstance(usage, dict) else None
        usd = usd or request.usd  # a usage that cannot be billed, such as a negative one, or one of 0
        result.usd += usd or 0.0
        result.dearest[request.model] = max(result.dearest.get(request.model, 0.0), usd or 0.0)


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, or None. Dates are not read: the proxy sends seconds."""
    try:
        return max(0.0, float(retry_after or ""))
    except ValueError:
        return None
