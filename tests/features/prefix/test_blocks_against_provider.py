"""Block ids and marks of the proxy against the fake provider's reading of the same bodies, which shares no code."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knapcache.features.prefix.blocks import read_blocks
from knapcache.features.prefix.marks import with_marks, with_ttl
from knapcache.keys.parse import parse_body
from knapcache.model import Endpoint
from knapcache.testing.prefix_provider.prompt import PromptBlock, anthropic_prompt, openai_prompt
from tests.support.examples import examples
from tests.support.marked_bodies import without_marks

Body = dict[str, Any]
WORDS = st.sampled_from(["", "a", "b", "a longer text", "ümläute"])
TEXTS = st.sampled_from(["a", "b", "a longer text", "ümläute"])
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}


def block(kind: str, text: str) -> Body:
    """Return a content block of Anthropic."""
    match kind:
        case "text":
            return {"type": "text", "text": text}
        case "tool_use":
            return {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"text": text}}
        case "tool_result":
            return {"type": "tool_result", "tool_use_id": "toolu_1", "content": text}
        case "parts":
            return {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": text}, IMAGE]}
        case "thinking":
            return {"type": "thinking", "thinking": text, "signature": "c2ln"}
        case _:
            return IMAGE


BLOCKS = st.builds(block, st.sampled_from(["text", "tool_use", "tool_result", "parts", "thinking", "image"]), WORDS)
TOOLS = st.lists(st.builds(lambda name: {"name": name or "x", "input_schema": {"type": "object"}}, WORDS), max_size=2)


@st.composite
def anthropic_bodies(draw: st.DrawFn) -> Body:
    body: Body = {"model": "claude-sonnet-4-6", "max_tokens": 9}
    if tools := draw(TOOLS):
        body["tools"] = tools
    system = draw(st.one_of(st.none(), TEXTS, st.lists(st.builds(block, st.just("text"), TEXTS), max_size=2)))
    if system is not None:
        body["system"] = system
    if choice := draw(st.sampled_from([None, {"type": "any"}])):
        body["tool_choice"] = choice
    content = st.one_of(TEXTS, st.lists(BLOCKS, min_size=1, max_size=3))
    message = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": content})
    body["messages"] = draw(st.lists(message, min_size=1, max_size=3))
    return body


@st.composite
def chat_bodies(draw: st.DrawFn) -> Body:
    body: Body = {"model": "gpt-5.6"}
    if tools := draw(TOOLS):
        body["tools"] = [{"type": "function", "function": tool} for tool in tools]
    part = st.one_of(
        st.builds(block, st.just("text"), WORDS), st.just({"type": "image_url", "image_url": {"url": "https://a/b"}})
    )
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = []
    for role in draw(st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), min_size=1, max_size=4)):
        message: Body = {"role": role, "content": draw(st.one_of(TEXTS, st.lists(part, min_size=1, max_size=2)))}
        if role == "tool":
            message["tool_call_id"] = draw(st.sampled_from(["call_1", "call_2"]))
        if role == "assistant" and draw(st.booleans()):
            message["tool_calls"] = [call]
        messages.append(message)
    body["messages"] = messages
    return body


def provider_blocks(shape: str, body: Body) -> list[PromptBlock]:
    prompt = anthropic_prompt if shape == Endpoint.MESSAGES else openai_prompt
    return prompt(body, len)


def check_same_prefixes(shape: str, first: Body, second: Body) -> None:
    """Two prefixes have equal ids if and only if they are the same for the provider."""
    ours = [read_blocks(shape, body, "seed") for body in (first, second)]
    theirs = [provider_blocks(shape, body) for body in (first, second)]
    assert ours[0] is not None
    assert ours[1] is not None
    assert [len(each.ids) for each in ours if each] == [len(each) for each in theirs]
    for ours_id, their in zip(ours[0].ids, theirs[0], strict=True):
        same = [their.digest == other.digest for other in theirs[1]]
        assert [ours_id == other for other in ours[1].ids] == same


def check_marks(shape: str, body: Body, chosen: list[int], ttls: list[float]) -> None:
    """The provider accepts marks on blocks that can carry one, finds them there, and sees the same prefixes."""
    found = read_blocks(shape, body, "seed")
    assert found is not None
    places = [at for at in sorted(set(chosen)) if at < len(found.ids) and found.markable[at]][:4]
    before = copy.deepcopy(body)
    marks = dict(zip(places, sorted(ttls, reverse=True), strict=False))
    marked = provider_blocks(shape, with_marks(shape, body, marks.items()))
    assert body == before
    assert [at for at, each in enumerate(marked) if each.ttl] == places
    if shape == Endpoint.MESSAGES:
        assert {at: each.ttl for at, each in enumerate(marked) if each.ttl} == marks
    assert [each.digest for each in marked] == [each.digest for each in provider_blocks(shape, body)]


TTLS = st.lists(st.sampled_from([300.0, 3600.0]), min_size=4, max_size=4)
CHOSEN = st.lists(st.integers(0, 9), max_size=6)
FEW = settings(max_examples=examples(30, 100), suppress_health_check=[HealthCheck.too_slow])


@given(anthropic_bodies(), anthropic_bodies(), CHOSEN, TTLS)
@FEW
def test_messages(first: Body, second: Body, chosen: list[int], ttls: list[float]) -> None:
    check_same_prefixes(Endpoint.MESSAGES, first, second)
    check_same_prefixes(
        Endpoint.MESSAGES, first, {**second, **{k: first[k] for k in ("tools", "system") if k in first}}
    )
    check_same_prefixes(Endpoint.MESSAGES, first, {**first, "messages": first["messages"] + second["messages"]})
    check_marks(Endpoint.MESSAGES, first, chosen, ttls)


@given(chat_bodies(), chat_bodies(), CHOSEN, TTLS)
@FEW
def test_chat(first: Body, second: Body, chosen: list[int], ttls: list[float]) -> None:
    check_same_prefixes(Endpoint.CHAT, first, second)
    check_same_prefixes(Endpoint.CHAT, first, {**first, "messages": first["messages"] + second["messages"]})
    check_marks(Endpoint.CHAT, first, chosen, ttls)


def test_marks_of_a_parsed_body_are_changed_and_removed() -> None:
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    body = {"model": "claude-sonnet-4-6", "messages": [{"role": "user", "content": [marked]}]}
    parsed = parse_body(json.dumps(body).encode())
    assert [each.ttl for each in anthropic_prompt(with_ttl(Endpoint.MESSAGES, parsed, 3600.0), len)] == [3600.0]
    assert [each.ttl for each in anthropic_prompt(without_marks(Endpoint.MESSAGES, parsed), len)] == [0.0]
    assert parsed == body
