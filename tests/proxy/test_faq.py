"""The statements of docs/faq.md hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx

from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.secrets import digest_of
from knapcache.testing import FakeUpstream
from tests.support.proxy_fixtures import Start
from tests.support.running_proxy import RunningProxy

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "faq.md").read_text(encoding="utf-8").split())
SECRET = "xyzzy-in-a-prompt"


def ask(proxy: RunningProxy, text: str = SECRET, headers: dict[str, str] | None = None, **more: Any) -> str:
    """Send a chat request, and return its outcome."""
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}], **more}
    response = httpx.post(f"{proxy.openai_url}/chat/completions", json=body, headers=headers or {}, timeout=60)
    return response.headers["x-knapcache"]


def stored_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_data_is_stored_in_clear_text_unless_there_is_a_key(start: Start, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    plain, encrypted = tmp_path / "plain", tmp_path / "encrypted"
    for proxy in (start(path=plain), start(path=encrypted, encryption_key_file=key)):
        assert [ask(proxy), ask(proxy)] == ["miss", "hit"]
        proxy.proxy.cache.check()  # waits until everything is written
    assert SECRET.encode() in stored_bytes(plain)
    assert SECRET.encode() not in stored_bytes(encrypted)
    assert plain.stat().st_mode & 0o777 == 0o700


def test_nothing_is_written_with_memory_only(start: Start, tmp_path: Path) -> None:
    proxy = start(path=tmp_path / "data", memory_only=True)
    assert [ask(proxy), ask(proxy)] == ["miss", "hit"]
    assert not (tmp_path / "data").exists()


def test_headers_that_bypass_the_cache_once(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    def sent(directives: str, text: str) -> str:
        assert f"| `Cache-Control: {directives}` |" in PAGE
        return ask(proxy, text, {"cache-control": directives})

    assert [ask(proxy, "a"), sent("no-store", "a"), sent("no-cache", "a"), ask(proxy, "a")] == [
        "miss", "hit", "miss", "hit",
    ]  # fmt: skip
    assert [sent("no-cache, no-store", "b"), ask(proxy, "b")] == ["miss", "miss"], "it was stored"
    before = upstream.count()
    assert [sent("no-cache, no-store", "b"), ask(proxy, "b")] == ["miss", "hit"], "a stored answer stays"
    assert upstream.count() == before + 1


def test_what_is_never_cached(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    for fault in ("no-finish", "html"):
        upstream.fail(fault)
        assert [ask(proxy, fault), ask(proxy, fault)] == ["miss", "miss"]
        assert ask(proxy, fault) == "hit"
    upstream.fail("cut")
    assert [ask(proxy, "cut", stream=True) for _ in range(3)] == ["miss", "miss", "hit"]
    state = {"model": "gpt-4o-mini", "input": "Hello", "conversation": "conv_1"}
    for _ in range(2):
        assert httpx.post(f"{proxy.openai_url}/responses", json=state).headers["x-knapcache"] == "bypass"


def test_the_limits_that_the_page_names() -> None:
    fields = Settings.model_fields
    assert re.search(r"more than 8 MB \(`max_cached_body`\)", PAGE)
    assert fields["max_cached_body"].default == 8_000_000
    assert re.search(r"more than 128 MB \(`max_answer`\)", PAGE)
    assert fields["max_answer"].default == 128_000_000
    assert "256 MB by default" in PAGE
    assert fields["capacity"].default == 256_000_000
    assert "request log (64 MB at most)" in PAGE
    assert fields["request_log_bytes"].default == 64_000_000
    assert "audit log (16 MB)" in PAGE
    assert fields["audit_log_bytes"].default == 16_000_000
    assert (fields["ttl"].default, fields["semantic"].default, fields["semantic_error"].default) == (None, "off", 0.01)


def test_savings_are_counted_for_each_team_of_a_group(start: Start) -> None:
    names = ("team-a", "team-b")
    tenants = [{"name": name, "keys": [digest_of(f"key-of-{name}")], "group": "all"} for name in names]
    proxy = start(tenants=tenants)
    outcomes = [ask(proxy, headers={"authorization": f"Bearer key-of-{name}"}) for name in (*names, names[1])]
    assert outcomes == ["miss", "hit", "hit"]
    found = {row["name"]: row for row in proxy.admin("/summary")["tenants"]}
    assert found["team-a"]["usd_saved"] == 0
    assert found["team-b"]["usd_saved"] > 0
    assert (
        'knapcache_usd_saved_total{endpoint="chat/completions",model="gpt-4o-mini",tenant="team-b"}' in proxy.metrics()
    )


def test_a_temperature_above_0_is_cached(proxy: RunningProxy) -> None:
    assert [ask(proxy, temperature=1.0), ask(proxy, temperature=1.0)] == ["miss", "hit"]
