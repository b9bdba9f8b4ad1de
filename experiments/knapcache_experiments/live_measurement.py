"""Measurement of the `live` experiment: requests through a real proxy to a real model, one policy after the other.

For every repeat one sequence of requests is drawn, and every policy serves it from an empty cache:

    one client, one request at a time ──▶ `knapcache serve` in memory ──▶ the embedded model, in its own process

Policies run one after the other, because two proxies at once would compete for the cores. The order alternates between
repeats, so a machine that slows down favours no policy. One warm-up request that is not stored precedes each run. The
ledger is read before and after the run, so start and warm-up are in no number.

Requests: `max_tokens` of prompt k cycles through the configured values, and every third cycle also asks for log
probabilities, as evaluations do. So the cost of an answer and its size vary independently. Answers are sampled anew at
every miss. `cache_prompt` is off: llama.cpp would otherwise reuse the prefix of the previous prompt, and the cost of a
miss would depend on the request before it.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.lab.synthetic import popularity

MODEL = "smollm2-135m"
PRICES = {MODEL: {"input": 2.0, "output": 4.0}}
"""Nominal dollars per million tokens; see docs/get-started/embedded-model.md."""
COST = "0*usd + seconds"
"""The policies minimise model seconds. Dollars are recorded but have weight 0."""
SHADOWS = ("adaptive", "lru", "gdsf-cost")
TEMPERATURE = 0.8
TOP_LOGPROBS = 2
TIMEOUT = 600.0
"""Seconds for an answer, and for the ledger to include it."""
COLUMNS = ("prompt", "hit", "wall_seconds", "seconds", "usd", "size")
"""Columns of a recorded request: prompt number, hit (0 or 1), seconds seen by the client, model seconds, dollars, bytes
of the answer. For a hit, seconds and dollars are those saved."""
LEDGER = ("requests", "hits", "misses", "usd_spent", "usd_saved", "seconds_spent", "seconds_saved")


@dataclass(frozen=True, kw_only=True)
class LiveRunPlan:
    """Requests, policies and upstream of a live run."""

    policies: tuple[str, ...]
    queries: int
    requests: int
    arrivals: str
    tokens: tuple[int, ...]
    capacity: int
    repeats: int
    seed: int
    upstream: str


def request_body(plan: LiveRunPlan, prompt: int, text: str) -> bytes:
    """Return the request for prompt number `prompt`."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": plan.tokens[prompt % len(plan.tokens)],
        "temperature": TEMPERATURE,
        "cache_prompt": False,
    }
    if prompt // len(plan.tokens) % 3 == 0:
        body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    return json.dumps(body).encode()


def prompt_sequence(plan: LiveRunPlan, repeat: int) -> list[int]:
    """Draw the popularity of the prompts and return the prompt number of each request."""
    rng = np.random.default_rng([plan.seed, repeat])
    probabilities = rng.permutation(popularity(plan.arrivals, plan.queries))
    return [int(prompt) for prompt in rng.choice(plan.queries, plan.requests, p=probabilities)]


def measure(plan: LiveRunPlan) -> dict[str, Any]:
    """Run every policy in every repeat and return the record."""
    from knapcache.demo.prompts import demo_prompts

    bodies = [request_body(plan, k, text) for k, text in enumerate(demo_prompts()[: plan.queries])]
    runs = []
    for repeat in range(plan.repeats):
        prompts = prompt_sequence(plan, repeat)
        order = plan.policies if repeat % 2 == 0 else plan.policies[::-1]
        for policy in order:
            runs.append(run_policy(plan, policy, [bodies[prompt] for prompt in prompts], prompts) | {"repeat": repeat})
            ledger = runs[-1]["ledger"]
            totals = f"{ledger['hits']} hits, {ledger['seconds_spent']:.1f} s of the model, ${ledger['usd_spent']:.5f}"
            print(f"live: repeat {repeat}, {policy}: {totals}", file=sys.stderr, flush=True)
    return {
        "environment": environment(),
        "runs": sorted(runs, key=lambda r: (r["repeat"], plan.policies.index(r["policy"]))),
    }


