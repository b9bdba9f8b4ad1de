"""The request generator of `knapcache demo`: sends chat requests to a running proxy and collects its cache headers.

Prompts are drawn by popularity rank r = 0, 1, …, and the ranks drift:

    P(rank r) ∝ 1 / (r + 1)^ZIPF_EXPONENT
    every DRIFT_INTERVAL requests one prompt, chosen uniformly, moves to a random rank below TOP_RANKS

Arrivals are a Poisson process of `rate` requests per second with at most `clients` requests in flight, so a slow model
sets the pace instead of building a queue. Half of the requests ask for a stream; one stored answer serves both forms.
The seed fixes prompts, models, keys and their order.

Cache outcomes and savings come from the response headers `x-knapcache` and `x-knapcache-saved-…`. Responses without
them are counted as `unknown`. Dollars saved on answers of the embedded model come from a price in the proxy's settings
and are simulated, because the model is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import statistics
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from knapcache.errors import InvalidInput, MissingExtra, UpstreamFailed, install_command, reason_text

if TYPE_CHECKING:
    from knapcache.proxy.upstream import Client

ZIPF_EXPONENT = 1.0
DRIFT_INTERVAL = 25
TOP_RANKS = 20
STREAM_SHARE = 0.5
CONNECT_TIMEOUT, REQUEST_TIMEOUT = 10.0, 300.0
"""Seconds."""
MAX_CONNECT_FAILURES = 3
"""Consecutive failed connections after which the server counts as down."""
EMBEDDED_MODEL = "smollm2-135m"
"""The name of the embedded model in its answers."""
CACHED_OUTCOMES = ("hit", "similar", "coalesced", "stale")
FATAL_STATUSES = (401, 403, 404, 405)
"""Every further request would get the same response."""
HINTS = {401: " (--api-key KEY sends the key of a tenant)", 404: " (--model NAME asks for a model of the provider)"}


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """Target, volume and content of the traffic."""

    url: str = "http://127.0.0.1:8080/v1"
    ca: Path | None = None
    """PEM file with the certificates to trust; None: the system's."""
    requests: int = 300
    rate: float = 5.0
    """Average requests per second."""
    concurrency: int = 4
    """Maximum requests in flight."""
    models: tuple[str, ...] = (EMBEDDED_MODEL,)
    keys: tuple[str, ...] = ()
    """API keys, one per tenant. Without keys no credential is sent."""
    max_tokens: int = 24
    """Small, because the embedded model writes about 50 tokens per second on one core."""
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
            valid = valid and not parts.query and not parts.fragment and "@" not in parts.netloc
        except ValueError:
            valid = False
        if self.ca is not None and not self.ca.is_file():
            raise InvalidInput(f"ca must be a PEM file with certificates; there is no file {self.ca}")
        if not valid:
            raise InvalidInput(f"url must look like http://127.0.0.1:8080/v1, not {self.url!r}")
        for name, number in (
            ("requests", self.requests),
            ("concurrency", self.concurrency),
            ("max tokens", self.max_tokens),
        ):
            if number < 1:
                raise InvalidInput(f"{name} must be at least 1, not {number}")
        if not 0 < self.rate < float("inf"):
            raise InvalidInput(f"rate must be a finite number of requests per second above 0, not {self.rate}")
        if not self.models or not all(self.models):
            raise InvalidInput("model must not be empty")
        if not all(key.isascii() and key.isprintable() and key for key in self.keys):
            raise InvalidInput("key must be printable ASCII and not empty")


class DemoRequest(NamedTuple):
    """One request of the traffic."""

    delay: float
    """Seconds after the previous request."""
    prompt: str
    model: str
    key: str | None
    stream: bool


def generate_requests(options: TrafficOptions, prompts: Sequence[str]) -> Iterator[DemoRequest]:
    """Yield the requests in order. Equal options and prompts give equal requests."""
    rng = random.Random(options.seed)
    by_rank = list(dict.fromkeys(prompts))
    weights = list(accumulate(1 / (rank + 1) ** ZIPF_EXPONENT for rank in range(len(by_rank))))
    for number in range(options.requests):
        if number % DRIFT_INTERVAL == DRIFT_INTERVAL - 1:
            by_rank.insert(rng.randrange(min(TOP_RANKS, len(by_rank))), by_rank.pop(rng.randrange(len(by_rank))))
        rank = min(bisect(weights, rng.random() * weights[-1]), len(by_rank) - 1)
        key = rng.choice(options.keys) if options.keys else None
        yield DemoRequest(
            delay=rng.expovariate(options.rate),
            prompt=by_rank[rank],
            model=rng.choice(options.models),
            key=key,
            stream=rng.random() < STREAM_SHARE,
        )


