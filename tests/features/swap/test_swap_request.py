"""What swap reads of a request: why it is never swapped, what makes a frame, and the first turn of a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from knapcache.features.swap.request import SwapRequest, read_request
from knapcache.model import Endpoint

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}
ASSISTANT = {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}
CHAT: dict[str, Any] = {"model": "m", "messages": [SYSTEM, USER]}


def read(body: dict[str, Any], endpoint: Endpoint = Endpoint.CHAT) -> SwapRequest:
    found = read_request(endpoint, body)
    assert isinstance(found, SwapRequest), found
    return found


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": [{}]}, "tools"),
        ({"functions": [{}]}, "tools"),
        ({"tool_choice": "auto"}, "tools"),
        ({"web_search_options": {}}, "tools"),
        ({"mcp_servers": [{"type": "url", "url": "https://mcp.example"}]}, "tools"),
        ({"messages": [USER, ASSISTANT | {"content": "", "tool_calls": [{"id": "1"}]}, USER]}, "tools"),
        ({"messages": [USER, ASSISTANT | {"content": "", "function_call": {"name": "f"}}, USER]}, "tools"),
        ({"messages": [USER, {"role": "tool", "content": "5", "tool_call_id": "1"}]}, "tools"),
        ({"messages": [USER, {"role": "function", "content": "5", "name": "f"}]}, "tools"),
        ({"messages": [USER, ASSISTANT | {"content": [{"type": "tool_use"}]}]}, "image, file or tool"),
        ({"messages": [USER | {"content": [{"type": "tool_result", "content": "5"}]}]}, "image, file or tool"),
        ({"previous_response_id": "resp_1"}, "conversation of the provider"),
        ({"conversation": "conv_1"}, "conversation of the provider"),
        ({"container": "c_1"}, "conversation of the provider"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt of the provider"),
        ({"n": 2}, "several answers"),
        ({"best_of": 2}, "several answers"),
        ({"logprobs": True}, "log probabilities"),
        ({"top_logprobs": 1}, "log probabilities"),
        ({"modalities": ["text", "audio"]}, "audio"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"messages": []}, "no conversation"),
        ({"messages": [USER, 1]}, "no conversation"),
        ({"messages": {}}, "no conversation"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image, file or tool"),
        ({"messages": [{"role": "user", "content": ["Hello"]}]}, "image, file or tool"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "image, file or tool"),
        ({"messages": [SYSTEM, ASSISTANT]}, "no user text"),
    ],
)
def test_requests_that_are_never_swapped(fields: dict[str, Any], reason: str) -> None:
    assert read_request(Endpoint.CHAT, CHAT | fields) == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"previous_response_id": "resp_1"}, "conversation of the provider"),
        ({"prompt": {"id": "pmpt_1", "version": "2"}}, "prompt of the provider"),
        ({"input": [USER, {"type": "function_call_output", "call_id": "1", "output": "5"}]}, "image, file or tool"),
    ],
)
def test_responses_that_are_never_swapped(fields: dict[str, Any], reason: str) -> None:
    assert read_request(Endpoint.RESPONSES, {"model": "m", "input": "Hello", **fields}) == reason


def test_embeddings_are_never_swapped() -> None:
    assert read_request(Endpoint.EMBEDDINGS, {"model": "m", "input": "Hello"}) == "embeddings"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "n": 1, "best_of": 1, "logprobs": False, "top_logprobs": 0},
        {"modalities": ["text"], "audio": None, "temperature": 1},
        {"mcp_servers": [], "web_search_options": None, "previous_response_id": None, "prompt": None},
        {"messages": [SYSTEM, USER | {"content": "Bye"}]},
    ],
)
def test_other_fields_and_another_question_belong_to_the_same_frame(fields: dict[str, Any]) -> None:
    assert read(CHAT | fields) == read(CHAT)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [USER]},
        {"messages": [SYSTEM | {"content": "Be kind."}, USER]},
        {"messages": [SYSTEM | {"role": "developer"}, USER]},
        {"system": "Be kind."},
        {"instructions": "Be kind."},
        {"response_format": {"type": "json_object"}},
        {"text": {}},
        {"output_config": {}},
        {"output_format": {}},
    ],
)
def test_another_system_prompt_or_form_makes_another_frame(fields: dict[str, Any]) -> None:
    assert read(CHAT | fields).frame != read(CHAT).frame


def test_a_later_turn_has_the_first_one() -> None:
    assert read(CHAT).opening is None
    assert read(CHAT | {"messages": [SYSTEM, USER, ASSISTANT, USER]}).opening == CHAT
    assert read(CHAT | {"messages": [USER, SYSTEM]}).opening is None
    later = {"model": "m", "input": [USER, ASSISTANT, USER]}
    assert read(later, Endpoint.RESPONSES).opening == {"model": "m", "input": [USER]}
    assert read({"model": "m", "prompt": "Hello"}, Endpoint.COMPLETIONS).opening is None
