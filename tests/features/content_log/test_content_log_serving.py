"""The content log of a running proxy: real clients, every outcome, restarts, several workers."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from knapcache.features.content_log.file import ContentFile
from knapcache.testing import FakeUpstream
from tests.support.content_lines import logged
from tests.support.proxy_fixtures import Start
from tests.support.proxy_process import ProxyProcess
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

MAIL, KEY = "jane.doe@example.org", "sk-proj-aaaaaaaaaaaaaaaaaaaaaaaaaaaa"


def lines(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the lines of a log, when there are so many."""
    path = folder / "content.sqlite"
    wait_until(lambda: path.exists() and len(logged(path)) >= count, f"{count} lines")
    with contextlib.closing(ContentFile(path, create=False)) as file:
        file.check()
    return logged(path)


def messages(text: str) -> Any:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]


def sdk(proxy: RunningProxy) -> openai.OpenAI:
    return openai.OpenAI(base_url=proxy.openai_url, api_key="one", max_retries=0)


def test_every_outcome_is_a_line(start: Start, upstream: FakeUpstream, tmp_path: Path) -> None:
    route = [{"name": "live", "model": "live-*", "cache": "off"}]
    upstreams = [{"name": "fake", "url": upstream.openai_url, "retries": 0}]
    proxy = start(content_log=True, route=route, upstreams=upstreams)
    with sdk(proxy) as client:
        create = client.chat.completions.create
        question = messages(f"Write to {MAIL} with {KEY}")
        create(model="gpt-4o", messages=question)
        create(model="gpt-4o", messages=question)
        list(create(model="gpt-4o", messages=question, stream=True))
        create(model="live-1", messages=question)
        list(create(model="live-1", messages=question, stream=True))
        client.embeddings.create(model="text-embedding-3-small", input=["first", "second"])
        upstream.fail("500")
        with pytest.raises(openai.InternalServerError):
            create(model="gpt-4o", messages=messages("fails"))
    with anthropic.Anthropic(base_url=proxy.url, api_key="one", max_retries=0) as claude:
        claude.messages.create(
            model="claude-x", max_tokens=9, system="Be brief.", messages=[{"role": "user", "content": "Which way?"}]
        )
    found = lines(tmp_path / "data", 8)
    assert [line["outcome"] for line in found] == ["miss", "hit", "hit", "bypass", "bypass", "miss", "failed", "miss"]
    assert [line["route"] for line in found[2:5]] == ["", "live", "live"]
    assert [line["stream"] for line in found[:5]] == [0, 0, 1, 0, 1]
    for line in found[:5]:
        assert line["prompt"] == "Be brief.\nWrite to [email] with [key]"
        assert line["answer"] == "You said: Write to [email] with [key]"
        assert line["request"]["messages"][1]["content"] == "Write to [email] with [key]"
        assert line["response"]["object"] == "chat.completion"
    assert found[0]["upstream"] == "fake"
    assert found[0]["key"] == found[1]["key"] != ""
    assert found[5]["prompt"] == "first\nsecond"
    assert found[5]["response"] == {}
    assert found[6]["status"] == 500
    assert found[7]["prompt"] == "Be brief.\nWhich way?"
    assert found[7]["answer"]
    proxy.stop()
    for each in (tmp_path / "data").glob("content.sqlite*"):
        assert MAIL.encode() not in each.read_bytes()
        assert KEY.encode() not in each.read_bytes()
        assert each.stat().st_mode & 0o077 == 0


def test_the_log_goes_on_after_a_restart(start: Start, tmp_path: Path) -> None:
    for k in range(2):
        proxy = start(content_log=True)
        with sdk(proxy) as client:
            client.chat.completions.create(model="gpt-4o", messages=messages("the same question"))
        proxy.stop()
        assert [line["outcome"] for line in lines(tmp_path / "data", k + 1)] == ["miss", "hit"][: k + 1]


def test_without_the_setting_nothing_is_written(start: Start, tmp_path: Path) -> None:
    proxy = start()
    with sdk(proxy) as client:
        client.chat.completions.create(model="gpt-4o", messages=messages("zanzibar"))
    proxy.stop()
    assert not list((tmp_path / "data").glob("content*"))


@pytest.mark.long
def test_all_workers_write_to_one_log(tmp_path: Path, upstream: FakeUpstream) -> None:
    with ProxyProcess(tmp_path / "data", upstream.openai_url, workers=2, content_log=True) as proxy:
        for pid in proxy.pids():
            with proxy.only(pid):
                for k in range(5):
                    body = {"model": "m", "messages": messages(f"question {k} of {pid}")}
                    assert httpx.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    found = lines(tmp_path / "data", 10)
    assert len(found) == 10
    assert len({line["prompt"] for line in found}) == 10
