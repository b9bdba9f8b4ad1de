"""OpenAI's SDK gets the same answers with and without the cache, in every form, for one call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest

from knapcache import Cache
from knapcache.errors import install_command
from knapcache.integrations.openai import CacheTransport, async_client, client
from knapcache.testing import FakeUpstream

HELLO: Any = [{"role": "user", "content": "Hello there, all of you"}]
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
FLAT_TOOL: Any = {"type": "function", "strict": None, **TOOL["function"]}

VARIANTS: dict[str, dict[str, Any]] = {
    "text": {},
    "tools": {"tools": [TOOL]},
    "reasoning": {"reasoning_effort": "low"},
    "log probabilities": {"logprobs": True},
    "three choices": {"n": 3},
}


@pytest.fixture
def sdk(cache: Cache, upstream: FakeUpstream) -> Iterator[openai.OpenAI]:
    with client(cache, base_url=upstream.openai_url, api_key="one", max_retries=0) as sdk:
        yield sdk


def plain(answer: Any) -> dict[str, Any]:
    """Dump without null fields, which providers may omit."""
    return answer.model_dump(exclude_none=True)  # type: ignore[no-any-return]


def assembled(sdk: openai.OpenAI, **options: Any) -> Any:
    """Assemble a stream with the SDK's own code, which is independent of ours."""
    with sdk.chat.completions.stream(model="gpt-4o", messages=HELLO, **options) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion()


def same_but_for_parsed(one: Any, other: Any) -> bool:
    def bare(answer: Any) -> Any:
        found = plain(answer)
        for choice in found["choices"]:
            choice["message"].pop("parsed", None)
            for call in choice["message"].get("tool_calls") or []:
                call.pop("index", None)
                call["function"].pop("parsed_arguments", None)
        return found

    return bool(bare(one) == bare(other))


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_a_stored_plain_answer_is_served_plain_and_streamed(
    sdk: openai.OpenAI, upstream: FakeUpstream, options: dict[str, Any]
) -> None:
    first = sdk.chat.completions.create(model="gpt-4o", messages=HELLO, **options)
    again = sdk.chat.completions.create(model="gpt-4o", messages=HELLO, **options)
    assert plain(again) == plain(first)
    streamed = assembled(sdk, stream_options={"include_usage": True}, **options)
    assert same_but_for_parsed(streamed, first)
    assert upstream.count() == 1


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_a_stored_stream_is_served_chunk_by_chunk_and_plain(
    sdk: openai.OpenAI, upstream: FakeUpstream, options: dict[str, Any]
) -> None:
    first, again = (
        [plain(c) for c in sdk.chat.completions.create(model="gpt-4o", messages=HELLO, stream=True, **options)]
        for _ in range(2)
    )
    assert again == first
    assert all("usage" not in chunk for chunk in first)  # the caller did not request for it, the cache did
    assert upstream.calls[0].body["stream_options"] == {"include_usage": True}
    answers = sdk.chat.completions.create(model="gpt-4o", messages=HELLO, **options)
    assert upstream.count() == 1
    direct = openai.OpenAI(base_url=upstream.openai_url, api_key="one").chat.completions
    uncached = plain(direct.create(model="gpt-4o", messages=HELLO, **options))
    assert plain(answers) == {**uncached, "id": "chatcmpl-1"}


def test_a_stream_has_usage_if_it_is_asked_for(sdk: openai.OpenAI, upstream: FakeUpstream) -> None:
    request: Any = {"model": "gpt-4o", "messages": HELLO, "stream": True}
    without = list(sdk.chat.completions.create(**request))
    with_usage = list(sdk.chat.completions.create(**request, stream_options={"include_usage": True}))
    assert [c.choices for c in with_usage[:-1]] == [c.choices for c in without]
    assert with_usage[-1].choices == []
    assert with_usage[-1].usage
    assert with_usage[-1].usage.total_tokens > 0
    assert upstream.count() == 1


def test_the_fields_and_headers_of_a_hit(sdk: openai.OpenAI, upstream: FakeUpstream) -> None:
    list(sdk.chat.completions.create(model="gpt-4o", messages=HELLO, stream=True, reasoning_effort="low"))
    again = sdk.chat.completions.with_raw_response.create(model="gpt-4o", messages=HELLO, reasoning_effort="low")
    message: Any = again.parse().choices[0].message
    assert message.reasoning_content == "They spoke; I answer."
    assert again.headers["x-knapcache"] == "hit"
    assert again.headers["x-request-id"] == "req_1"
    assert float(again.headers["x-knapcache-saved-usd"]) > 0
    assert int(again.headers["age"]) >= 0
    assert "set-cookie" not in again.headers  # another client's
    assert upstream.count() == 1


def test_legacy_completions(sdk: openai.OpenAI, upstream: FakeUpstream) -> None:
    request: Any = {"model": "gpt-3.5-turbo-instruct", "prompt": "Hello there, all of you", "n": 2}
    first = sdk.completions.create(**request)
    assert plain(sdk.completions.create(**request)) == plain(first)
    texts = ["", ""]
    for chunk in sdk.completions.create(**request, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in first.choices]
    assert upstream.count() == 1
    streamed = [plain(c) for c in sdk.completions.create(**{**request, "n": 1}, stream=True)]
    assert [plain(c) for c in sdk.completions.create(**{**request, "n": 1}, stream=True)] == streamed
    assert sdk.completions.create(**{**request, "n": 1}).choices[0].text == first.choices[0].text
    assert upstream.count() == 2


