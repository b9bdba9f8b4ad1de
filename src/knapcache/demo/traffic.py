"""Traffic for a proxy to show what it does: `knapcache demo`.

Prompts are asked for by their rank of popularity, r = 0, 1, …, and the ranks drift, as interests do:

    P(rank r) ∝ 1 / (r + 1)^SKEW
    every DRIFT requests one prompt, whichever, rises to a place among the first TOP

Requests come at random times, `rate` a second on average, but never more than `clients` are open: a model that is
slower than that is not buried, it sets the pace. Half of the answers are asked for as streams, for a kept answer
serves both. The seed fixes what is asked for, in which order.

What a proxy did is read from the headers of its answers: `x-knapcache` and `x-knapcache-saved-usd`. Another server
sends none of them; its answers are counted as `unknown`.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from knapcache.errors import InvalidInput, MissingExtra, UpstreamFailed

if TYPE_CHECKING:
    from knapcache.serve.upstream import Client

SKEW = 1.0
DRIFT = 25
TOP = 20
STREAMED = 0.5
CONNECT, TIMEOUT = 10.0, 300.0
"""Seconds for a connection, and for one answer."""
HOPELESS = 3
"""Requests in a row that found nobody, after which the server is taken to be away."""
SAVED = ("hit", "coalesced", "stale")
REFUSED = (401, 403, 404, 405)
"""The next request would fare no better."""


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """What is asked, of whom, how fast."""

    url: str = "http://127.0.0.1:8080/v1"
    requests: int = 300
    rate: float = 5.0
    clients: int = 4
    models: tuple[str, ...] = ("smollm2-135m",)
    keys: tuple[str, ...] = ()
    """API keys, one a tenant; none: no credential is sent."""
    max_tokens: int = 24
    """Short answers: the embedded model writes some 50 tokens a second on one core."""
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
            usable = usable and not parts.query and not parts.fragment and "@" not in parts.netloc
        except ValueError:
            usable = False
        if not usable:
            raise InvalidInput(f"the URL must be like http://127.0.0.1:8080/v1, not {self.url!r}")
        for what, number in (("requests", self.requests), ("clients", self.clients), ("max tokens", self.max_tokens)):
            if number < 1:
                raise InvalidInput(f"{what} must be at least 1, not {number}")
        if not 0 < self.rate < float("inf"):
            raise InvalidInput(f"the rate must be a number of requests a second above 0, not {self.rate}")
        if not self.models or not all(self.models):
            raise InvalidInput("a model must have a name")
        if not all(key.isascii() and key.isprintable() and key for key in self.keys):
            raise InvalidInput("a key must be of plain characters, and not empty")


class DemoRequest(NamedTuple):
    """One request."""

    wait: float
    """Seconds since the one before."""
    prompt: str
    model: str
    key: str | None
    stream: bool


def generate_requests(load: TrafficOptions, prompts: Sequence[str]) -> Iterator[DemoRequest]:
    """What is asked, one after the other."""
    rng = random.Random(load.seed)
    order = list(dict.fromkeys(prompts))
    chances = list(accumulate(1 / (rank + 1) ** SKEW for rank in range(len(order))))
    for serial in range(load.requests):
        if serial % DRIFT == DRIFT - 1:
            order.insert(rng.randrange(min(TOP, len(order))), order.pop(rng.randrange(len(order))))
        rank = min(bisect(chances, rng.random() * chances[-1]), len(order) - 1)
        key = rng.choice(load.keys) if load.keys else None
        yield DemoRequest(
            rng.expovariate(load.rate), order[rank], rng.choice(load.models), key, rng.random() < STREAMED
        )


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file: lines of JSON with a "prompt", or one prompt a line. The first are the most popular."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the prompts cannot be read: {error}") from None
    structured = next((line.startswith("{") for line in lines if line), False)
    found: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if structured:
            try:
                line = json.loads(line)["prompt"]
            except (ValueError, TypeError, KeyError):
                line = ""
            if not isinstance(line, str) or not line:
                raise InvalidInput(
                    f'{path}, line {number}: must be JSON with a text "prompt", as in {{"prompt": "Hi"}}'
                )
        found[line] = None
    if not found:
        raise InvalidInput(f"{path} has no prompts")
    return list(found)


@dataclass(slots=True)
class TrafficStats:
    """What came of it, so far."""

    outcome: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """By `how`: from the request to the end of its answer."""
    usd: float | None = None
    """Dollars that the proxy says it saved; None where it never said any."""
    trouble: str = ""
    """What the last failure was."""
    away: int = 0
    """Requests in a row that found nobody."""

    @property
    def done(self) -> int:
        """Requests that are over."""
        return self.outcome.total()

    @property
    def saved(self) -> int:
        """Answers that nobody had to pay for."""
        return sum(self.outcome[outcome] for outcome in SAVED)

    def median(self, *hows: str) -> float | None:
        """Of the seconds of such answers."""
        taken = [seconds for outcome in hows for seconds in self.seconds.get(outcome, ())]
        return statistics.median(taken) if taken else None

    def answered(self, outcome: str, seconds: float, usd: float | None) -> None:
        """An answer came, whole."""
        self.away = 0
        self.outcome[outcome] += 1
        self.seconds.setdefault(outcome, []).append(seconds)
        if usd is not None:
            self.usd = (self.usd or 0.0) + usd

    def failed(self, why: str, *, away: bool = False) -> None:
        """None came."""
        self.away = self.away + 1 if away else 0
        self.outcome["failed"] += 1
        self.trouble = why

    def rows(self) -> list[dict[str, Any]]:
        """A line for each kind of outcome."""
        return [
            {
                "outcome": outcome,
                "requests": count,
                "share": f"{100 * count / self.done:.0f} %",
                "median_ms": None if (middle := self.median(outcome)) is None else 1000 * middle,
            }
            for outcome, count in self.outcome.most_common()
        ]


async def send_traffic(
    load: TrafficOptions, prompts: Sequence[str], tally: TrafficStats, told: Callable[[TrafficStats], None]
) -> None:
    """Send it all. `told` hears of every answer; the tally stays good if this is cancelled."""
    try:
        from knapcache.serve.upstream import Client
    except ImportError:
        raise MissingExtra("the demonstration asks as the proxy does: pip install 'knapcache[serve]'") from None
    gate = asyncio.Semaphore(load.clients)
    with contextlib.closing(Client("the proxy", CONNECT, TIMEOUT)) as client:

        async def one(asked: DemoRequest) -> None:
            try:
                await ask(client, load, asked, tally)
                told(tally)
            finally:
                gate.release()

        try:
            async with asyncio.TaskGroup() as group:
                for serial, asked in enumerate(generate_requests(load, prompts)):
                    await asyncio.sleep(asked.wait)
                    await gate.acquire()
                    task = group.create_task(one(asked))
                    if serial == 0:  # whether anybody is there is found out with one request, not with many
                        await asyncio.wait([task])
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None


async def ask(client: Client, load: TrafficOptions, asked: DemoRequest, tally: TrafficStats) -> None:
    """One request, into the tally. InvalidInput where further ones are no use."""
    from knapcache.serve.upstream import encode_headers

    body = {
        "model": asked.model,
        "messages": [{"role": "user", "content": asked.prompt}],
        "max_tokens": load.max_tokens,
        "stream": asked.stream,
    }
    headers = {"content-type": "application/json"}
    if asked.key:
        headers["authorization"] = f"Bearer {asked.key}"
    began = time.perf_counter()
    try:
        sent = json.dumps(body).encode()
        response = await client.request("POST", load.url, "/chat/completions", encode_headers(headers.items()), sent)
        content = await response.read()
    except UpstreamFailed as error:
        why = error.__cause__
        away = isinstance(why, ConnectionError | socket.gaierror) and error.safe_to_retry
        tally.failed(f"no answer within {TIMEOUT:g} s" if error.status == 504 else f"{why or error}", away=away)
        if away and (tally.done == 1 or tally.away >= HOPELESS):
            raise InvalidInput(f"nobody answers at {load.url}: {why}; is the proxy up?") from None
        return
    seconds = time.perf_counter() - began
    if response.status in REFUSED:
        raise InvalidInput(f"{load.url} refuses: {message(response.status, content)}")
    if response.status != 200 or (asked.stream and b"data: [DONE]" not in content):
        tally.failed(message(response.status, content))
        return
    tally.answered(response.headers.get("x-knapcache", "unknown"), seconds, dollars(response.headers))


def message(status: int, content: bytes) -> str:
    """What an error says, in one line."""
    try:
        said = json.loads(content)["error"]["message"]
    except (ValueError, TypeError, KeyError):
        said = "a stream that does not end" if status == 200 else content[:200].decode(errors="replace")
    return f"status {status}, {' '.join(str(said).split())[:200]}"


def dollars(headers: Any) -> float | None:
    """What the proxy says that this answer saved."""
    try:
        return float(headers["x-knapcache-saved-usd"])
    except (KeyError, ValueError):
        return None
