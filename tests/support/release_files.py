"""Writes the files of a release that later versions must read: `python -m tests.support.release_files`.

They go to tests/releases/VERSION, and stay as they are: run it once, before a release whose formats have changed.
`tests/test_releases.py` reads those of every release.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import knapcache
from knapcache import Cache, Reply
from tests.support import ROOT
from tests.support.admin_context import TURN_ON

FOLDER = ROOT / "tests" / "releases"
SECRET = b"the secret of the files in tests"
SETTINGS = f"""port = 9000
capacity = "1GB"
cost = "usd"
ttl = "12h"
{TURN_ON}
[[upstreams]]
name = "openai"
url = "https://api.openai.com/v1"
headers = {{ authorization = "Bearer own" }}

[prices.my-model]
input = 1.0
output = 2.0
"""


def requests() -> list[tuple[str, dict[str, Any], Reply]]:
    """Return a request of each kind with its answer."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "Größe?"}], "temperature": 0}
    answer = {"id": "1", "object": "chat.completion", "choices": [{"message": {"content": "Grün"}}]}
    return [
        ("chat/completions", chat, Reply(json.dumps(answer).encode(), cost=1.0, tags=("faq",))),
        ("completions", {"model": "m", "prompt": "2 + 2 ="}, Reply(b'{"choices": [{"text": "4"}]}', cost=2.0)),
        ("embeddings", {"model": "e", "input": "text"}, Reply(b'{"data": [{"embedding": [0.5]}]}', cost=3.0)),
    ]


def write(folder: Path) -> None:
    """Write a cache file and a settings file of the installed version."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "cache.sqlite")
        with Cache("1MiB", path=path, secret=SECRET, policy="lru", shadows=()) as cache:
            for endpoint, request, reply in requests():
                assert cache.put(endpoint, request, reply)
        (folder / "cache.sqlite.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    (folder / "knapcache.toml").write_text(SETTINGS, encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER / knapcache.__version__)