@pytest.mark.parametrize("options", [{}, {"tools": [FLAT_TOOL]}], ids=["text", "tools"])
@pytest.mark.parametrize("stream_first", [False, True])
def test_responses_are_served_in_both_forms(
    sdk: openai.OpenAI, upstream: FakeUpstream, options: dict[str, Any], stream_first: bool
) -> None:
    request: Any = {"model": "gpt-4o", "input": "Hello there, all of you", **options}

    def streamed() -> Any:
        with sdk.responses.stream(**request) as stream:
            events = [event.type for event in stream]
            assert events[0] == "response.created"
            assert events[-1] == "response.completed"
            return stream.get_final_response()

    first = streamed() if stream_first else sdk.responses.create(**request)
    second = sdk.responses.create(**request) if stream_first else streamed()
    assert first.id == second.id
    assert first.output_text == second.output_text
    assert [item.type for item in first.output] == [item.type for item in second.output]
    assert first.usage == second.usage
    assert upstream.count() == 1


def test_the_deltas_of_a_response_add_up_to_it(sdk: openai.OpenAI, upstream: FakeUpstream) -> None:
    whole = sdk.responses.create(model="gpt-4o", input="Hello there, all of you")
    events = list(sdk.responses.create(model="gpt-4o", input="Hello there, all of you", stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert upstream.count() == 1


def vectors(answer: Any) -> list[list[float]]:
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    return [item.embedding for item in answer.data]


def test_embeddings_are_stored_per_text(sdk: openai.OpenAI, upstream: FakeUpstream) -> None:
    def embed(texts: Any, **options: Any) -> Any:
        return sdk.embeddings.create(model="text-embedding-3-small", input=texts, **options)

    (one,) = vectors(embed("one"))
    assert vectors(embed(["one"])) == [one]
    assert upstream.count() == 1
    mixed = embed(["two words", "one", "three", "two words"])
    assert upstream.calls[-1].body["input"] == ["two words", "three"]
    two, again, three, two_again = vectors(mixed)
    assert again == one
    assert two == two_again != three
    assert mixed.usage.prompt_tokens == 2 + 1 + 1 + 2
    assert vectors(embed(["three", "two words"])) == [three, two]
    assert upstream.count() == 2
    assert vectors(embed("one", encoding_format="float")) != [one]  # another encoding is another entry
    assert upstream.count() == 3


def test_embeddings_report_how_many_items_were_hits(sdk: openai.OpenAI) -> None:
    embed = sdk.embeddings.with_raw_response.create
    assert embed(model="e", input=["a", "b"]).headers["x-knapcache-hits"] == "0/2"
    assert embed(model="e", input=["a", "b", "c"]).headers["x-knapcache-hits"] == "2/3"
    answer = embed(model="e", input=["c", "a", "b"])
    assert (answer.headers["x-knapcache"], answer.headers["x-knapcache-hits"]) == ("hit", "3/3")


def test_other_endpoints_pass_untouched(sdk: openai.OpenAI, upstream: FakeUpstream) -> None:
    for _ in range(2):
        answer = sdk.models.with_raw_response.list()
        assert "x-knapcache" not in answer.headers
        assert answer.headers["set-cookie"]
    assert upstream.count("/models") == 2


def test_requests_without_a_key_are_sent(sdk: openai.OpenAI, upstream: FakeUpstream, cache: Cache) -> None:
    for _ in range(2):
        answer = sdk.responses.with_raw_response.create(model="gpt-4o", input="Hi", conversation="conv_1")
        assert answer.headers["x-knapcache"] == "bypass"
    assert upstream.count() == 2
    assert cache.stats().bypasses == 2


@pytest.mark.parametrize("lib", [httpx, httpx2])
def test_httpx_and_httpx2(cache: Cache, upstream: FakeUpstream, lib: Any) -> None:
    http = lib.Client(transport=CacheTransport(cache))
    with openai.OpenAI(base_url=upstream.openai_url, api_key="one", http_client=http) as sdk:
        answers = [sdk.chat.completions.create(model="gpt-4o", messages=HELLO).id for _ in range(2)]
        chunks = list(sdk.chat.completions.create(model="gpt-4o", messages=HELLO, stream=True))
    assert {*answers, *(chunk.id for chunk in chunks)} == {"chatcmpl-1"}
    assert upstream.count() == 1


async def test_the_async_client(cache: Cache, upstream: FakeUpstream) -> None:
    async with async_client(cache, base_url=upstream.openai_url, api_key="one", max_retries=0) as sdk:
        request: Any = {"model": "gpt-4o", "messages": HELLO}
        streams = []
        for _ in range(2):
            stream = await sdk.chat.completions.create(**request, stream=True)
            streams.append([plain(chunk) async for chunk in stream])
        assert streams[0] == streams[1]
        assert (await sdk.chat.completions.create(**request)).id == "chatcmpl-1"
        assert upstream.count() == 1
        answers = [await sdk.chat.completions.create(**{**request, "n": 2}) for _ in range(2)]
        assert answers[0] == answers[1]
        assert upstream.count() == 2
        vectors_ = [await sdk.embeddings.create(model="e", input=texts) for texts in (["a", "b"], ["b", "a"], "a")]
        assert vectors_[0].data[0].embedding == vectors_[1].data[1].embedding == vectors_[2].data[0].embedding
        assert upstream.count() == 3
        responses = [await sdk.responses.create(model="gpt-4o", input="Hi") for _ in range(2)]
        assert responses[0].id == responses[1].id
        assert len([m async for m in await sdk.models.list()]) == 0
        bypassed = await sdk.responses.with_raw_response.create(model="gpt-4o", input="Hi", conversation="c")
        assert bypassed.headers["x-knapcache"] == "bypass"


def test_a_missing_sdk_is_reported(monkeypatch: pytest.MonkeyPatch, cache: Cache) -> None:
    import sys

    from knapcache import MissingExtra

    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("openai"))):
        client(cache)
