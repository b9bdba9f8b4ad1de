"""A marked request is the request with marks, and nothing else changes: neither its meaning, its key nor its blocks."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from knapcache.errors import Uncacheable
from knapcache.features.prefix.blocks import BodyBlocks, read_blocks
from knapcache.features.prefix.marks import with_cache_key, with_marks, with_ttl
from knapcache.features.prefix.shapes import LONG_TTL, OPENAI_TTL, SHORT_TTL
from knapcache.keys import Keyer
from knapcache.keys.parse import parse_body
from knapcache.model import Endpoint
from tests.support.examples import examples
from tests.support.marked_bodies import BODIES, blocks_of, json_values, marked_blocks, normal, without_marks

KEYER = Keyer(b"0123456789abcdef")
OPENAI = (Endpoint.CHAT, Endpoint.RESPONSES)
SHAPES = [Endpoint.MESSAGES, Endpoint.CHAT, Endpoint.RESPONSES]
EXAMPLES = examples(20, 60)


def read(shape: str, body: dict[str, Any], seed: Any = "model") -> BodyBlocks:
    found = read_blocks(shape, body, seed)
    assert found is not None
    return found


def value_of(shape: str, ttl: float) -> dict[str, str]:
    """Return what the provider's documentation says that a mark is."""
    if shape in OPENAI:
        return {"mode": "explicit"}
    return {"type": "ephemeral", "ttl": "1h"} if ttl == LONG_TTL else {"type": "ephemeral"}


@st.composite
def marked_requests(draw: st.DrawFn, shape: str) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    body = draw(BODIES[shape])
    places = [block for block, markable in enumerate(read(shape, body).markable) if markable]
    chosen = draw(st.lists(st.sampled_from(places), unique=True, max_size=4)) if places else []
    long = draw(st.integers(0, 4))
    ttls = [LONG_TTL] * long + [SHORT_TTL] * 4
    marks = list(zip(sorted(chosen), ttls, strict=False))
    return body, [(block, OPENAI_TTL) for block, _ in marks] if shape in OPENAI else marks