def read_prompts(path: Path) -> list[str]:
    """Return the distinct prompts of a file, most popular first: JSON objects with "prompt", or one prompt per line."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read prompts from {path}: {reason_text(error)}") from None
    is_json = next((line.startswith("{") for line in lines if line), False)
    prompts: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if is_json:
            try:
                line = json.loads(line)["prompt"]
            except (ValueError, TypeError, KeyError):
                line = ""
            if not isinstance(line, str) or not line:
                raise InvalidInput(
                    f'{path}, line {number}: must be a JSON object with a string "prompt", such as {{"prompt": "Hi"}}'
                )
        prompts[line] = None
    if not prompts:
        raise InvalidInput(f"{path} has no prompts")
    return list(prompts)


@dataclass(slots=True)
class TrafficStats:
    """Counts, latencies and savings of the finished requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    latencies: dict[str, list[float]] = field(default_factory=dict)
    """By outcome: seconds from sending the request to the end of the response."""
    usd_saved: float | None = None
    """Sum of the proxy's savings headers in US dollars. None if no response had one."""
    simulated: bool = False
    """Whether some of these dollars are at a made-up price."""
    seconds_saved: float = 0.0
    tokens_saved: int = 0
    """What answers without a price have saved."""
    last_error: str = ""
    connect_failures: int = 0
    """Consecutive requests that could not connect."""

    @property
    def finished(self) -> int:
        return self.outcomes.total()

    @property
    def cached(self) -> int:
        return sum(self.outcomes[outcome] for outcome in CACHED_OUTCOMES)

    def median_latency(self, *outcomes: str) -> float | None:
        """Return the median seconds over these outcomes, or None if there were none."""
        seconds = [each for outcome in outcomes for each in self.latencies.get(outcome, ())]
        return statistics.median(seconds) if seconds else None

    def add_answer(self, outcome: str, seconds: float, headers: Mapping[str, str], *, embedded: bool = False) -> None:
        """Count an answer, and what its headers say that it saved. embedded: it is the embedded model's."""
        self.connect_failures = 0
        self.outcomes[outcome] += 1
        self.latencies.setdefault(outcome, []).append(seconds)
        usd = saved(headers, "usd")
        if usd is not None:
            self.usd_saved = (self.usd_saved or 0.0) + usd
            self.simulated = self.simulated or embedded
        self.seconds_saved += saved(headers, "seconds") or 0.0
        self.tokens_saved += int(saved(headers, "tokens") or 0.0)

    def add_failure(self, error: str, *, connect: bool = False) -> None:
        """Count a failed request. connect: no connection was established."""
        self.connect_failures = self.connect_failures + 1 if connect else 0
        self.outcomes["failed"] += 1
        self.last_error = error

    def rows(self) -> list[dict[str, Any]]:
        """Return one table row per outcome, most frequent first."""
        return [
            {
                "outcome": outcome,
                "requests": count,
                "share": f"{100 * count / self.finished:.0f} %",
                "median_ms": None if (median := self.median_latency(outcome)) is None else 1000 * median,
            }
            for outcome, count in self.outcomes.most_common()
        ]


async def send_traffic(
    options: TrafficOptions,
    prompts: Sequence[str],
    stats: TrafficStats,
    on_progress: Callable[[TrafficStats], None],
) -> None:
    """Send all requests and update `stats` after each. Cancellation leaves `stats` consistent.

    Raises InvalidInput if the server is down or rejects the requests.
    """
    try:
        from knapcache.proxy.upstream import Client
        from knapcache.proxy.upstream.connect import TlsFiles
    except ImportError:
        raise MissingExtra(f"demo needs the proxy's HTTP client: {install_command('serve')}") from None
    in_flight = asyncio.Semaphore(options.concurrency)
    with contextlib.closing(Client("the proxy", CONNECT_TIMEOUT, REQUEST_TIMEOUT, tls=TlsFiles(options.ca))) as client:

        async def send(request: DemoRequest) -> None:
            try:
                await send_request(client, options, request, stats)
                on_progress(stats)
            finally:
                in_flight.release()

        try:
            async with asyncio.TaskGroup() as group:
                for number, request in enumerate(generate_requests(options, prompts)):
                    await asyncio.sleep(request.delay)
                    await in_flight.acquire()
                    task = group.create_task(send(request))
                    if number == 0:  # a server that is down must fail one request, not `clients` of them
                        await asyncio.wait([task])
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None


async def send_request(client: Client, options: TrafficOptions, request: DemoRequest, stats: TrafficStats) -> None:
    """Send one request and record its result. Raises InvalidInput if further requests are pointless."""
    from knapcache.proxy.upstream import encode_headers

    body = {
        "model": request.model,
        "messages": [{"role": "user", "content": request.prompt}],
        "max_tokens": options.max_tokens,
        "stream": request.stream,
    }
    headers = {"content-type": "application/json"}
    if request.key:
        headers["authorization"] = f"Bearer {request.key}"
    start = time.perf_counter()
    try:
        raw = json.dumps(body).encode()
        response = await client.request("POST", options.url, "/chat/completions", encode_headers(headers.items()), raw)
        content = await response.read()
    except UpstreamFailed as error:
        cause = error.__cause__
        connect = isinstance(cause, ConnectionError | socket.gaierror) and error.safe_to_retry
        reason = f"no answer within {REQUEST_TIMEOUT:g} s" if error.status == 504 else error.reason or str(error)
        stats.add_failure(reason, connect=connect)
        if connect and (stats.finished == 1 or stats.connect_failures >= MAX_CONNECT_FAILURES):
            raise InvalidInput(f"cannot connect to {options.url}: {error.reason}; is the proxy running?") from None
        return
    seconds = time.perf_counter() - start
    if response.status in FATAL_STATUSES:
        hint = HINTS.get(response.status, "")
        raise InvalidInput(f"{options.url} rejected the request: {error_text(response.status, content)}{hint}")
    if response.status != 200 or (request.stream and b"data: [DONE]" not in content):
        stats.add_failure(error_text(response.status, content))
        return
    embedded = EMBEDDED_MODEL.encode() in content
    stats.add_answer(response.headers.get("x-knapcache", "unknown"), seconds, response.headers, embedded=embedded)


def error_text(status: int, content: bytes) -> str:
    """Return the status and error message of a response in one line."""
    try:
        message = json.loads(content)["error"]["message"]
    except (ValueError, TypeError, KeyError):
        message = "incomplete stream" if status == 200 else content[:200].decode(errors="replace")
    return f"status {status}, {' '.join(str(message).split())[:200]}"


def saved(headers: Mapping[str, str], unit: str) -> float | None:
    """Return the savings header in a unit, or None if it is absent or malformed."""
    try:
        return float(headers[f"x-knapcache-saved-{unit}"])
    except (KeyError, ValueError):
        return None
