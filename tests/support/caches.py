"""What the tests of the cache share: requests with answers that can be told right from wrong, and other processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from knapcache import Cache, Reply

CHAT = "chat/completions"


def request_of(name: object) -> dict[str, Any]:
    """A request by its number."""
    return {"model": "m", "messages": [{"role": "user", "content": f"question {name}"}]}


def payload_of(name: object, n: int = 1000, version: int = 0) -> bytes:
    """The right answer: bytes that follow from the question."""
    start = b"%d %d " % (n, version)
    return start + hashlib.shake_128(f"{name} {version}".encode()).digest(n)


def right(payload: bytes, name: object) -> bool:
    """Is this one of the answers to the question?"""
    n, version, _ = payload.split(b" ", 2)
    return payload == payload_of(name, int(n), int(version))


class Upstream:
    """A model that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, name: object, n: int = 1000, version: int = 0, **more: Any) -> Callable[[], Reply]:
        def call() -> Reply:
            self.calls += 1
            return Reply(payload_of(name, n, version), **{"model": "m", "cost": 1.0, **more})

        return call


def small(**options: Any) -> Cache:
    """A cache that needs no prices, and compiles only the policies of the test."""
    return Cache(**{"capacity": "1MiB", "cost": "seconds", "policy": "lru", "shadows": (), **options})


def spawn(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another Python process, with these helpers at hand."""
    here = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{here / 'src'}{os.pathsep}{here}"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def told(child: subprocess.Popen[str], word: str = "") -> str:
    """Tell a child something, and hear what it says."""
    assert child.stdin
    assert child.stdout
    assert child.stderr
    if word:
        child.stdin.write(word + "\n")
        child.stdin.flush()
    line = child.stdout.readline()
    assert line, child.stderr.read()
    return line.strip()


def ended(child: subprocess.Popen[str]) -> None:
    """Take leave of a child that was killed, or told to end."""
    for pipe in (child.stdin, child.stdout, child.stderr):
        assert pipe
        pipe.close()
    child.wait(30)
