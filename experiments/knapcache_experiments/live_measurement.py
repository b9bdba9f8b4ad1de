"""The live comparison, made: requests through a real proxy to a real model, one policy after the other.

For every repeat one sequence of requests is drawn, and every policy serves it from the beginning:

    a process `knapcache serve`, in memory, with nothing kept ──▶ the embedded model, in a process of its own
      ▲ one client, one request at a time; the next one is sent when the answer is there

Two proxies at once would share the cores and take each other's time, so they follow one another, and the order turns
round with every repeat: a machine that grows slower in the meantime favours nobody. The model is warmed up by a
question that is not kept, and the ledger is read before and after: start and warm-up are in no number.

What is asked: prompt k has `max_tokens` by turns short, middling and long, and in every third three of them the log
probabilities, too, as evaluations want them. So the cost of an answer hangs on one thing and its size on another.
Answers are sampled anew at every miss. `cache_prompt` is off: llama.cpp would read a prompt for less where the one
before began alike, and what a miss costs must not hang on what was asked before it.
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

from knapcache.errors import InvalidInput, MissingExtra
from knapcache.sim.synthetic import popularity

MODEL = "smollm2-135m"
PRICES = {MODEL: {"input": 2.0, "output": 4.0}}
"""Dollars a million tokens, the stand-in that docs/get-started/embedded-model.md explains. Nobody bills them."""
COST = "0*usd + seconds"
"""The policies save seconds of the model; dollars are counted beside them and do not weigh."""
SHADOWS = ("adaptive", "lru", "gdsf-cost")
TEMPERATURE = 0.8
TOP_LOGPROBS = 2
PATIENCE = 600.0
"""Seconds for an answer, and for the books to be written up."""
COLUMNS = ("prompt", "hit", "wall_seconds", "seconds", "usd", "size")
"""Of a request: which prompt, whether it was kept, the client's clock, what the model took for the answer, dollars and
bytes of the answer. Of a hit, seconds and dollars are those that were not spent."""
LEDGER = ("requests", "hits", "misses", "usd_spent", "usd_saved", "seconds_spent", "seconds_saved")


@dataclass(frozen=True, kw_only=True)
class LiveRunPlan:
    """What is asked of whom."""

    policies: tuple[str, ...]
    queries: int
    requests: int
    arrivals: str
    tokens: tuple[int, ...]
    capacity: int
    repeats: int
    seed: int
    upstream: str


def body(plan: LiveRunPlan, prompt: int, question: str) -> bytes:
    """The request for a prompt."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": plan.tokens[prompt % len(plan.tokens)],
        "temperature": TEMPERATURE,
        "cache_prompt": False,
    }
    if prompt // len(plan.tokens) % 3 == 0:
        asked |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    return json.dumps(asked).encode()


def sequence(plan: LiveRunPlan, repeat: int) -> list[int]:
    """Prompts in the order in which they are asked; who of them is popular is drawn as well."""
    rng = np.random.default_rng([plan.seed, repeat])
    chances = rng.permutation(popularity(plan.arrivals, plan.queries))
    return [int(prompt) for prompt in rng.choice(plan.queries, plan.requests, p=chances)]


def measure(plan: LiveRunPlan) -> dict[str, Any]:
    """Run it all; the record of it."""
    from knapcache.demo.prompts import demo_prompts

    bodies = [body(plan, k, question) for k, question in enumerate(demo_prompts()[: plan.queries])]
    runs = []
    for repeat in range(plan.repeats):
        asked = sequence(plan, repeat)
        turn = plan.policies if repeat % 2 == 0 else plan.policies[::-1]
        for policy in turn:
            runs.append(run(plan, policy, [bodies[prompt] for prompt in asked], asked) | {"repeat": repeat})
            books = runs[-1]["ledger"]
            said = f"{books['hits']} hits, {books['seconds_spent']:.1f} s of the model, ${books['usd_spent']:.5f}"
            print(f"live: repeat {repeat}, {policy}: {said}", file=sys.stderr, flush=True)
    return {"environment": about(), "runs": sorted(runs, key=lambda r: (r["repeat"], plan.policies.index(r["policy"])))}


