"""Entries are found by the first words of their prompts, and by their similarity to a request, with bounded work."""

from __future__ import annotations

import gc
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache import Cache
from knapcache.cache.browse import Comparison
from knapcache.cache.outlines import PAUSE_EVERY, OutlineIndex
from knapcache.errors import StoreError
from knapcache.keys.outline import words_of
from knapcache.store.base import Entry
from tests.support.caches import CHAT, Upstream, admission_of, keyed, small_cache, store_of
from tests.support.timing import wait_until

LATER = 1e12
SYSTEM = {"role": "system", "content": "You are a helpful geographer."}


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "temperature": 0, "messages": [SYSTEM, {"role": "user", "content": text}], **fields}


TOPICS = ("the sea", "Lisbon", "rivers of Peru", "Alps", "deserts", "maps", "borders", "capital cities", "islands")


def fill(cache: Cache, **where: Any) -> dict[str, str]:
    """Store a question about each topic. Return the keys."""
    found = {}
    for topic in TOPICS:
        answer = cache.fetch(
            CHAT, chat(f"Tell me all you know about {topic}, in one line."), Upstream()(topic), **where
        )
        found[topic] = answer.key
    store_of(cache).flush()
    return found


@pytest.fixture(params=["memory", "file", "encrypted"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    path = None if request.param == "memory" else tmp_path / "answers.db"
    key = secrets.token_bytes(32) if request.param == "encrypted" else None
    with small_cache(path=path, encryption_key=key) as cache:
        yield cache
        cache.check()


def test_search_finds_entries_by_their_first_words(cache: Cache) -> None:
    keys = fill(cache)
    page = cache._internal.browser.page(search="RIVERS of", words=True)
    assert [row["key"] for row in page["rows"]] == [keys["rivers of Peru"]]
    assert (page["total"], page["searched"], page["entries"]) == (1, len(TOPICS), len(TOPICS))
    (row,) = page["rows"]
    assert (row["endpoint"], row["words"]) == (CHAT, "Tell me all you know about rivers of Peru, in one line.")
    assert cache._internal.browser.page(search="rivers")["total"] == 0, (
        "without words only key, model and tenant are searched"
    )
    assert cache._internal.browser.page(search=keys["Alps"][:12], words=True)["total"] == 1
    assert cache._internal.browser.page(search="geographer", words=True)["total"] == 0, (
        "the system prompt is not the name"
    )
    cache.purge(key=keys["rivers of Peru"])
    assert cache._internal.browser.page(search="rivers", words=True)["total"] == 0


def test_a_listing_counts_no_requests_and_leaves_the_memory_tier_alone(tmp_path: Path) -> None:
    with small_cache(path=tmp_path / "answers.db") as cache:
        keys = fill(cache)
    with small_cache(path=tmp_path / "answers.db") as cache:
        arrived = admission_of(cache).arrived
        cache._internal.browser.page(search="the", words=True)
        assert admission_of(cache).arrived == arrived
        in_memory = [store_of(cache).get_nowait(bytes.fromhex(key)) for key in keys.values()]
        assert not any(isinstance(found, Entry) for found in in_memory)


def compare(cache: Cache, body: dict[str, Any], before: float = LATER, **where: Any) -> Comparison:
    return cache._internal.browser.compare(keyed(cache, body, **where).key.canonical, before)


def test_the_nearest_entry_differs_in_the_changed_field(cache: Cache) -> None:
    keys = fill(cache)
    question = "Tell me all you know about Lisbon, in one line."
    cases: list[tuple[dict[str, Any], str]] = [
        (chat(question, temperature=0.2), "temperature"),
        (chat(question, max_tokens=50), "max_tokens"),
        (chat(question, model="other"), "model"),
        (chat(question, messages=[{"role": "user", "content": question}]), "system prompt"),
        (chat(f"  {question}"), "last user message"),
        (chat(question.replace("one line", "two lines")), "last user message"),
        (chat(question, messages=[*chat(question)["messages"], {"role": "assistant", "content": "On the Tagus."},
                                  {"role": "user", "content": "And its bridges?"}]), "messages"),
    ]  # fmt: skip
    for body, field in cases:
        found = compare(cache, body)
        assert found.nearest is not None, field
        assert found.nearest.key.hex() == keys["Lisbon"]
        assert found.nearest.similar
        assert [each.field for each in found.nearest.differences] == [field]
        assert found.stored
        assert words_of(found.nearest.request) == question


def test_a_shorter_conversation_is_found_too(cache: Cache) -> None:
    longer = [*chat("And the Tagus?")["messages"], {"role": "assistant", "content": "A river."}]
    longer.append({"role": "user", "content": "How long is it?"})
    cache.fetch(CHAT, chat("", messages=longer), Upstream()(1))
    store_of(cache).flush()
    found = compare(cache, chat("And the Tagus?"))
    assert found.nearest is not None
    assert [each.text for each in found.nearest.differences] == ["2 fewer messages: 2 instead of 4"]


def test_an_entry_that_was_removed_since_is_found(cache: Cache) -> None:
    keys = fill(cache)
    cache.purge()
    found = compare(cache, chat("Tell me all you know about Lisbon, in one line.", temperature=1))
    assert found.nearest is not None
    assert (found.nearest.key.hex(), found.stored) == (keys["Lisbon"], False)


def test_only_entries_of_the_time_and_of_the_tenant_are_compared(cache: Cache) -> None:
    keys = fill(cache, namespace="a")
    body = chat("Tell me all you know about Lisbon, in one line.")
    assert compare(cache, body, before=0.0).nearest is None
    found = compare(cache, body, namespace="b").nearest
    assert found is not None
    assert (found.key.hex(), [each.field for each in found.differences]) == (keys["Lisbon"], ["tenant"])
    canonical = keyed(cache, body, namespace="b").key.canonical
    assert cache._internal.browser.compare(canonical, LATER, tenant="b").nearest is None
    assert cache._internal.browser.compare(canonical, LATER, tenant="a").nearest is not None


def test_an_unrelated_request_is_not_similar(cache: Cache) -> None:
    fill(cache)
    found = compare(cache, chat("Compose a limerick on tax law")).nearest
    assert found is None or not found.similar
    assert cache._internal.browser.compare(b"not a canonical request", LATER).nearest is None


def test_a_comparison_makes_no_objects_for_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """One per entry would start full collections, which stop the process."""
    with small_cache(capacity="20MB") as cache:
        for k in range(600):
            cache.fetch(CHAT, chat(f"Tell me all you know about number {k}."), Upstream()(k))
        body, counts = chat("Tell me all you know about number 7.", temperature=1), []
        wait_until(lambda: compare(cache, body).coverage.read == 600)  # one reads for two seconds at most
        stored_request = cache._internal.browser._stored_request

        def counting(key: bytes) -> bytes | None:
            counts.append(gc.get_count()[0])
            return stored_request(key)

        monkeypatch.setattr(cache._internal.browser, "_stored_request", counting)
        monkeypatch.setattr(cache._internal.browser, "_settled", lambda *_: iter(()))
        try:
            gc.disable()
            gc.collect()
            assert compare(cache, body).nearest is not None
        finally:
            gc.enable()
    assert 0 < counts[0] < 300


def test_a_search_is_bounded_in_time_rests_and_continues(cache: Cache) -> None:
    for k in range(4 * PAUSE_EVERY):
        cache.fetch(CHAT, chat(f"Question number {k}"), Upstream()(k, 10))
    store_of(cache).flush()
    table, now = admission_of(cache).entries(), [0.0]
    naps: list[float] = []

    def peek(key: bytes) -> Entry | None:
        now[0] += 1.0
        return store_of(cache).peek(key)

    index = OutlineIndex(seconds=2.5 * PAUSE_EVERY, sleep=naps.append, clock=lambda: now[0])
    first = index.read(table, peek)
    assert first.entries == 4 * PAUSE_EVERY
    assert 2 * PAUSE_EVERY < first.read < 3 * PAUSE_EVERY
    assert len(naps) == first.read // PAUSE_EVERY
    newest = np.argsort(-table.records["created"], kind="stable")[: first.read]
    assert set(index._outlines) == {table.keys[k] for k in newest}, "the newest entries come first"
    assert index.read(table, peek).read == 4 * PAUSE_EVERY
    reads = now[0]
    assert index.read(table, peek).read == 4 * PAUSE_EVERY
    assert now[0] == reads, "known outlines are not read again"


def test_outlines_are_bounded_and_those_of_entries_that_are_gone_are_dropped() -> None:
    with small_cache() as cache:
        index = OutlineIndex(limit=20, sleep=lambda _: None)
        for k in range(50):
            cache.fetch(CHAT, chat(f"Question number {k}"), Upstream()(k, 10))
        table = admission_of(cache).entries()
        assert index.read(table, store_of(cache).peek).read == 20
        assert len(index) == 20
        for row in cache.entries(limit=50).rows[:40]:
            cache.purge(key=row.key)
        assert index.read(admission_of(cache).entries(), store_of(cache).peek).read == 10
        assert len(index) <= 20


def test_a_store_that_cannot_be_read_leaves_names_out(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache)

    def broken(_key: bytes) -> Entry:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(store_of(cache), "peek", broken)
    page = cache._internal.browser.page(search="", words=True)
    assert page["total"] == len(TOPICS)
    assert {(row["endpoint"], row["words"]) for row in page["rows"]} == {("", "")}
    monkeypatch.setattr(admission_of(cache).history, "settled", dict)
    assert compare(cache, chat("Tell me all you know about Lisbon.")).nearest is None
    monkeypatch.setattr(cache._engine.reads.breaker, "state", "open")
    monkeypatch.setattr(store_of(cache), "peek", lambda _: pytest.fail("no read while the breaker is open"))
    assert cache._internal.browser.page(words=True)["total"] == len(TOPICS)
