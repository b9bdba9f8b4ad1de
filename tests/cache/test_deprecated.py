"""Names that `Cache` had before 1.0: they work, and warn."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from knapcache import Cache, Reply, Uncacheable
from knapcache.cache.deprecated import OLD_NAMES
from tests.support.caches import CHAT, Upstream, payload_of, request_of, small_cache

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"


def old(cache: Cache, name: str) -> Any:
    with pytest.warns(
        DeprecationWarning, match=rf"^Cache\.{name} ends with 2\.0: (use .|it is for the proxy only$)"
    ) as caught:
        found = getattr(cache, name)
    assert caught[0].filename == __file__, "the warning names the caller"
    return found


def test_every_old_name_is_found_warns_and_is_in_the_changelog() -> None:
    changes = CHANGELOG.read_text(encoding="utf-8")
    with small_cache() as cache:
        for name in OLD_NAMES:
            assert name not in dir(Cache)
            assert old(cache, name) is not None
            assert f"`{name}`" in changes, f"CHANGELOG.md does not mention {name}"
        with pytest.raises(AttributeError, match="'Cache' object has no attribute 'fitch'"):
            cache.fitch  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(TypeError):  # a lock: not an endless search for the attributes of a cache without any
            copy.deepcopy(cache)


def test_what_replaces_an_old_name_exists() -> None:
    for name, (instead, _) in OLD_NAMES.items():
        first = re.findall(r"\b[a-z_]+\b", instead)[:1]
        known = [name for name in first if hasattr(Cache, name)]
        assert known or name in ("keyed_request", "keyed_items", "similar"), f"{name}: {instead}"


async def test_old_names_work() -> None:
    async def call() -> Reply:
        return Reply(payload_of(1), cost=1.0)

    async def result() -> str:
        return "got"

    with small_cache() as cache:
        assert (await old(cache, "fetch_async")(CHAT, request_of(1), call)).outcome == "miss"
        found = old(cache, "lookup")(CHAT, request_of(2))
        assert found.hit is None
        assert old(cache, "settle")(found, Reply(payload_of(2), cost=1.0))
        assert old(cache, "purge_preview")(model="m")["entries"] == 2
        keyed = old(cache, "keyed_request")(CHAT, request_of(2))
        assert old(cache, "get_nowait")(keyed).payload == payload_of(2)
        assert cache.fetch(CHAT, keyed, Upstream()(2)).outcome == "hit"
        assert old(cache, "forget")(keyed.key.digest)
        assert not old(cache, "forget")(keyed.key.digest.hex())
        assert old(cache, "get_or_call")(["a", 1], lambda: "got") == "got"
        assert old(cache, "get_or_call")(["a", 1], lambda: "other", name="elsewhere") == "other"
        assert await old(cache, "get_or_call_async")(["a", 1], result) == "got"
        assert cache.stats().hits == 3
        for name, k in (("settle_answer", 3), ("settle_answer_async", 4)):
            paid = old(cache, name)(old(cache, "lookup")(CHAT, request_of(k)), Reply(payload_of(k), cost=1.0))
            assert (await paid if name.endswith("async") else paid).payload == payload_of(k)
        with pytest.raises(Uncacheable):
            old(cache, "get_or_call")(object(), lambda: 1)
        by_decorator = cache.cached(name="get_or_call")(lambda key: f"other {key}")
        assert by_decorator(["a", 1]) == "got", "stored results are found by what replaces the old name"
        cache.check()


def test_results_can_be_indexed_by_name() -> None:
    with small_cache() as cache:
        key = cache.fetch(CHAT, request_of(1), Upstream()(1)).key
        stats, found, entry = cache.stats(), cache.entries(), cache.entry(key)
        assert entry is not None
        text = r"^CacheStats\['misses'\] ends with 2\.0: use CacheStats\.misses$"
        with pytest.warns(DeprecationWarning, match=text) as caught:
            assert stats["misses"] == 1  # type: ignore[index]
        assert caught[0].filename == __file__, "the warning names the caller"
        with pytest.warns(DeprecationWarning, match="ends with 2.0"):
            assert (stats.get("evictions", 0), stats.get("nothing")) == (0, None)  # type: ignore[attr-defined]
        with pytest.warns(DeprecationWarning, match="ends with 2.0"):
            assert stats["by_model"]["m"]["misses"] == stats["breaker"]["opened"] + 1  # type: ignore[index]
        with pytest.warns(DeprecationWarning, match="ends with 2.0"):
            assert [row["key"] for row in found["rows"]] == [key]  # type: ignore[index]
        with pytest.warns(DeprecationWarning, match="ends with 2.0"):
            assert entry["payload"] == payload_of(1)  # type: ignore[index]
        assert "hits" in list(stats)  # type: ignore[call-overload]
        with pytest.raises(KeyError):
            stats["hots"]  # type: ignore[index]
