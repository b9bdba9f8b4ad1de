"""Answers of every endpoint, for Hypothesis: whole, in plain form, with all the fields that a cache has lost before."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

words = st.text(st.characters(codec="utf-8"), max_size=80)
names = st.text("abcdefgh_", min_size=1, max_size=10)
counts = st.integers(0, 10**6)
arguments = st.dictionaries(names, st.one_of(words, counts, st.none()), max_size=3).map(json.dumps)
scalars = st.one_of(words, counts, st.booleans(), st.none())


@st.composite
def tokens(draw: st.DrawFn, content: str) -> list[dict[str, Any]]:
    """Tokens with log probabilities that spell a content."""
    found = []
    at = 0
    while at < len(content):
        end = min(len(content), at + draw(st.integers(1, 9)))
        found.append({"token": content[at:end], "logprob": -0.5, "bytes": None, "top_logprobs": []})
        at = end
    return found


@st.composite
def chat_choice(draw: st.DrawFn, index: int) -> dict[str, Any]:
    content = draw(st.none() | words)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if draw(st.booleans()):
        message["refusal"] = draw(st.none() | words)
    if draw(st.booleans()):
        message["reasoning_content"] = draw(words)
    if draw(st.booleans()):
        calls = draw(st.lists(st.tuples(names, arguments), max_size=3))
        message["tool_calls"] = [
            {"id": f"call_{k}", "type": "function", "function": {"name": name, "arguments": text}}
            for k, (name, text) in enumerate(calls)
        ]
    logprobs = None
    if content and draw(st.booleans()):
        logprobs = {"content": draw(tokens(content)), "refusal": None}
    reason = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


def usages() -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda a, b: {
            "prompt_tokens": a,
            "completion_tokens": b,
            "total_tokens": a + b,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        counts,
        counts,
    )


@st.composite
def chats(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 3))
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o"}
    extra = draw(st.dictionaries(st.sampled_from(["system_fingerprint", "citations", "x_own"]), scalars, max_size=3))
    choices = [draw(chat_choice(index)) for index in range(n)]
    return {**answer, **extra, "choices": choices, "usage": draw(usages())}


@st.composite
def completions(draw: st.DrawFn) -> dict[str, Any]:
    choices = []
    for index in range(draw(st.integers(1, 3))):
        text = draw(words)
        logprobs = None
        if text and draw(st.booleans()):
            spelled = [token["token"] for token in draw(tokens(text))]
            logprobs = {"tokens": spelled, "token_logprobs": [-0.1] * len(spelled), "top_logprobs": None}
        choices.append({"text": text, "index": index, "logprobs": logprobs, "finish_reason": "stop"})
    answer = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "gpt-3.5-turbo-instruct"}
    return {**answer, "choices": choices, "usage": draw(usages())}


def message_blocks() -> st.SearchStrategy[dict[str, Any]]:
    citation = st.builds(lambda text: {"type": "char_location", "cited_text": text}, words)
    return st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, words),
        st.builds(lambda t, c: {"type": "text", "text": t, "citations": c}, words, st.lists(citation, min_size=1)),
        st.builds(lambda t, s: {"type": "thinking", "thinking": t, "signature": s}, words, words),
        st.builds(
            lambda name, given: {"type": "tool_use", "id": "toolu_1", "name": name, "input": given},
            names,
            st.dictionaries(names, scalars, max_size=3),
        ),
        st.just({"type": "redacted_thinking", "data": "abc"}),
    )


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": draw(st.lists(message_blocks(), max_size=4)),
        "stop_reason": draw(st.sampled_from(["end_turn", "max_tokens", "tool_use"])),
        "stop_sequence": None,
        "usage": {"input_tokens": draw(counts), "output_tokens": draw(counts), "cache_read_input_tokens": 0},
    }


def output_items() -> st.SearchStrategy[dict[str, Any]]:
    text = st.builds(
        lambda t, notes: {"type": "output_text", "text": t, "annotations": notes, "logprobs": []},
        words,
        st.lists(st.just({"type": "url_citation", "url": "https://example.com"}), max_size=2),
    )
    refusal = st.builds(lambda t: {"type": "refusal", "refusal": t}, words)
    return st.one_of(
        st.builds(
            lambda parts: {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": parts,
            },
            st.lists(text | refusal, max_size=3),
        ),
        st.builds(
            lambda name, given: {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": name,
                "arguments": given,
                "status": "completed",
            },
            names,
            arguments,
        ),
        st.builds(
            lambda t: {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": t}]}, words
        ),
        st.just({"type": "web_search_call", "id": "ws_1", "status": "completed"}),
    )


@st.composite
def responses(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "gpt-4o",
        "output": draw(st.lists(output_items(), max_size=4)),
        "usage": {"input_tokens": draw(counts), "output_tokens": draw(counts), "total_tokens": 0},
    }