def about() -> dict[str, Any]:
    """Where and when."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "knapcache": version("knapcache"),
        "python": platform.python_version(),
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "model": "SmolLM2-135M-Instruct, 4 bits, one thread",
        "cost": COST,
        "prices": PRICES,
        "temperature": TEMPERATURE,
        "top_logprobs": TOP_LOGPROBS,
    }


def processor() -> str:
    """Its name, where the system tells."""
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
        if found:
            return found[1]
    return platform.machine()


def run(plan: LiveRunPlan, policy: str, bodies: Sequence[bytes], asked: Sequence[int]) -> dict[str, Any]:
    """One policy, one sequence."""
    with proxy(plan, policy) as server:
        server.ask(body(plan, len(plan.tokens), "Are you awake?"), keep=False)
        before = server.settled(1)
        began = time.perf_counter()
        walls = [server.ask(each) for each in bodies]
        wall = time.perf_counter() - began
        after = server.settled(1 + len(bodies))
        events = server.get(f"/admin/v1/requests?after=1&limit={len(bodies)}")["rows"]
        events.sort(key=lambda event: event["time"])  # they are listed as they end, and a miss ends when it was kept
    told = [outcome == "hit" for outcome, _ in walls]
    if [event["outcome"] == "hit" for event in events] != told:
        raise InvalidInput("the proxy's list of requests is not what the client saw: did somebody else ask, too?")
    rows = [
        [prompt, int(hit), round(seconds, 6), round(event["upstream_seconds"], 6), event["usd"], event["size"]]
        for prompt, hit, (_, seconds), event in zip(asked, told, walls, events, strict=True)
    ]
    books = {name: after["all"][name] - before["all"][name] for name in LEDGER}
    then = before["all"]["would"]  # a shadow that is not in there yet has saved nothing
    would = {name: cost - then.get(name, then["none"]) for name, cost in after["all"]["would"].items()}
    kept = {name: after["storage"][name] for name in ("capacity", "bytes", "entries")}
    return {
        "policy": policy,
        "wall_seconds": wall,
        "ledger": books,
        "shadow_cost": would,
        "store": kept,
        "requests": rows,
    }


class ProxyClient:
    """A proxy that runs, as its client and its operator see it."""

    def __init__(self, url: str, token: str) -> None:
        self._token = token
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _send(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> tuple[str, bytes]:
        """How the answer came about, and the answer."""
        try:
            self._connection.request(method, path, content, headers)
            response = self._connection.getresponse()
            said = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise InvalidInput(f"the proxy does not answer: {error or type(error).__name__}") from None
        if response.status != 200:
            raise InvalidInput(
                f"the proxy answers with status {response.status}: {said[:300].decode(errors='replace')}"
            )
        return response.headers.get("x-knapcache", ""), said

    def ask(self, content: bytes, *, keep: bool = True) -> tuple[str, float]:
        """One request: hit or miss, and the seconds until the whole answer was there."""
        headers = {"content-type": "application/json"} | ({} if keep else {"cache-control": "no-store"})
        began = time.perf_counter()
        outcome, _ = self._send("POST", "/v1/chat/completions", content, headers)
        return outcome, time.perf_counter() - began

    def get(self, path: str) -> Any:
        """From the admin API."""
        return json.loads(self._send("GET", path, None, {"authorization": f"Bearer {self._token}"})[1])

    def settled(self, requests: int) -> dict[str, Any]:
        """The summary, as soon as it has so many requests: books are written a moment after the answer is given."""
        until = time.monotonic() + PATIENCE
        while True:
            found: dict[str, Any] = self.get("/admin/v1/summary")
            if found["all"]["requests"] >= requests:
                return found
            if time.monotonic() > until:
                raise InvalidInput(f"the proxy's books have {found['all']['requests']} requests of {requests}")
            time.sleep(0.05)


@contextmanager
def proxy(plan: LiveRunPlan, policy: str) -> Iterator[ProxyClient]:
    """A process `knapcache serve` with nothing kept, which ends with the block."""
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
    # In the environment and not as flags, which everybody on the machine can read; and none of the user's own.
    ours = {name: value for name, value in os.environ.items() if not is_setting(name)}
    ours |= {f"KNAPCACHE_{name.upper()}": value for name, value in settings.items()}
    with tempfile.TemporaryFile() as complaints:
        command = [sys.executable, "-P", "-m", "knapcache", "serve"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=ours)
        try:
            assert process.stdout is not None  # it is a pipe
            url = next(
                (found[1] for line in process.stdout if (found := re.search(r"curl (http://[^/\s]+)", line))), ""
            )
            if not url:
                complaints.seek(0)
                lines = complaints.read().decode(errors="replace").strip().splitlines()
                raise InvalidInput(f"the proxy does not start: {lines[-1] if lines else 'it says nothing'}")
            with closing(ProxyClient(url, token)) as server:
                yield server
        finally:
            process.terminate()
            process.communicate()


def is_setting(name: str) -> bool:
    """Whether a variable of the environment would change how the proxy behaves."""
    return name.startswith("KNAPCACHE_") and name != "KNAPCACHE_KERNEL_CACHE"


def need_the_proxy() -> None:
    """What a run needs, or a word on how to get it."""
    try:
        import knapcache.serve.run  # noqa: F401 - the import is the question
    except ImportError:
        raise MissingExtra("a live run needs the proxy and its model: pip install 'knapcache[serve,local]'") from None