@pytest.mark.parametrize("shape", SHAPES)
def test_marks_are_placed_and_nothing_else_changes(shape: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(marked_requests(shape), st.randoms(use_true_random=False))
    def check(request: tuple[dict[str, Any], list[tuple[int, float]]], shuffler: Any) -> None:
        body, marks = request
        before = copy.deepcopy(body)
        parsed = parse_body(orjson.dumps(body))
        shuffled = shuffler.sample(marks, len(marks))
        found = with_marks(shape, parsed, shuffled)
        assert parsed == before
        assert with_marks(shape, parsed, marks) == found
        assert marked_blocks(shape, found) == {block: value_of(shape, ttl) for block, ttl in marks}
        assert normal(shape, without_marks(shape, found)) == normal(shape, before)
        assert found.get("prompt_cache_options") == ({"mode": "explicit"} if shape in OPENAI else None)

        plain, read_again = read(shape, body), read(shape, found)
        assert read_again == plain._replace(marks=tuple(marks), managed=bool(marks) or shape in OPENAI)
        assert len(plain.ids) == len(plain.sizes) == len(plain.markable) == len(blocks_of(shape, body))
        assert read(shape, normal(shape, body)).ids == plain.ids

        assert KEYER.read(shape, found).keys == KEYER.read(shape, without_marks(shape, found)).keys
        assert KEYER.read(shape, normal(shape, found)).keys == KEYER.read(shape, normal(shape, body)).keys

        if marks and shape not in OPENAI:
            changed = with_ttl(shape, found, LONG_TTL)
            assert marked_blocks(shape, changed) == {block: value_of(shape, LONG_TTL) for block, _ in marks}
            assert without_marks(shape, changed) == without_marks(shape, found)
            assert with_ttl(shape, with_ttl(shape, found, SHORT_TTL), LONG_TTL) == changed

    check()


@pytest.mark.parametrize("shape", SHAPES)
def test_ids_change_from_the_changed_block_on(shape: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(BODIES[shape], st.data())
    def check(body: dict[str, Any], data: st.DataObject) -> None:
        plain = read(shape, body)
        assert len(set(plain.ids)) == len(plain.ids)
        assert plain.sizes == sorted(plain.sizes)
        assert not set(plain.ids) & set(read(shape, body, "another model").ids)
        body = normal(shape, body)
        blocks = blocks_of(shape, body)
        texts = [k for k, each in enumerate(blocks) if isinstance(each, dict) and isinstance(each.get("text"), str)]
        assume(texts)
        at = data.draw(st.sampled_from(texts))
        blocks[at]["text"] += "!"
        changed = read(shape, body)
        assert changed.ids[:at] == plain.ids[:at]
        assert not set(changed.ids[at:]) & set(plain.ids)

    check()


@pytest.mark.parametrize("shape", SHAPES)
def test_odd_bodies_are_read_or_refused(shape: str) -> None:
    """Any part may be replaced by any JSON. A body that is understood can be marked; none raises."""

    @settings(max_examples=EXAMPLES)
    @given(BODIES[shape], json_values, st.data())
    def check(body: dict[str, Any], junk: Any, data: st.DataObject) -> None:
        owner: Any = body
        while True:
            step = data.draw(st.sampled_from(sorted(owner) if isinstance(owner, dict) else range(len(owner))))
            if not isinstance(owner[step], (dict, list)) or not owner[step] or data.draw(st.booleans()):
                owner[step] = junk
                break
            owner = owner[step]
        found = read_blocks(shape, body, "model")
        with contextlib.suppress(Uncacheable):
            assert KEYER.read(shape, body).keys
        assert found is None or all(block in range(len(found.ids)) for block, _ in found.marks)
        if found is not None and not found.managed and True in found.markable:
            last = max(block for block, markable in enumerate(found.markable) if markable)
            again = read(shape, with_marks(shape, body, [(last, SHORT_TTL)]))
            assert again.ids == found.ids
            assert [block for block, _ in again.marks] == [last]

    check()


BODY: dict[str, Any] = {
    "model": "claude",
    "system": "Be brief.",
    "messages": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"}]},
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "Hi"}]},
    ],
}


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        ([(0, SHORT_TTL), (1, LONG_TTL)], "long TTL must come before"),
        ([(0, SHORT_TTL), (0, SHORT_TTL)], "two marks"),
        ([(k, SHORT_TTL) for k in range(5)], "5 marks were given; at most 4"),
        ([(0, 60.0)], "a TTL must be 300 or 3600 seconds, not 60.0"),
        ([(2, SHORT_TTL)], "cannot carry a mark"),
        ([(3, SHORT_TTL)], "cannot carry a mark"),
        ([(5, SHORT_TTL)], "block 5 was given; the body has 5 blocks"),
        ([(-1, SHORT_TTL)], "block -1 was given"),
    ],
)
def test_marks_that_the_provider_would_refuse_raise(marks: list[tuple[int, float]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        with_marks(Endpoint.MESSAGES, BODY, marks)


def test_blocks_that_openai_cannot_mark_raise() -> None:
    body = {"tools": [{"type": "function"}], "messages": [{"role": "assistant", "content": "Hi"}]}
    for block in (0, 1):
        with pytest.raises(ValueError, match="cannot carry a mark"):
            with_marks(Endpoint.CHAT, body, [(block, OPENAI_TTL)])
    with pytest.raises(ValueError, match="cannot carry a mark"):
        with_marks(Endpoint.RESPONSES, {"instructions": "Be brief.", "input": "Hi"}, [(0, OPENAI_TTL)])
    odd = {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]}
    assert read(Endpoint.CHAT, odd).markable == [False]
    assert read(Endpoint.CHAT, {"messages": [{"role": "user", "content": [{"type": None}]}]}).markable == [False]
    output = {"type": "output_text", "text": "a"}
    assert read(Endpoint.RESPONSES, {"input": [{"role": "user", "content": [output]}]}).markable == [False]
    with pytest.raises(ValueError, match="shape must be one of"):
        with_marks(Endpoint.EMBEDDINGS, {"input": "a"}, [])


def test_only_the_path_to_a_mark_is_copied() -> None:
    found = with_marks(Endpoint.MESSAGES, BODY, [(0, LONG_TTL), (4, SHORT_TTL)])
    assert found["system"] == [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ]
    assert found["messages"][2]["content"][1] == {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    assert found["messages"][2]["content"][0] is BODY["messages"][2]["content"][0]
    assert all(found["messages"][k] is BODY["messages"][k] for k in (0, 1))
    assert with_marks(Endpoint.MESSAGES, BODY, []) is BODY


def test_a_text_as_input_becomes_a_message_of_the_user() -> None:
    found = with_marks(Endpoint.RESPONSES, {"model": "gpt", "input": "Hi"}, [(0, OPENAI_TTL)])
    part = {"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert found["input"] == [{"role": "user", "content": [part]}]


def test_an_automatic_mark_and_marks_in_results_get_another_ttl() -> None:
    inner = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [inner]}
    body = {
        "cache_control": {"type": "ephemeral", "ttl": "5m"},
        "messages": [{"role": "user", "content": [result, {"type": "text", "text": "b", "cache_control": None}]}],
    }
    found = with_ttl(Endpoint.MESSAGES, body, LONG_TTL)
    assert found["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert found["messages"][0]["content"][0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert found["messages"][0]["content"][1] == body["messages"][0]["content"][1]  # type: ignore[index]
    assert read(Endpoint.MESSAGES, body).marks == ((0, SHORT_TTL), (1, SHORT_TTL))
    assert read(Endpoint.MESSAGES, found).marks == ((0, LONG_TTL), (1, LONG_TTL))
    assert not read(Endpoint.MESSAGES, without_marks(Endpoint.MESSAGES, body)).managed


def test_marks_of_openai_have_one_ttl() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"ttl": "5m"}}]}]}
    assert with_ttl(Endpoint.CHAT, body, LONG_TTL) is body


