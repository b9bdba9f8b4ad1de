"""Real clients of a real proxy get the same answer again, for one call upstream."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from knapcache.testing import FakeUpstream
from tests.support.programs import find_program
from tests.support.running_proxy import RunningProxy

HELLO: Any = [{"role": "user", "content": "Hello there, all of you"}]
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
VARIANTS: dict[str, dict[str, Any]] = {
    "text": {},
    "tools": {"tools": [TOOL]},
    "reasoning": {"reasoning_effort": "low"},
    "log probabilities": {"logprobs": True},
    "three choices": {"n": 3},
}


@pytest.fixture
def sdk(proxy: RunningProxy) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=proxy.openai_url, api_key="one", max_retries=0) as sdk:
        yield sdk


def plain(answer: Any) -> Any:
    return answer.model_dump(exclude_none=True)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_chat_in_every_form_after_a_plain_answer(
    sdk: openai.OpenAI, upstream: FakeUpstream, options: dict[str, Any]
) -> None:
    create = sdk.chat.completions.create
    answers = [
        plain(create(model="gpt-4o", messages=HELLO, **options)) for _ in range(4)
    ]  # by the slow and the fast path
    assert answers[0] == answers[1] == answers[2] == answers[3]
    for _ in range(3):
        chunks = list(
            create(model="gpt-4o", messages=HELLO, stream=True, stream_options={"include_usage": True}, **options)
        )
        assert plain(chunks[-1])["usage"] == answers[0]["usage"]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices and c.choices[0].index == 0)
        assert text == (answers[0]["choices"][0]["message"].get("content") or "")
    assert upstream.count() == 1


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_chat_in_every_form_after_a_stream(sdk: openai.OpenAI, upstream: FakeUpstream, options: dict[str, Any]) -> None:
    create = sdk.chat.completions.create
    streams = [[plain(c) for c in create(model="gpt-4o", messages=HELLO, stream=True, **options)] for _ in range(4)]
    assert streams[0] == streams[1] == streams[2] == streams[3]
    assert not any("usage" in chunk for chunk in streams[0])  # the proxy asked for it, the caller did not
    answer = plain(create(model="gpt-4o", messages=HELLO, **options))
    assert len(answer["choices"]) == options.get("n", 1)
    assert answer["usage"]["total_tokens"] > 0
    assert upstream.count() == 1


def test_cache_headers(sdk: openai.OpenAI, upstream: FakeUpstream) -> None:
    create = sdk.chat.completions.with_raw_response.create
    first, second, third = (create(model="gpt-4o", messages=HELLO) for _ in range(3))
    assert first.headers["x-knapcache"] == "miss"
    assert first.headers["cache-status"] == "knapcache; fwd=miss"
    for again in (second, third):
        assert again.headers["x-knapcache"] == "hit"
        assert again.headers["cache-status"] == "knapcache; hit"
        assert again.headers["x-knapcache-key"] == first.headers["x-knapcache-key"]
        assert again.headers["x-request-id"] == first.headers["x-request-id"]
        assert float(again.headers["x-knapcache-saved-usd"]) >= 0.0
        assert int(again.headers["age"]) < 60
        assert "set-cookie" not in again.headers
    assert upstream.count() == 1


def test_images_are_part_of_the_key_by_content(sdk: openai.OpenAI, upstream: FakeUpstream) -> None:
    def describe(picture: bytes) -> Any:
        url = "data:image/png;base64," + base64.b64encode(picture).decode()
        content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
        return sdk.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": content}])  # type: ignore[misc, list-item]

    describe(b"one"), describe(b"one"), describe(b"two")
    assert upstream.count() == 2


def test_completions_and_embeddings(sdk: openai.OpenAI, upstream: FakeUpstream) -> None:
    first, again = (plain(sdk.completions.create(model="gpt-3.5-turbo-instruct", prompt="Once")) for _ in range(2))
    assert first == again
    assert upstream.count() == 1
    one = sdk.embeddings.create(model="text-embedding-3-small", input=["a", "b"])
    two = sdk.embeddings.with_raw_response.create(model="text-embedding-3-small", input=["b", "c", "a", "b"])
    assert two.headers["x-knapcache-hits"] == "3/4"
    vectors = [item.embedding for item in two.parse().data]
    assert vectors[2] == one.data[0].embedding
    assert vectors[0] == vectors[3] == one.data[1].embedding
    assert upstream.calls[-1].body["input"] == ["c"]
    sdk.embeddings.create(model="text-embedding-3-small", input="c")
    assert upstream.count("/embeddings") == 2


def test_responses_plain_and_streamed(sdk: openai.OpenAI, upstream: FakeUpstream) -> None:
    first, again = (sdk.responses.create(model="gpt-4o", input="Hello") for _ in range(2))
    assert first.output_text == again.output_text
    assert first.id == again.id
    events = [list(sdk.responses.create(model="gpt-4o", input="Hello", stream=True)) for _ in range(2)]
    assert [e.type for e in events[0]] == [e.type for e in events[1]]
    assert events[0][-1].type == "response.completed"
    assert upstream.count() == 1


async def test_the_async_client(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    async with openai.AsyncOpenAI(base_url=proxy.openai_url, api_key="one", max_retries=0) as sdk:
        first = await sdk.chat.completions.create(model="gpt-4o", messages=HELLO)
        stream = await sdk.chat.completions.create(model="gpt-4o", messages=HELLO, stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in stream])
    assert text == first.choices[0].message.content
    assert upstream.count() == 1


def test_the_anthropic_sdk(start: Any, upstream: FakeUpstream) -> None:
    proxy = start(upstreams=[{"name": "claude", "url": upstream.url, "kind": "anthropic"}])
    with anthropic.Anthropic(base_url=proxy.url, api_key="one", max_retries=0) as sdk:
        first, again = (sdk.messages.create(model="claude-x", max_tokens=9, messages=HELLO) for _ in range(2))
        assert plain(first) == plain(again)
        for _ in range(2):
            with sdk.messages.stream(model="claude-x", max_tokens=9, messages=HELLO) as stream:
                assert plain(stream.get_final_message())["content"] == plain(first)["content"]
        assert upstream.count("/v1/messages") == 1
        for _ in range(2):
            with sdk.messages.stream(model="claude-x", max_tokens=9, system="Short.", messages=HELLO) as stream:
                stream.get_final_message()
    assert upstream.count("/v1/messages") == 2
    assert "one" in str(upstream.calls[0].headers)


def test_langchain(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="gpt-4o", base_url=proxy.openai_url, api_key="one", max_retries=0)  # type: ignore[arg-type]
    first, again = (model.invoke("Hello there") for _ in range(2))
    assert first.content == again.content
    assert "".join(str(chunk.content) for chunk in model.stream("Hello there")) == first.content
    assert upstream.count() == 1


def test_curl(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    find_program("curl", "curl")

    def curl(*more: str) -> str:
        body = json.dumps({"model": "gpt-4o", "messages": HELLO})
        command = ["curl", "-sS", "-i", f"{proxy.openai_url}/chat/completions", "-H", "content-type: application/json"]
        return subprocess.run([*command, "-d", body, *more], capture_output=True, text=True, check=True).stdout

    assert "x-knapcache: miss" in curl()
    assert "x-knapcache: hit" in curl()
    assert "x-knapcache: miss" in curl("-H", "cache-control: no-cache")
    assert "x-knapcache: hit" in curl("-H", "cache-control: only-if-cached")
    assert upstream.count() == 2


def test_cache_control(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    def post(text: str, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(
            f"{proxy.openai_url}/chat/completions",
            json={"model": "m", "messages": messages, **(body or {})},
            headers=named,
        )

    missing = post("a", cache_control="only-if-cached")
    assert (missing.status_code, missing.json()["error"]["type"]) == (504, "not_cached")
    assert upstream.count() == 0
    assert post("b", cache_control="no-store").headers["x-knapcache"] == "miss"
    assert post("b").headers["x-knapcache"] == "miss"
    assert post("b", cf_aig_skip_cache="true").headers["x-knapcache"] == "miss"
    assert post("b", x_portkey_cache_force_refresh="true").headers["x-knapcache"] == "miss"
    assert post("b", helicone_cache_enabled="false").headers["x-knapcache"] == "miss"
    assert post("b").headers["x-knapcache"] == "hit"
    assert post("b", {"cache": {"no-cache": True}}).headers["x-knapcache"] == "miss"
    assert "cache" not in upstream.calls[-1].body
    assert post("b", {"cache": {"namespace": "mine"}}).headers["x-knapcache"] == "miss"
    assert post("b", {"cache": {"namespace": "mine"}}).headers["x-knapcache"] == "hit"
    assert post("b", cache_control="max-age=0").headers["x-knapcache"] == "miss"
    sent = upstream.calls[-1].headers
    assert not {"cache-control", "cf-aig-skip-cache", "x-portkey-cache-force-refresh"} & set(sent)
