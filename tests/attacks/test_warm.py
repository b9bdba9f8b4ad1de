"""`knapcache warm --max-usd` with an upstream whose answers claim to cost nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from knapcache.demo.warming import Warmer, WarmResult, read_requests
from knapcache.price.meter import Meter
from tests.support.raw_client import chat_body
from tests.support.recording_upstream import RecordingUpstream, Script, plain, send
from tests.support.running_proxy import RunningProxy

PRICES = {"m": {"input": 1000.0, "output": 1000.0}}
ESTIMATE = 0.1
"""Dollars of a request, about: 100 tokens of output."""
MAX_USD = 1.0
JSON_TYPE = "content-type: application/json"


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {"upstreams": [{"name": "fake", "url": "", "retries": 0}]}


@pytest.fixture(scope="module")
def proxy(upstream: RecordingUpstream, proxy_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    proxy_settings["upstreams"][0]["url"] = upstream.openai_url
    with RunningProxy(tmp_path_factory.mktemp("data"), "", policy="lru", **proxy_settings) as proxy:
        yield proxy


def answer(usage: Any) -> Script:
    message = {"role": "assistant", "content": "x"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    whole = {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
    return send(plain(json.dumps(whole).encode(), JSON_TYPE))


ANSWERS: dict[str, Script] = {
    "no usage": answer(None),
    "a usage of 0": answer({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}),
    "a negative usage": answer({"prompt_tokens": -(10**9), "completion_tokens": -5, "total_tokens": -1}),
    "a huge usage": answer({"prompt_tokens": 10**400, "completion_tokens": 1}),
    "a usage of texts": answer({"prompt_tokens": "1", "completion_tokens": None}),
    "a usage that is a list": answer([1]),
    "deep JSON": send(plain(b"[" * 100_000, JSON_TYPE)),
    "another price": answer({"prompt_tokens": 1, "completion_tokens": 100, "service_tier": "\x00"}),
    "no answer after the request": send(then="close"),
    "a body that breaks off": send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", then="close"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_spend_stays_below_the_limit(
    proxy: RunningProxy, upstream: RecordingUpstream, tmp_path: Path, kind: str
) -> None:
    async def run() -> WarmResult:
        meter = Meter("usd", PRICES)
        warmer = Warmer(proxy.openai_url, meter, max_usd=MAX_USD, pause=lambda _seconds: asyncio.sleep(0))
        await warmer.run(read_requests(file, meter).requests, 4)
        return warmer.result

    upstream.always(ANSWERS[kind])
    file = tmp_path / "requests.jsonl"
    file.write_bytes(b"".join(chat_body(f"{kind} {k}", max_tokens=100) + b"\n" for k in range(60)))
    result = asyncio.run(run())
    upstream.always(None)
    calls = len(upstream.requests)
    if kind in ("no answer after the request", "a body that breaks off"):  # 502: the proxy says that it has failed
        assert result.failed + result.hits + result.misses == result.finished
        return
    assert 0 < calls * ESTIMATE <= MAX_USD + 4 * ESTIMATE, f"{calls} calls were paid for"
    assert result.stopped == "max_usd"
