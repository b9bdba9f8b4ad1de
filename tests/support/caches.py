"""Helpers for tests of the cache: requests whose answers can be verified, small caches, and other processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from knapcache import Cache, Reply
from knapcache.cache.admission import AdmissionController
from knapcache.cache.cache import internal_of
from knapcache.cache.internal import InternalCache
from knapcache.cache.roles import Owner
from knapcache.keys import KeyedRequest
from knapcache.store.base import Store
from tests.support import stores

CHAT = "chat/completions"


def request_of(name: object) -> dict[str, Any]:
    """Return a request by its name."""
    return {"model": "m", "messages": [{"role": "user", "content": f"question {name}"}]}


def payload_of(name: object, n: int = 1000, version: int = 0) -> bytes:
    """Return an answer to a request: bytes that follow from its name."""
    start = b"%d %d " % (n, version)
    return start + hashlib.shake_128(f"{name} {version}".encode()).digest(n)


def is_answer(payload: bytes, name: object) -> bool:
    """Return whether a payload is an answer to the request, of any version."""
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


def small_cache(**options: Any) -> Cache:
    """Return a cache that needs no prices, and compiles only the policies of the test."""
    capacity = {} if "store" in options else {"capacity": "1MiB"}
    return Cache(**{**capacity, "cost": "seconds", "policy": "lru", "shadows": (), **options})


def store_of(cache: Cache | InternalCache) -> Store:
    """Return the store of a cache."""
    return (internal_of(cache) if isinstance(cache, Cache) else cache).coordinator.store


def keyed(cache: Cache, request: dict[str, Any], **where: Any) -> KeyedRequest:
    """Return a chat request with its key."""
    found = internal_of(cache).keyed_request(CHAT, request, **where)
    assert found is not None
    return found


def admission_of(cache: Cache) -> AdmissionController:
    """Return the admission controller of a cache that owns its store."""
    role = internal_of(cache).coordinator.role
    assert isinstance(role, Owner)
    return role.admission


def residents(owner: Cache | AdmissionController) -> set[bytes]:
    """Return the keys that the policy holds."""
    return set((admission_of(owner) if isinstance(owner, Cache) else owner).entries().keys)


def spawn(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start another Python process that can import these helpers. It decides with plain kernels, to start sooner."""
    return stores.spawn(code, *arguments, KNAPCACHE_COMPILE="0")


def run_python(*words: object, paths: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python with these words and return how it ended. It can import these helpers, and modules in `paths`."""
    here = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(map(str, (here / "src", here, *paths)))
    environment = {**os.environ, "PYTHONPATH": path, "KNAPCACHE_COMPILE": "0"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=here)


def read_line(child: subprocess.Popen[str]) -> str:
    """Return the next line that a child prints."""
    assert child.stdout
    assert child.stderr
    line = child.stdout.readline()
    assert line, child.stderr.read()
    return line.strip()


def send(child: subprocess.Popen[str], command: str) -> str:
    """Send a command to a child, and return the line that it prints."""
    assert child.stdin
    child.stdin.write(command + "\n")
    child.stdin.flush()
    return read_line(child)


def wait_ended(child: subprocess.Popen[str]) -> None:
    """Wait for the end of a child that was killed or told to exit."""
    for pipe in (child.stdin, child.stdout, child.stderr):
        assert pipe
        pipe.close()
    child.wait(30)
