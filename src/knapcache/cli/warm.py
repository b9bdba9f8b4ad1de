"""`knapcache warm`: send the requests of a file through a running proxy, to fill its cache.

    Invariant: a request is sent only if spent + estimates of the requests in flight + its own estimate ≤ --max-usd

An estimate is the price of the input and of all output tokens that a request allows. Hits cost nothing, other answers
what their usage costs. An answer without a usable usage, and a request without an answer, cost their estimates.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

from knapcache.cli import options
from knapcache.cli.output import print_text, progress_bar
from knapcache.errors import InvalidInput, MissingExtra, UpstreamFailed, install_command, reason_text
from knapcache.model import Endpoint
from knapcache.units import counted

HELP = "send the requests of a file through a running proxy, to fill its cache"
DESCRIPTION = """Send the requests of a JSONL file through a running proxy, so that its cache has their answers. A line
is one of OpenAI's batch API, or of the proxy's content log. Answers that the cache has already cost nothing. Failed
requests are counted; run the command again to repeat them. Ctrl-C stops it and prints the summary so far."""
WRONG_LINE = "must be a line of OpenAI's batch API or of the content log, with a request to a cached endpoint"
MAX_FAILED = 10
"""If that many requests fail and none succeeds, no more are sent."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    option = parser.add_argument
    option("requests", metavar="FILE", type=Path, help="JSONL file with requests")
    options.add_proxy(parser)
    option("--api-key-env", metavar="NAME", help="environment variable with the API key that is sent")
    option("--concurrency", metavar="N", type=int, default=4, help="maximum requests in flight (default: 4)")
    option("--max-usd", metavar="USD", type=float, default=math.inf, help="stop before more dollars are spent")
    options.add_config(parser, "settings file of the proxy, for its prices")
    options.add_json(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    if not args.max_usd >= 0:
        raise InvalidInput(f"--max-usd must be a number of dollars, at least 0, not {args.max_usd}")
    requests = read_requests(args.requests)
    warmer = Warmer(args)
    try:
        asyncio.run(warmer.run(requests))
    finally:
        sent = warmer.counts.total()
        if args.json:
            print(json.dumps(warmer.result(len(requests)), indent=2))
        elif sent:
            parts = [f"{number:,} {outcome}" for outcome, number in sorted(warmer.counts.items())]
            parts += [f"${warmer.spent:,.4f} spent"] if warmer.spent else []
            print_text(f"{sent:,} of {counted(len(requests), 'request')} sent: {', '.join(parts)}.")
    if sent and warmer.counts["failed"] == sent:
        raise InvalidInput(f"every request failed: {warmer.last_error}")
    if args.json:
        return
    if warmer.last_error:
        print_text(f"Last failure: {warmer.last_error}")
    if warmer.stopped:
        print_text("Stopped by --max-usd: the next request might have passed it.")


def read_requests(path: Path) -> list[tuple[Endpoint, dict[str, Any]]]:
    """Return the endpoints and bodies of the distinct requests, without `stream`: one entry serves both forms."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read requests from {path}: {reason_text(error)}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            name, body = ("endpoint", "request") if "request" in fields else ("url", "body")
            if body == "request" and (not fields[body] or fields.get("cut")):
                continue  # a line of the content log without a whole request
            endpoint = Endpoint(fields[name].removeprefix("/v1/"))
            request = {key: value for key, value in fields[body].items() if key not in ("stream", "stream_options")}
            if not isinstance(request["model"], str):
                raise TypeError
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            raise InvalidInput(f"{path}, line {number}: {WRONG_LINE}") from None
        found[f"{endpoint} {json.dumps(request, sort_keys=True)}"] = endpoint, request
    if not found:
        raise InvalidInput(f"{path} has no requests")
    return list(found.values())


class Warmer:
    """Sends requests, and counts what they cost."""

    def __init__(self, args: argparse.Namespace) -> None:
        try:
            from knapcache.demo.traffic import CONNECT_TIMEOUT, REQUEST_TIMEOUT, TrafficOptions
            from knapcache.price.estimate import CostEstimator
            from knapcache.price.meter import Meter
            from knapcache.proxy.settings.loading import load
            from knapcache.proxy.upstream import Client
            from knapcache.proxy.upstream.connect import TlsFiles
        except ImportError:
            raise MissingExtra(f"warm needs the proxy's HTTP client: {install_command('serve')}") from None
        keys = () if args.api_key_env is None else (os.environ.get(args.api_key_env, ""),)
        self._options = TrafficOptions(url=args.url.rstrip("/"), ca=args.ca, concurrency=args.concurrency, keys=keys)
        self._max_usd: float = args.max_usd
        self._meter = Meter("usd", None if args.config is None else load(args.config, secrets=False).settings.prices)
        self._estimator = CostEstimator(self._meter)
        self._client = Client("the proxy", CONNECT_TIMEOUT, REQUEST_TIMEOUT, tls=TlsFiles(args.ca))
        self.counts: Counter[str] = Counter()  # by outcome: hit, miss, …, or failed
        self.spent, self.reserved, self.stopped, self.last_error = 0.0, 0.0, False, ""

    async def run(self, requests: list[tuple[Endpoint, dict[str, Any]]]) -> None:
        """Send requests until all are sent, or --max-usd would be passed. InvalidInput if the first ones all fail."""
        estimates, in_flight = [self._estimate(*request) for request in requests], set[asyncio.Task[None]]()
        with contextlib.closing(self._client), progress_bar() as bar:
            task = bar.add_task("requests", total=len(requests))
            for request, usd in zip(requests, estimates, strict=True):
                while in_flight and (len(in_flight) >= self._options.concurrency or not self._affordable(usd)):
                    done, in_flight = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.gather(*done)  # raises what they have raised
                    bar.update(task, completed=self.counts.total(), description=f"${self.spent:,.4f}")
                    if self.counts["failed"] == self.counts.total() >= MAX_FAILED:
                        raise InvalidInput(f"the first {MAX_FAILED} requests failed: {self.last_error}")
                if not self._affordable(usd):
                    self.stopped = True
                    break
                self.reserved += usd
                in_flight.add(asyncio.create_task(self._send(*request, usd)))
            await asyncio.gather(*in_flight)

    def _affordable(self, usd: float) -> bool:
        return self.spent + self.reserved + usd <= self._max_usd + 1e-12  # sums of floats may be wrong by less

    def _estimate(self, endpoint: Endpoint, body: dict[str, Any]) -> float:
        from knapcache.price.estimate import max_output

        model = body["model"]
        if self._max_usd < math.inf and self._meter.input_price(endpoint, model) is None:
            raise InvalidInput(f"--max-usd cannot hold, because the model {model!r} has no known price (see --config)")
        return self._estimator.estimate("", endpoint, model, len(json.dumps(body)), max_output(body)).usd

    async def _send(self, endpoint: Endpoint, body: dict[str, Any], estimate: float) -> None:
        """Send a request, and count its outcome and its cost."""
        from knapcache.demo.traffic import CACHED_OUTCOMES, error_text
        from knapcache.proxy.upstream import encode_headers

        headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        for key in self._options.keys:
            headers |= {"x-api-key": key} if endpoint is Endpoint.MESSAGES else {"authorization": f"Bearer {key}"}
        url, encoded, data = self._options.url, encode_headers(headers.items()), json.dumps(body).encode()
        outcome, usd = "failed", estimate
        try:
            response = await self._client.request("POST", url, f"/{endpoint}", encoded, data)
            content = await response.read()
            if response.status != 200:
                usd, self.last_error = 0.0, error_text(response.status, content)
            elif (outcome := response.headers.get("x-knapcache", "failed")) == "failed":
                self.last_error = f"{url} is not a knapcache proxy: its response has no x-knapcache header"
            else:
                usd = 0.0 if outcome in CACHED_OUTCOMES else self.cost_of(endpoint, body["model"], content) or estimate
        except UpstreamFailed as error:
            self.last_error = f"{url}: {error.reason or error}; is the proxy running?"
        finally:
            self.reserved -= estimate
        self.counts[outcome] += 1
        self.spent += usd

    def result(self, requests: int) -> dict[str, Any]:
        """Return what --json prints. requests: how many the file has."""
        return {
            "requests": requests,
            "sent": self.counts.total(),
            "outcomes": dict(sorted(self.counts.items())),
            "usd_spent": self.spent,
            "stopped_by_max_usd": self.stopped,
            "last_error": self.last_error or None,
        }

    def cost_of(self, endpoint: Endpoint, model: str, content: bytes) -> float | None:
        """Return the dollars of an answer by its usage; None or 0 if it has no usable one."""
        try:
            return self._meter.bill(endpoint, model, dict(json.loads(content)["usage"]), 0.0).usd
        except (ValueError, TypeError, LookupError, RecursionError):
            return None
