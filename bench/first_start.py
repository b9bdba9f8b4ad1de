"""Measure the first start: from a clone to the first answer, the first hit and compiled kernels.

    python bench/first_start.py [--out DIR]

Clones this checkout's last commit into an empty directory and runs `make run` there, with an empty kernel directory, an
empty data directory and without pip's cache. As soon as the port accepts connections, a chat request goes to the
embedded model; its answer ends "first answer". The same request again is the first hit. The log says when compiled
kernels decide. Then the proxy is stopped and started again, with everything in place: "later start".

Before that, in this process: the CPU time of decisions by uncompiled kernels of `adaptive`, per hit and per miss, and
of the two longest steps. One halves the sample of the tournament, which first happens after 2,048 different answers.
The other ranks all entries again when the leader of the tournament changes.

The time of the installation depends on the network and on where pip gets its packages from. On a machine with a local
mirror it is mostly the time to unpack them. Other work on the machine slows everything down: the result has the load
average.

Prints a table; writes first_start.json to DIR.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from _results import options_for, write_result

from knapcache.policy.adaptive.policy import Adaptive
from knapcache.policy.adaptive.tournament import SLOTS

ROOT = Path(__file__).resolve().parents[1]
REQUEST = {
    "model": "smollm2-135m",
    "max_tokens": 32,
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
}
TIMEOUT = 900.0
"""Seconds for the installation, and for the kernels."""


class Started:
    """`make run` in a clone, with the time at which each line of its output appeared."""

    def __init__(self, clone: Path, environment: dict[str, str], port: int) -> None:
        self.port = port
        self.begin = time.monotonic()
        command = ["make", "run", f"ARGS=--port {port} --path {clone.parent / 'data'} --upstream local"]
        self._process = subprocess.Popen(
            command, cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._lines: list[tuple[float, str]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append((time.monotonic(), line))
                self._changed.notify_all()
            print(f"    {line}", end="", file=sys.stderr)

    def time_of(self, text: str, timeout: float) -> float:
        """Wait for a line that contains `text`. Return seconds since the start."""

        def found() -> float | None:
            return next((when for when, line in self._lines if text in line), None)

        with self._changed:
            when = self._changed.wait_for(found, timeout)
        if when is None:
            raise SystemExit(f"{text!r} did not appear within {timeout:g} seconds")
        return when - self.begin

    def time_of_port(self, timeout: float) -> float:
        """Wait until the port accepts connections. Return seconds since the start."""
        while time.monotonic() - self.begin < timeout:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return time.monotonic() - self.begin
        raise SystemExit(f"the port did not accept connections within {timeout:g} seconds")

    def stop(self) -> int:
        """Press Ctrl-C. Return the exit code of make."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self._process.wait(60)


def ask(port: int) -> tuple[str, float]:
    """Send the request. Return the outcome, and when the answer was complete."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(REQUEST).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as response:
        json.loads(response.read())
        return response.headers["x-knapcache"], time.monotonic()


def measure_plain() -> dict[str, float]:
    """Return CPU times of uncompiled decisions."""
    policy = Adaptive(10**9, 3 * SLOTS)
    policy.compiled = False

    def seconds(i: int, settle: bool) -> float:
        begin = time.process_time()
        policy.arrive(i)
        if settle:
            policy.settle(i, 2000 + i % 50, 1.0 + i % 7)
        return time.process_time() - begin

    misses = [seconds(i, settle=True) for i in range(SLOTS + 1)]
    hits = [seconds(i, settle=False) for i in range(500)]
    policy.head["next_check"], policy.head["loss"][0, :, 6] = 0, -1.0  # makes expert 6 the leader
    ranking = seconds(1, settle=False)
    return {
        "plain_hit_us": 1e6 * statistics.median(hits),
        "plain_miss_us": 1e6 * statistics.median(misses),
        "plain_halving_ms": 1e3 * misses[-1],
        "plain_ranking_us_per_entry": 1e6 * ranking / int(policy.head["heap_size"][0]),
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def disk_megabytes(folder: Path) -> float:
    """Return the space that a folder takes on disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) / 1e6


def measure(folder: Path) -> dict[str, Any]:
    clone = folder / "knapcache"
    begin = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    cloned = time.monotonic() - begin
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment.pop("KNAPCACHE_COMPILE", None)
    environment |= {"KNAPCACHE_KERNEL_CACHE": str(folder / "kernels"), "PIP_NO_CACHE_DIR": "1"}
    first = Started(clone, environment, free_port())
    installed = first.time_of("knapcache: installed in", TIMEOUT)
    accepting = first.time_of_port(TIMEOUT)
    outcome, answered = ask(first.port)
    before_hit = time.monotonic()
    again, hit = ask(first.port)
    if (outcome, again) != ("miss", "hit"):
        raise SystemExit(f"the two answers must be a miss and a hit, not {outcome} and {again}")
    compiled = first.time_of("deciding with compiled kernels", TIMEOUT)
    code = first.stop()
    listed = subprocess.run(
        [clone / ".venv/bin/python", "-m", "pip", "list", "--format=json"], check=True, capture_output=True
    )
    later = Started(clone, environment, free_port())
    later_accepting = later.time_of_port(TIMEOUT)
    _, later_answered = ask(later.port)
    later.stop()
    return {
        "clone_s": cloned,
        "install_s": installed,
        "packages": len(json.loads(listed.stdout)),
        "disk_mb": disk_megabytes(clone / ".venv"),
        "accepting_after_install_s": accepting - installed,
        "first_answer_after_install_s": answered - first.begin - installed,
        "first_hit_ms": 1000 * (hit - before_hit),
        "compiled_after_install_s": compiled - installed,
        "later_start_accepting_s": later_accepting,
        "later_start_first_answer_s": later_answered - later.begin,
        "exit_code_after_ctrl_c": code,
    }


def main() -> None:
    out = options_for(__doc__, "first_start.json").parse_args().out
    plain = measure_plain()
    with tempfile.TemporaryDirectory() as folder:
        found = plain | measure(Path(folder))
    load = round(os.getloadavg()[0], 1)
    machine = {
        "cpus": os.cpu_count(),
        "load_average": load,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    rows = [
        ("clone", f"{found['clone_s']:.1f} s"),
        ("install", f"{found['install_s']:.0f} s ({found['packages']} packages, {found['disk_mb']:.0f} MB)"),
        ("port accepts connections", f"{found['accepting_after_install_s']:.1f} s after the installation"),
        ("first answer", f"{found['first_answer_after_install_s']:.1f} s after the installation"),
        ("first hit", f"{found['first_hit_ms']:.1f} ms"),
        ("compiled kernels decide", f"{found['compiled_after_install_s']:.0f} s after the installation"),
        ("uncompiled hit and miss", f"{found['plain_hit_us']:.0f} µs, {found['plain_miss_us']:.0f} µs of CPU"),
        ("uncompiled halving", f"{found['plain_halving_ms']:.0f} ms"),
        ("uncompiled ranking", f"{found['plain_ranking_us_per_entry']:.0f} µs an entry"),
        ("later start: port", f"{found['later_start_accepting_s']:.1f} s"),
        ("later start: first answer", f"{found['later_start_first_answer_s']:.1f} s"),
    ]
    for name, value in rows:
        print(f"{name:28}{value}")
    print(f"load average {load}, {os.cpu_count()} cores")
    write_result(out, "first_start", {**found, "machine": machine})


if __name__ == "__main__":
    main()