def test_null_is_no_mark_and_options_of_the_caller_are_control() -> None:
    null = {"messages": [{"role": "user", "content": [{"type": "text", "text": "b", "cache_control": None}]}]}
    assert not read(Endpoint.MESSAGES, null).managed
    options = {"messages": [], "prompt_cache_options": {"mode": "explicit"}}
    assert read(Endpoint.CHAT, options).managed


def test_a_mark_without_a_block_is_none() -> None:
    empty = {"role": "user", "content": [], "cache_control": {"type": "ephemeral"}}
    found = read(Endpoint.CHAT, {"messages": [empty]})
    assert (found.marks, found.managed) == ((), True)


def test_marks_of_the_caller_are_in_the_order_of_blocks() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    message = {"role": "user", "content": [part, {"type": "text", "text": "b"}], "cache_control": {"ttl": "1h"}}
    assert [block for block, _ in read(Endpoint.CHAT, {"messages": [message]}).marks] == [0, 1]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "a", "cache_control": {"type": "ephemeral"}}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]},
        {"messages": [{"role": "user", "content": "a"}], "cache_control": {"type": "ephemeral"}},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a", "prompt_cache_breakpoint": None, "cache_control": {}}],
                }
            ]
        },
        {"messages": [], "tools": [{"type": "function", "function": {"name": "f"}, "cache_control": {"ttl": "1h"}}]},
        {"messages": [], "tools": [{"type": "function", "function": {"name": "f", "cache_control": {"ttl": "1h"}}}]},
    ],
)
def test_marks_for_anthropic_in_openai_format_are_the_callers(body: dict[str, Any]) -> None:
    found = read(Endpoint.CHAT, body)
    assert found.managed
    assert [block for block, _ in found.marks] == [0]
    assert read(Endpoint.CHAT, without_marks(Endpoint.CHAT, body)).ids == found.ids


def test_a_cache_key_of_the_caller_stays() -> None:
    assert with_cache_key({"model": "m"}, "k") == {"model": "m", "prompt_cache_key": "k"}
    assert with_cache_key({"prompt_cache_key": None}, "k") == {"prompt_cache_key": "k"}
    assert with_cache_key({"prompt_cache_key": "own"}, "k") == {"prompt_cache_key": "own"}
