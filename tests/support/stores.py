"""What the tests of stores share."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from knapcache.store.base import Entry, Store


def key_of(name: object) -> bytes:
    return hashlib.sha256(repr(name).encode()).digest()


def content(name: object, n: int) -> bytes:
    """As many bytes that follow from the name, so that a reader can tell the right answer from a wrong one."""
    return hashlib.shake_128(repr(name).encode()).digest(n)


def entry_of(store: Store, name: object, n: int = 2000, version: int = 0, **changes: Any) -> Entry:
    request = b"request " + repr(name).encode()
    entry = Entry(
        key_of(name), "tenant", "model", 0, 0.5, 1.0, 1_700_000_000.0 + version, None, {"n": n, "version": version},
        request, content((name, version), n),
    )._replace(**changes)  # fmt: skip
    return entry._replace(size=store.entry_size(entry))


def right(entry: Entry, name: object) -> bool:
    """Is this one of the answers that were put under this name?"""
    return entry.key == key_of(name) and entry.payload == content((name, entry.meta["version"]), entry.meta["n"])


def files_bytes(path: Path) -> int:
    """All that lies on disk beside `path`, by another way than the store's own."""
    total = 0
    for root, _, names in os.walk(path.parent):
        for name in names:
            if name.startswith(path.name) or path.name in root:
                try:
                    total += os.stat(os.path.join(root, name)).st_size
                except FileNotFoundError:  # renamed or removed meanwhile
                    continue
    return total


def spawn(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Another Python process, with these helpers at hand."""
    here = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{here / 'src'}{os.pathsep}{here}"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options,
    )  # fmt: skip
