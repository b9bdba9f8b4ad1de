"""What changes the ids of blocks, their sizes and where they can be marked."""

from __future__ import annotations

from typing import Any

import pytest

from knapcache.features.prefix.blocks import BodyBlocks, read_blocks
from knapcache.features.prefix.shapes import MEDIA_SIZE, SAMPLE
from knapcache.keys.parse import parse_body
from knapcache.model import Endpoint

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 50_000}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "21 °C"}
BODY: dict[str, Any] = {
    "model": "claude",
    "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
    "system": "Be brief.",
    "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"n": 1}}]},
        {"role": "user", "content": [RESULT]},
    ],
}


def read(body: dict[str, Any], shape: str = Endpoint.MESSAGES) -> BodyBlocks:
    found = read_blocks(shape, body, "model")
    assert found is not None
    return found


def same_start(one: BodyBlocks, other: BodyBlocks) -> int:
    """Return how many blocks have the same ids."""
    return sum(a == b for a, b in zip(one.ids, other.ids, strict=False))


def test_a_request_that_continues_another_has_its_ids() -> None:
    longer = {**BODY, "messages": [*BODY["messages"], {"role": "assistant", "content": "21 °C."}]}
    found = read(BODY)
    assert (found.system, found.kind, found.markable) == (2, "tool", [True] * 5)
    assert read(longer).ids[:5] == found.ids
    assert read(longer).kind == "text"
    assert found.sizes[-1] - found.sizes[-2] == len("21 °C".encode())


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"tool_choice": {"type": "any"}}, 2),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 2),
        ({"output_config": {"format": {"type": "json_schema"}}}, 1),
        ({"speed": "fast"}, 1),
        ({"tools": []}, 0),
        ({"system": "Be verbose."}, 1),
        ({"temperature": 0.5, "max_tokens": 5, "stream": True, "cache_control": {"type": "ephemeral"}}, 5),
        ({"tool_choice": None}, 5),
    ],
)
def test_fields_change_what_the_provider_says_they_invalidate(change: dict[str, Any], kept: int) -> None:
    assert same_start(read(BODY), read({**BODY, **change})) == kept


def test_an_image_changes_the_ids_of_all_messages() -> None:
    for content in ([IMAGE], [{**RESULT, "content": [IMAGE]}]):
        found = read({**BODY, "messages": [*BODY["messages"], {"role": "user", "content": content}]})
        assert same_start(read(BODY), found) == 2
        assert len(found.ids) == len(found.sizes) == len(found.markable) == 6
        assert found.sizes[-1] - found.sizes[-2] == MEDIA_SIZE
    both = [read({"messages": [{"role": "user", "content": [IMAGE, {"type": "text", "text": t}]}]}) for t in "ab"]
    assert same_start(*both) == 1


@pytest.mark.parametrize("at", [0, 25_000, 49_999, SAMPLE - 1])
def test_images_are_told_apart(at: int) -> None:
    data = IMAGE["source"]["data"]  # type: ignore[index]
    other = {"type": "image", "source": {**IMAGE["source"], "data": f"{data[:at]}B{data[at + 1 :]}"}}  # type: ignore[dict-item]
    bodies = [{"messages": [{"role": "user", "content": [image]}]} for image in (IMAGE, other)]
    assert same_start(*map(read, bodies)) == 0


def test_a_result_as_text_and_as_one_block_are_the_same() -> None:
    listed = {**RESULT, "content": [{"type": "text", "text": "21 °C"}]}
    assert read({"messages": [{"role": "user", "content": [listed]}]}) == read(
        {"messages": [{"role": "user", "content": [RESULT]}]}
    )
    failed = {**RESULT, "is_error": True}
    assert (
        read({"messages": [{"role": "user", "content": [failed]}]}).ids
        != read({"messages": [{"role": "user", "content": [RESULT]}]}).ids
    )


def test_numbers_that_no_double_holds_are_part_of_the_ids() -> None:
    block = b'{"type": "tool_use", "id": "a", "name": "f", "input": {"n": %b}}'
    text = b'{"messages": [{"role": "assistant", "content": [' + block + b"]}]}"
    one, other = (parse_body(text % number) for number in (b"123456789012345678901", b"123456789012345678902"))
    assert same_start(read(one), read(other)) == 0
    assert read(one) == read(parse_body(text % b"123456789012345678901"))


def test_openai_counts_leading_system_messages_and_tools() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "21"},
        ],
    }
    found = read(body, Endpoint.CHAT)
    assert (found.system, found.kind) == (2, "tool")
    assert found.markable == [False, True, True, False, True]
    assert same_start(found, read({**body, "tool_choice": "required"}, Endpoint.CHAT)) == 5
    assert same_start(found, read({**body, "reasoning_effort": "high"}, Endpoint.CHAT)) == 0


def test_items_of_openai_responses() -> None:
    body: dict[str, Any] = {
        "instructions": "Be brief.",
        "input": [
            {"role": "developer", "content": "Metric units."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "21"},
        ],
    }
    found = read(body, Endpoint.RESPONSES)
    assert (found.system, found.kind) == (2, "tool")
    assert found.markable == [False, True, True, False, False, True]
    assert (
        read({"input": "Hi"}, Endpoint.RESPONSES).ids
        == read({"input": [{"role": "user", "content": "Hi"}]}, Endpoint.RESPONSES).ids
    )


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (Endpoint.EMBEDDINGS, {"input": "a"}),
        (Endpoint.COMPLETIONS, {"prompt": "a"}),
        (Endpoint.MESSAGES, {}),
        (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": {"type": "text", "text": "a"}}]}),
        (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": ["a"]}]}),
        (Endpoint.MESSAGES, {"messages": [{"content": "a"}]}),
        (Endpoint.MESSAGES, {"messages": [], "tools": [""]}),
        (Endpoint.CHAT, {"messages": "a"}),
        (Endpoint.RESPONSES, {"input": None}),
    ],
)
def test_other_bodies_are_not_understood(shape: str, body: dict[str, Any]) -> None:
    assert read_blocks(shape, body, "model") is None
