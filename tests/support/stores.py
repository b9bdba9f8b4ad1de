"""Helpers for tests of stores: entries whose content follows from a name, disk usage, other processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import apsw

from knapcache.store.base import Entry, Store


def key_of(name: object) -> bytes:
    return hashlib.sha256(repr(name).encode()).digest()


def content(name: object, n: int) -> bytes:
    """Return `n` bytes that follow from the name, so that a test can tell a right payload from a wrong one."""
    return hashlib.shake_128(repr(name).encode()).digest(n)


def entry_of(store: Store, name: object, n: int = 2000, version: int = 0, **changes: Any) -> Entry:
    entry = Entry(
        key=key_of(name),
        tenant="tenant",
        model="model",
        size=0,
        cost=0.5,
        seconds=1.0,
        created=1_700_000_000.0 + version,
        expires=None,
        meta={"n": n, "version": version},
        request=b"request " + repr(name).encode(),
        payload=content((name, version), n),
    )._replace(**changes)
    return entry._replace(size=store.entry_size(entry))


def is_right(entry: Entry, name: object) -> bool:
    """Whether this is an entry that `entry_of` made for the name, of any version."""
    return entry.key == key_of(name) and entry.payload == content((name, entry.meta["version"]), entry.meta["n"])


def stored_versions(store: Store) -> dict[int, int]:
    """Return version by name, after reading and verifying every entry."""
    versions = {}
    for info in store.scan():
        entry = store.get(info.key)
        assert entry is not None
        name = int(entry.request.split()[1])
        assert is_right(entry, name), "a wrong answer"
        versions[name] = entry.meta["version"]
    return versions


def run_sql(path: Path, statement: str, values: Sequence[Any] = ()) -> list[Any]:
    """Run a statement on a database file, as another program would. Return the rows."""
    with closing(apsw.Connection(str(path))) as connection:
        return connection.execute(statement, values).fetchall()


def files_bytes(path: Path) -> int:
    """Return the bytes of all files that belong to `path`, computed independently of the store."""
    total = 0
    for root, _, names in os.walk(path.parent):
        for name in names:
            if name.startswith(path.name) or path.name in root:
                try:
                    total += os.stat(os.path.join(root, name)).st_size
                except FileNotFoundError:  # renamed or removed meanwhile
                    continue
    return total


class DiskUsageMonitor(threading.Thread):
    """Measures the bytes on disk every few milliseconds while its block runs. `measure` is called each time."""

    def __init__(self, path: Path, measure: Callable[[], object] = lambda: None) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.max_bytes = 0
        self.samples = 0
        self.seconds = 0.0
        self._measure = measure
        self._stop_requested = False

    def run(self) -> None:
        start = time.monotonic()
        while not self._stop_requested:
            self.max_bytes = max(self.max_bytes, files_bytes(self.path))
            self._measure()
            self.samples += 1
            time.sleep(0.002)
        self.seconds = time.monotonic() - start

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_requested = True
        self.join()


def spawn(code: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Start a Python process that can import knapcache and tests. variables: of its environment."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", **variables}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
