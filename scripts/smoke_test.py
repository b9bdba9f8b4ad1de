"""Runs the installed proxy as a user would, with a fake provider: one miss, one hit, the dashboard, metrics, SIGTERM.

    PYTHON scripts/smoke_test.py

PYTHON is that of the environment to test, with knapcache[serve]. Needs no network and no provider key. Prints what it
did; a failed check ends it with exit code 1.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple, NoReturn

from knapcache.testing import FakeUpstream

START_SECONDS = 180.0
"""Time for the first start of a fresh installation, on a loaded machine."""
STOP_SECONDS = 60.0


class HttpResponse(NamedTuple):
    """Status, headers by lower-case name, and body."""

    status: int
    headers: dict[str, str]
    body: bytes


def fail(text: str) -> NoReturn:
    """End the program with a message."""
    raise SystemExit(f"smoke test failed: {text}")


def ask(url: str, body: object = None, **headers: str) -> HttpResponse:
    """Send a request, without a proxy from the environment. Error statuses are returned too."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **headers})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as response:
            return HttpResponse(response.status, {k.lower(): v for k, v in response.headers.items()}, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return HttpResponse(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())


def expect(condition: object, text: str) -> None:
    """Print what was checked, or fail."""
    if not condition:
        fail(text)
    print(f"  {text}")


def wait_for_url(process: subprocess.Popen[str]) -> str:
    """Return the address that the proxy prints when it accepts requests."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + START_SECONDS
    seen: list[str] = []
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            fail(f"the proxy did not start in {START_SECONDS:.0f} s; it printed: {''.join(seen)}")
        if line is None:
            fail(f"the proxy ended with exit code {process.wait()}; it printed: {''.join(seen)}")
        seen.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]


def check(url: str, upstream: FakeUpstream) -> None:
    """Send requests to the running proxy."""
    question = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "What is a knapsack?"}]}
    first, second = (ask(f"{url}/v1/chat/completions", question, authorization="Bearer any-key") for _ in range(2))
    expect((first.status, first.headers.get("x-knapcache")) == (200, "miss"), "the first request is a miss")
    expect((second.status, second.headers.get("x-knapcache")) == (200, "hit"), "the same request again is a hit")
    expect(first.body == second.body, "both get the same answer")
    expect(upstream.count("/chat/completions") == 1, "the provider was called once")
    expect(ask(f"{url}/healthz").status == ask(f"{url}/readyz").status == 200, "/healthz and /readyz are 200")
    metrics = ask(f"{url}/metrics").body.decode()
    expect('outcome="hit"' in metrics, "/metrics counts the hit")
    page = ask(f"{url}/dashboard")
    parts = set(re.findall(r'(?:src|href)="(/dashboard/[\w.-]+)"', page.body.decode()))
    statuses = {ask(url + part).status for part in parts}
    expect(
        page.status == 200 and parts and statuses == {200},
        f"/dashboard and the {len(parts)} files that it names are served",
    )


def main() -> None:
    """Start the proxy, check it, stop it."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("KNAPCACHE_")}
    if kernels := os.environ.get("KNAPCACHE_KERNEL_CACHE"):
        variables["KNAPCACHE_KERNEL_CACHE"] = kernels
    with tempfile.TemporaryDirectory(prefix="knapcache-smoke-") as folder, FakeUpstream() as upstream:
        command = [sys.executable, "-m", "knapcache", "serve", "--port", "0", "--path", str(Path(folder, "data"))]
        command += ["--upstream", upstream.openai_url]
        print("$ " + " ".join(command))
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables, cwd=folder)
        try:
            url = wait_for_url(process)
            print(f"  running at {url} after {time.monotonic() - started:.1f} s")
            check(url, upstream)
            process.send_signal(signal.SIGTERM)
            code = process.wait(STOP_SECONDS)
            expect(code in (0, -signal.SIGTERM), "SIGTERM ends it")  # uvicorn ends by the signal itself
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