def environment() -> dict[str, Any]:
    """Return date, versions, machine and model of the measurement."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "knapcache": version("knapcache"),
        "python": platform.python_version(),
        "machine": f"{processor_name()}, {os.cpu_count()} cores",
        "model": "SmolLM2-135M-Instruct, 4 bits, one thread",
        "cost": COST,
        "prices": PRICES,
        "temperature": TEMPERATURE,
        "top_logprobs": TOP_LOGPROBS,
    }


def processor_name() -> str:
    """Return the CPU model on Linux, else the architecture."""
    with suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
        if match:
            return match[1]
    return platform.machine()


def run_policy(plan: LiveRunPlan, policy: str, bodies: Sequence[bytes], prompts: Sequence[int]) -> dict[str, Any]:
    """Send one sequence of requests through a fresh proxy and return its record."""
    with start_proxy(plan, policy) as client:
        client.send(request_body(plan, len(plan.tokens), "Are you awake?"), store=False)
        before = client.summary_after(1)
        start = time.perf_counter()
        responses = [client.send(each) for each in bodies]
        wall_seconds = time.perf_counter() - start
        after = client.summary_after(1 + len(bodies))
        events = client.get(f"/admin/v1/requests?after=1&limit={len(bodies)}")["rows"]
        events.sort(key=lambda event: event["time"])  # listed by end; a miss ends when its answer is stored
    hits = [outcome == "hit" for outcome, _ in responses]
    if [event["outcome"] == "hit" for event in events] != hits:
        raise InvalidInput("the proxy's request list differs from what the client saw: another client sent requests")
    rows = [
        [prompt, int(hit), round(seconds, 6), round(event["upstream_seconds"], 6), event["usd"], event["size"]]
        for prompt, hit, (_, seconds), event in zip(prompts, hits, responses, events, strict=True)
    ]
    ledger = {name: after["all"][name] - before["all"][name] for name in LEDGER}
    cost_before = before["all"]["would"]  # a shadow that is not listed yet has saved nothing
    shadow_cost = {
        name: cost - cost_before.get(name, cost_before["none"]) for name, cost in after["all"]["would"].items()
    }
    store = {name: after["storage"][name] for name in ("capacity", "bytes", "entries")}
    return {
        "policy": policy,
        "wall_seconds": wall_seconds,
        "ledger": ledger,
        "shadow_cost": shadow_cost,
        "store": store,
        "requests": rows,
    }


class ProxyClient:
    """HTTP client of a running proxy: chat requests and the admin API."""

    def __init__(self, url: str, token: str) -> None:
        self._token = token
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT)

    def close(self) -> None:
        self._connection.close()

    def _request(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> tuple[str, bytes]:
        """Return the cache outcome and the body of the response."""
        try:
            self._connection.request(method, path, content, headers)
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise InvalidInput(f"no response from the proxy: {error or type(error).__name__}") from None
        if response.status != 200:
            raise InvalidInput(f"the proxy returned status {response.status}: {body[:300].decode(errors='replace')}")
        return response.headers.get("x-knapcache", ""), body

    def send(self, content: bytes, *, store: bool = True) -> tuple[str, float]:
        """Send one chat request; return its cache outcome and the seconds until the whole answer arrived."""
        headers = {"content-type": "application/json"} | ({} if store else {"cache-control": "no-store"})
        start = time.perf_counter()
        outcome, _ = self._request("POST", "/v1/chat/completions", content, headers)
        return outcome, time.perf_counter() - start

    def get(self, path: str) -> Any:
        """Return the JSON of an admin API path."""
        return json.loads(self._request("GET", path, None, {"authorization": f"Bearer {self._token}"})[1])

    def summary_after(self, requests: int) -> dict[str, Any]:
        """Poll the summary until it has this many requests: the ledger is updated after the response is sent."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            summary: dict[str, Any] = self.get("/admin/v1/summary")
            if summary["all"]["requests"] >= requests:
                return summary
            if time.monotonic() > deadline:
                raise InvalidInput(f"the proxy's ledger has {summary['all']['requests']} requests, not {requests}")
            time.sleep(0.05)


@contextmanager
def start_proxy(plan: LiveRunPlan, policy: str) -> Iterator[ProxyClient]:
    """Run `knapcache serve` with an empty cache until the end of the block."""
    token = secrets.token_urlsafe(24)
    settings = {
        "admin_token": token,
        "capacity": str(plan.capacity),
        "cost": COST,
        "dashboard": "false",
        "grace": "5",
        "log_level": "warning",
        "memory_only": "true",
        "policy": policy,
        "port": "0",
        "prices": json.dumps(PRICES),
        "shadows": json.dumps(SHADOWS),
        "upstreams": json.dumps([{"url": plan.upstream}]),
    }
    # In the environment, because other users can read flags. Settings of the user's own environment are removed.
    variables = {name: value for name, value in os.environ.items() if not is_setting(name)}
    variables |= {f"KNAPCACHE_{name.upper()}": value for name, value in settings.items()}
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-P", "-m", "knapcache", "serve"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables)
        try:
            assert process.stdout is not None  # it is a pipe
            url = next(
                (found[1] for line in process.stdout if (found := re.search(r"curl (http://[^/\s]+)", line))), ""
            )
            if not url:
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines()
                raise InvalidInput(f"the proxy did not start: {lines[-1] if lines else 'no error output'}")
            with closing(ProxyClient(url, token)) as client:
                yield client
        finally:
            process.terminate()
            process.communicate()


def is_setting(name: str) -> bool:
    """Return whether an environment variable is a setting of the proxy."""
    return name.startswith("KNAPCACHE_") and name != "KNAPCACHE_KERNEL_CACHE"


def require_proxy() -> None:
    """Raise MissingExtra if the proxy is not installed."""
    try:
        import knapcache.proxy.run  # noqa: F401 - only tests the import
    except ImportError:
        raise MissingExtra(f"a live run needs the proxy and its model: {install_command('serve,local')}") from None
