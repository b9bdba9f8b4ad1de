"""The memory that entries take, measured in a process of its own, compared with the size that is charged for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.caches import spawn

MAX_RATIO = 1.25
CODE = """
    import ctypes, gc, json, os, sys
    assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0  # PR_SET_THP_DISABLE: one huge page is as much as 1,000 entries
    os.environ["KNAPCACHE_COMPILE"] = "0"  # kernels that are loaded in the background take memory, too
    import orjson
    from knapcache import Reply
    from tests.support.caches import CHAT, request_of, small_cache, store_of

    kind, path = sys.argv[1:]
    cache = small_cache(capacity="512MB", path=path if kind == "memory tier" else None)
    USAGE = {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110}
    IDS = {"x-request-id": "req_" + 32 * "0"}

    def memory():
        gc.collect()
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

    @cache.cached
    def function(name, size):
        return {"name": name, "text": os.urandom(size // 2).hex()}

    def fetch(name, size):
        def call():
            payload = orjson.dumps({"text": os.urandom(size // 2).hex(), "usage": USAGE})
            return Reply(payload, model="m", usage=USAGE, meta={"form": "json", "ids": IDS})
        cache.fetch(CHAT, request_of((name, size)), call)

    def charged():
        tier = getattr(store_of(cache), "_memory_tier", None)
        return cache.stats().bytes if tier is None else tier.charged()

    step, found = function if kind == "library" else fetch, {}
    for size, count in ((60, 2000), (900, 2000), (8000, 500)):
        for name in range(100):
            step(name, size)
        before, already = memory(), charged()
        for name in range(100, count):
            step(name, size)
        found[size] = (memory() - before) / max(1, charged() - already)
    cache.close()
    print(json.dumps(found))
"""


@pytest.mark.parametrize("kind", ["library", "proxy", "memory tier"])
def test_entries_take_the_memory_that_is_charged(kind: str, tmp_path: Path) -> None:
    for _ in range(1 + (kind == "memory tier")):  # one process writes the file, another one reads it
        child = spawn(CODE, kind, tmp_path / "answers.db")
        out, err = child.communicate()
        assert child.returncode == 0, err
    found = json.loads(out)
    assert max(found.values()) <= MAX_RATIO, found
