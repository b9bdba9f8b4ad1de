"""Real clients tag answers at a running proxy, and entries are purged by tag."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from knapcache.cache.purging import purge_conditions
from knapcache.cli.main import main
from knapcache.testing import FakeUpstream
from tests.proxy.http.test_fast_path import fast_path_of
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def proxy(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("tags")
    routes = [{"name": "judges", "model": "judge-*", "tags": ["route:judges", "prompt-v3"]}]
    settings: dict[str, Any] = {"policy": "lru", "admin_token": "x" * 32, "route": routes}
    with RunningProxy(folder, upstream.openai_url, **settings) as proxy:
        yield proxy
        proxy.proxy.cache.check()


@pytest.fixture
def sdk(proxy: RunningProxy) -> Iterator[openai.OpenAI]:
    proxy.proxy.cache.purge(purge_conditions())
    with openai.OpenAI(base_url=proxy.openai_url, api_key="one", max_retries=0) as sdk:
        yield sdk


def ask(sdk: openai.OpenAI, text: str, tags: str | None = None, **options: Any) -> str:
    """Ask a question; return the outcome."""
    headers = {} if tags is None else {"x-knapcache-tags": tags}
    create = sdk.chat.completions.with_raw_response.create
    found = create(model="gpt-4o", messages=[{"role": "user", "content": text}], extra_headers=headers, **options)
    list(found.parse()) if options.get("stream") else found.parse()
    return found.headers["x-knapcache"]


def admin(proxy: RunningProxy, method: str, path: str, **options: Any) -> Any:
    headers = {"authorization": f"Bearer {'x' * 32}"}
    return httpx.request(method, f"{proxy.url}/admin/v1{path}", headers=headers, **options).raise_for_status().json()


def tags_of(proxy: RunningProxy) -> list[list[str]]:
    return sorted(row["tags"] for row in admin(proxy, "GET", "/entries")["rows"])


def test_tags_are_stored_and_purged(proxy: RunningProxy, sdk: openai.OpenAI) -> None:
    assert ask(sdk, "one", "feature:faq, prompt-v3") == "miss"
    assert ask(sdk, "two", "prompt-v3", stream=True) == "miss"
    assert ask(sdk, "three", extra_body={"cache": {"tags": ["prompt-v2"]}}) == "miss"
    assert ask(sdk, "four") == "miss"
    sdk.embeddings.create(model="e", input=["five", "six"], extra_headers={"x-knapcache-tags": "vectors"})
    assert tags_of(proxy) == [
        [], ["feature:faq", "prompt-v3"], ["prompt-v2"], ["prompt-v3"], ["vectors"], ["vectors"],
    ]  # fmt: skip
    assert admin(proxy, "GET", "/entries", params={"tag": "prompt-v3"})["total"] == 2
    assert admin(proxy, "GET", "/entries", params={"search": "FAQ"})["total"] == 1
    assert admin(proxy, "GET", "/entries", params={"tag": "prompt"})["total"] == 0
    dry = admin(proxy, "POST", "/purge", json={"tags": ["prompt-v2", "vectors"], "dry_run": True})
    assert dry["preview"]["entries"] == 3
    assert admin(proxy, "POST", "/purge", json={"tags": ["prompt-v2", "vectors"]}) == {"purged": 3}
    assert ask(sdk, "three") == "miss"
    assert ask(sdk, "one") == "hit"


def test_tags_are_no_part_of_the_key_and_stay_those_of_the_fetch(
    proxy: RunningProxy, sdk: openai.OpenAI, upstream: FakeUpstream
) -> None:
    calls = upstream.count()
    assert ask(sdk, "question", "first") == "miss"
    for tags in ("second", None, "third"):
        assert ask(sdk, "question", tags) == "hit"
    assert upstream.count() == calls + 1
    assert tags_of(proxy) == [["first"]]
    create = sdk.chat.completions.create
    headers = {"x-knapcache-tags": "fourth", "cache-control": "no-cache"}
    create(model="gpt-4o", messages=[{"role": "user", "content": "question"}], extra_headers=headers)
    assert tags_of(proxy) == [["fourth"]], "a newer answer has the tags of its own request"


def test_a_route_adds_its_tags(proxy: RunningProxy, sdk: openai.OpenAI) -> None:
    for headers in ({}, {"x-knapcache-tags": "own"}):
        content = f"with {len(headers)} headers"
        messages: Any = [{"role": "user", "content": content}]
        sdk.chat.completions.create(model="judge-1", messages=messages, extra_headers=headers)
    assert tags_of(proxy) == [["own", "prompt-v3", "route:judges"], ["prompt-v3", "route:judges"]]


def test_hits_with_tags_take_the_fast_path(proxy: RunningProxy, sdk: openai.OpenAI) -> None:
    known = len(fast_path_of(proxy))
    assert [ask(sdk, "repeated", "a") for _ in range(2)] == ["miss", "hit"]
    assert len(fast_path_of(proxy)) == known + 1
    served: list[Any] = []
    path = fast_path_of(proxy)
    original, path._append_event = path._append_event, served.append
    try:
        assert ask(sdk, "repeated", "b") == "hit"  # makes the head known
        # The next one takes the slow path if the entry was written to disk meanwhile, and thus left the memory.
        wait_until(lambda: ask(sdk, "repeated", "b") != "hit" or served)
    finally:
        path._append_event = original
    assert [event.outcome for event in served] == ["hit"]


def test_bad_tags_are_refused_whether_the_answer_is_stored_or_not(sdk: openai.OpenAI) -> None:
    for _ in range(2):
        with pytest.raises(openai.BadRequestError, match="'a b' is not a tag; allowed are at most 16 tags"):
            ask(sdk, "refused", "a b")
        ask(sdk, "refused")
        ask(sdk, "refused")
    with pytest.raises(openai.BadRequestError, match="is not a tag"):
        ask(sdk, "other", extra_body={"cache": {"tags": ["a,b"]}})


def test_the_command_previews_tags_while_the_proxy_runs(
    proxy: RunningProxy, sdk: openai.OpenAI, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(sdk, "one", "a,b")
    ask(sdk, "two", "c")
    folder = str(Path(proxy.proxy.settings.path))
    proxy.proxy.cache.coordinator.store.flush()
    assert main(["purge", folder, "--tag", "b", "--tag", "c", "--dry-run"]) == 0
    found = capsys.readouterr().out
    assert "a, b" in found
    assert "2 entries would be removed" in found
    assert main(["purge", folder, "--tag", "b c"]) == 2
    assert "'b c' is not a tag" in capsys.readouterr().err


def test_entries_are_purged_by_system_prompt(
    proxy: RunningProxy, sdk: openai.OpenAI, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    create = sdk.chat.completions.create
    for prompt in ("You are a clerk.\n", "You are a judge."):
        for text in ("one", "two"):
            messages: Any = [{"role": "system", "content": prompt}, {"role": "user", "content": text}]
            create(model="gpt-4o", messages=messages)
    ask(sdk, "without a system prompt")
    proxy.proxy.cache.coordinator.store.flush()
    (tmp_path / "clerk.txt").write_text("You are a clerk.", "utf-8")
    folder = str(Path(proxy.proxy.settings.path))
    assert main(["purge", folder, "--system-file", str(tmp_path / "clerk.txt"), "--dry-run"]) == 0
    assert "2 entries would be removed" in capsys.readouterr().out
    digest = hashlib.sha256(b"You are a clerk.").hexdigest()[:16]
    rows = admin(proxy, "GET", "/entries")["rows"]
    assert [row["system"] for row in rows].count(digest) == 2
    key = next(row["key"] for row in rows if row["system"] == digest)
    assert admin(proxy, "GET", f"/entries/{key}")["system"] == digest
    assert main(["inspect", folder, "--key", key]) == 0
    assert f"system   {digest}" in capsys.readouterr().out
    assert main(["purge", folder, "--system-prefix", "0x", "--dry-run"]) == 2
    assert "16 hex digits" in capsys.readouterr().err
    assert admin(proxy, "POST", "/purge", json={"system": digest[:8]}) == {"purged": 2}
    assert admin(proxy, "GET", "/entries")["total"] == 3
