"""Two requests differ in the fields that were changed; without content only lists of names and values are shown."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.keys import Keyer
from knapcache.keys.difference import SIMILAR, Difference, differences, distance, without_content
from knapcache.keys.outline import (
    FEATURES,
    MAX_WORDS,
    CanonicalRequest,
    hash_of,
    hashes_of,
    outline_of,
    prefix_hashes,
    read_canonical,
    with_namespace,
)
from knapcache.keys.public import OTHER_FIELD, public_path
from knapcache.model import Endpoint
from tests.support.canaries import Canaries

VERSION = b"19:knapcache request 2,"
KEYER = Keyer(b"0123456789abcdef")
CHAT: dict[str, Any] = {
    "model": "gpt-4o",
    "temperature": 0,
    "messages": [
        {"role": "system", "content": "You are a poet of few words."},
        {"role": "user", "content": "Write a line about the sea at night."},
    ],
}


def canonical(body: dict[str, Any], endpoint: str = "chat/completions", **where: Any) -> bytes:
    return KEYER.read(endpoint, body, **where).keys[0].canonical


def read(body: dict[str, Any], endpoint: str = "chat/completions", **where: Any) -> CanonicalRequest:
    found = read_canonical(canonical(body, endpoint, **where))
    assert found is not None
    return found


def changed(**fields: Any) -> dict[str, Any]:
    body = copy.deepcopy(CHAT) | fields
    return {name: value for name, value in body.items() if value is not ...}


def said(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


def compare(body: dict[str, Any], other: dict[str, Any] = CHAT) -> list[Difference]:
    return differences(read(body), read(other))


SYSTEM, USER = CHAT["messages"]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city"}}]


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        (changed(temperature=0.2), "temperature", "0.2 instead of 0"),
        (changed(temperature=...), "temperature", "not set instead of 0"),
        (changed(max_tokens=100), "max_tokens", "100 instead of not set"),
        (changed(model="gpt-4o-mini"), "model", "gpt-4o-mini instead of gpt-4o"),
        (changed(logprobs=True), "logprobs", "true instead of not set"),
        (changed(temperature=False), "temperature", "false instead of 0"),
        (changed(stop="END"), "stop", "only this request sets it"),
        (changed(response_format={"type": "json_object"}), "response_format", "only this request sets it"),
        (changed(tools=TOOLS), "tools", "only this request sets it"),
        (changed(messages=[USER]), "system prompt", "only the other request has one"),
        (changed(messages=[said("You are a poet.", "system"), USER]), "system prompt",
         "the text differs from character 15 on; 15 characters instead of 28"),
        (changed(messages=[said("You  are a poet of few words. ", "system"), USER]), "system prompt",
         "only white space differs"),
        (changed(messages=[SYSTEM, said("write a line about the SEA at night.")]), "last user message",
         "only upper and lower case differs"),
        (changed(messages=[SYSTEM, said("Write a line about the sea at noon.")]), "last user message",
         "the text differs from character 32 on; 35 characters instead of 36"),
        (changed(messages=[SYSTEM, {"role": "user", "content": [{"type": "text", "text": USER["content"]}]}]),
         "last user message", "the same text as a list instead of a text"),
        (changed(messages=[SYSTEM, USER, said("Waves.", "assistant"), said("Another.")]), "messages",
         "2 more messages: 4 instead of 2"),
        (changed(messages=[SYSTEM]), "messages", "1 fewer message: 1 instead of 2"),
        (changed(messages=[SYSTEM, said("Hello."), USER]), "messages",
         "1 more message: 3 instead of 2, from message 2 on"),
        (changed(messages=[SYSTEM, said("Write a line about the sea at ｎight.")]), "last user message",
         "only the Unicode form of characters differs"),
        (changed(messages=[SYSTEM, USER | {"name": "Ann"}]), "last user message.name", "only this request sets it"),
    ],
)  # fmt: skip
def test_the_changed_field_is_named(body: dict[str, Any], field: str, text: str) -> None:
    (found,) = compare(body)
    assert (found.field, found.text) == (field, text)
    assert distance([found]) <= SIMILAR
    assert compare(body, body) == []


def test_a_longer_conversation_of_other_messages_has_both_differences() -> None:
    first, second = compare(changed(messages=[SYSTEM, said("Hello."), said("Go on.")]))
    assert (first.field, first.text) == ("messages", "1 more message: 3 instead of 2")
    assert second.field == "message 2 (user)"
    assert first.weight == 5.0


@pytest.mark.parametrize(("endpoint", "field"), [("messages", "system"), ("responses", "instructions")])
def test_a_system_prompt_in_a_field_of_its_own_is_named_so(endpoint: str, field: str) -> None:
    bodies: list[dict[str, Any]] = [
        {"model": "m", "messages": [], "input": "", field: text} for text in ("Be brief.", "Be kind.")
    ]
    (found,) = differences(*(read(body, endpoint) for body in bodies))
    assert found.field == "system prompt"
    assert found.text == "the text differs from character 4 on; 9 characters instead of 8"


def test_numbers_in_a_prompt_are_recognised_as_the_only_difference() -> None:
    at = [changed(messages=[said(f"It is 2026-11-{day}T10:0{day}:00Z. Sum up the news of today.")]) for day in (3, 4)]
    (found,) = compare(*at)
    assert found.text == "only numbers differ, such as a date, a time or an id"
    assert found.content
    assert found.here == "It is 2026-11-3T10:03:00Z. Sum up the news of today."


def test_leaves_of_nested_values_are_named() -> None:
    first, second = (changed(tools=copy.deepcopy(TOOLS), reasoning={"effort": effort}) for effort in ("low", "high"))
    second["tools"][0]["function"]["description"] = "Weather of a town"
    found = {difference.field: difference.text for difference in compare(first, second)}
    assert found["reasoning.effort"] == "low instead of high"
    assert found["tools[0].function.description"].startswith("the text differs from character 14 on")
    (longer,) = compare(changed(tools=TOOLS * 2), changed(tools=TOOLS))
    assert (longer.field, longer.text) == ("tools", "2 items instead of 1")


def test_marks_of_the_prompt_cache_are_no_difference() -> None:
    part: dict[str, Any] = {"type": "text", "text": "Write."}
    parts = part, part | {"cache_control": {"type": "ephemeral"}}
    bodies = [changed(messages=[{"role": "user", "content": [each]}]) for each in parts]
    assert canonical(bodies[0]) == canonical(bodies[1])
    assert compare(*bodies) == []


def test_tenant_upstream_headers_and_endpoint_are_named() -> None:
    here = read(
        CHAT, namespace="a", context={"upstream": "https://one/v1", "headers": "12", "openai-beta": "x", "same": "y"}
    )
    there = read(CHAT, namespace="b", context={"upstream": "https://two/v1", "headers": "34", "same": "y"})
    found = {difference.field: difference.text for difference in differences(here, there)}
    assert found.keys() == {"tenant", "upstream", "request headers", "header openai-beta"}
    assert found["upstream"] == "https://one/v1 instead of https://two/v1"
    assert "ignored_headers" in found["request headers"]
    other = read({"model": "gpt-4o", "input": "Write."}, "responses")
    assert differences(read(CHAT), other)[0].field == "endpoint"
    assert distance(differences(read(CHAT), other)) > SIMILAR


def test_a_prompt_with_another_meaning_is_not_similar() -> None:
    other = changed(messages=[SYSTEM, said("How many people live in Lisbon?")])
    assert distance(compare(other)) > SIMILAR
    assert distance(compare(changed(temperature=1, max_tokens=5))) < distance(compare(other))


def test_however_many_leaves_of_a_parameter_differ_it_is_one_parameter() -> None:
    several = [changed(logit_bias={str(k): value for k in range(9)}) for value in (1, 2)]
    assert len(compare(*several)) == 9
    assert distance(compare(*several)) == pytest.approx(distance(compare(changed(seed=1), changed(seed=2))))


def test_a_parameter_with_another_text_weighs_three_at_most() -> None:
    assert distance(compare(changed(note="a" * 50), changed(note="b" * 50))) == pytest.approx(3.0)
    assert distance(compare(changed(note="a" * 50), changed(note="b" + "a" * 49))) < 1.0


def test_a_prompt_weighs_fifteen_at_most_and_a_system_prompt_less() -> None:
    user = compare(changed(messages=[SYSTEM, said("a" * 50)]), changed(messages=[SYSTEM, said("b" * 50)]))
    system = compare(
        changed(messages=[said("a" * 50, "system"), USER]), changed(messages=[said("b" * 50, "system"), USER])
    )
    assert [distance(user), distance(system)] == pytest.approx([15.0, 6.0])


def test_many_differences_are_cut_off() -> None:
    first, second = ({"model": "m", "messages": [USER], **{f"f{k}": k + n for k in range(50)}} for n in (0, 1))
    assert len(compare(first, second)) == 20


@given(st.integers(0, 2**32))
def test_without_content_nothing_of_a_body_is_shown(seed: int) -> None:
    canaries = Canaries(seed)
    body = canaries.chat()
    bodies = body, canaries.changed(body)
    first, second = (read(each) for each in bodies)
    found = differences(first, second)
    assert bool(found) == (canonical(bodies[0]) != canonical(bodies[1]))
    shown = without_content(found)
    assert bool(shown) == bool(found)
    assert canaries.found_in(repr(shown)) == []
    assert differences(first, first) == []


@pytest.mark.parametrize(
    ("here", "there", "field", "text", "value"),
    [
        ({"seed": 7}, {}, "seed", "7 instead of not set", "7"),
        ({"seed": "Ann"}, {}, "seed", "only this request sets it", None),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}, "reasoning_effort", "low instead of high", "low"),
        ({"reasoning_effort": "Ann Doe"}, {"reasoning_effort": "high"}, "reasoning_effort",
         "the text differs from character 1 on; 7 characters instead of 4", None),
        ({"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "high"}}, "reasoning.…", "the values differ", None),
        ({"ann@example.com": 1}, {}, "a field that the API does not name", "only this request sets it", None),
        ({"ann": {"doe": 1}}, {"ann": {"doe": 2}}, "a field that the API does not name", "the values differ", None),
        ({"tools": [{"ann": True}]}, {"tools": [{"ann": "x"}]}, "tools[0].…", "true or false instead of a text", None),
        ({"messages": [USER | {"ann": 1}]}, {"messages": [USER]}, "last user message.…", "only this request sets it",
         None),
        ({"messages": [USER | {"name": "Ann"}]}, {"messages": [USER]}, "last user message.name",
         "only this request sets it", None),
    ],
)  # fmt: skip
def test_without_content_a_field_is_named_by_its_position_and_kind(
    here: dict[str, Any], there: dict[str, Any], field: str, text: str, value: str | None
) -> None:
    (found,) = without_content(compare(changed(**here), changed(**there)))
    assert (found.field, found.text, found.here) == (field, text, value)


def test_values_of_headers_are_content_and_the_upstream_is_not() -> None:
    contexts = {"upstream": "one", "openai-beta": "Ann"}, {"upstream": "two", "namespace": "Doe"}
    found = without_content(differences(*(read(CHAT, context=context) for context in contexts)))
    assert {each.field: each.text for each in found} == {
        "upstream": "one instead of two",
        "header openai-beta": "only this request sets it",
        "cache.namespace": "only the other request sets it",
    }


@pytest.mark.parametrize(
    ("path", "shown"),
    [("messages[3].content", "messages[3].…"), ("input[2]", "input[2]"), ("model", "model"), ("tools.ann", "tools.…"),
     ("ann.doe[1]", OTHER_FIELD), ("\n", OTHER_FIELD), ("", OTHER_FIELD)],
)  # fmt: skip
def test_of_a_path_the_known_field_and_its_index_are_shown(path: str, shown: str) -> None:
    assert public_path(path) == shown


# Outlines.


@pytest.mark.parametrize(
    ("endpoint", "body", "words"),
    [
        ("chat/completions", CHAT, "Write a line about the sea at night."),
        ("chat/completions", {"model": "m", "messages": [said("First."), said("Yes?", "assistant"), said("\n Two\n ")]},
         "Two"),
        ("chat/completions", {"model": "m", "messages": [{"role": "user", "content": [
            {"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:xyz"}}]}]},
         "What is this? [image_url]"),
        ("chat/completions", {"model": "m", "messages": [said("Only a system prompt", "system")]},
         "Only a system prompt"),
        ("completions", {"model": "m", "prompt": "Once upon a time"}, "Once upon a time"),
        ("responses", {"model": "m", "input": "Say hello", "instructions": "Be kind"}, "Say hello"),
        ("responses", {"model": "m", "input": [said("Say hello")]}, "Say hello"),
        ("messages", {"model": "m", "max_tokens": 5, "system": "Be kind", "messages": [said("Bonjour")]}, "Bonjour"),
        ("embeddings", {"model": "m", "input": "a text"}, "a text"),
        ("embeddings", {"model": "m", "input": "a text", "user_data": "x" * 2000}, "a text"),
        ("embeddings", {"model": "m", "input": [1, 2, 3]}, "[3 tokens]"),
        ("chat/completions", {"model": "m", "messages": []}, ""),
        ("chat/completions", {"model": "m", "messages": "odd"}, "odd"),
    ],
)  # fmt: skip
def test_the_first_words_are_those_of_the_last_prompt(endpoint: str, body: dict[str, Any], words: str) -> None:
    found = outline_of(canonical(body, endpoint))
    assert (found.kind, found.words) == (endpoint, words)
    assert len(found.hashes) == 8 * len(FEATURES)


def test_long_prompts_are_cut() -> None:
    found = outline_of(canonical({"model": "m", "messages": [said("word " * 10_000)]}))
    assert len(found.words) == MAX_WORDS
    assert found.words.endswith("…")


def test_a_function_call_is_named_by_function_and_arguments() -> None:
    assert outline_of(KEYER.call("mod.summary", {"text": "It was"}).canonical).words == 'mod.summary {"text": "It was"}'


@pytest.mark.parametrize(
    "canonical",
    [
        b"", b"5:hello,", b"99:short,", b"x", b"-1:,", VERSION + b"1:a,0:,0:,{", VERSION + b"1:a,0:,3:0:,,{}",
        VERSION + b"1:a,0:,1:x,{}", VERSION + b"1:a,0:,0:,[]", VERSION.replace(b"2", b"1") + b"1:a,0:,0:,{}",
    ],
)  # fmt: skip
def test_other_bytes_have_an_empty_outline(canonical: bytes) -> None:
    assert read_canonical(canonical) is None
    assert outline_of(canonical).words == ""


def test_the_namespace_of_a_canonical_request_can_be_changed() -> None:
    before, after = (canonical(CHAT, namespace=name, context={"a": "b"}) for name in ("one", "another"))
    assert with_namespace(before, "another") == after
    for other in (b"no netstrings", before.replace(VERSION, VERSION.replace(b"2", b"1"))):
        with pytest.raises(InvalidInput, match="cannot change its namespace"):
            with_namespace(other, "another")


def test_hashes_distinguish_large_numbers() -> None:
    assert len({hash_of(value) for value in (None, 2**70, 2**70 + 1, "\ud800", {"a": 2**70})}) == 5
    assert hash_of({"a": 2**70, "b": 1}) == hash_of({"b": 1, "a": 2**70})


def test_a_long_request_has_its_endpoint() -> None:
    found = outline_of(canonical({"model": "m", "prompt": "x" * (1 << 20)}, "completions"))
    assert (found.kind, found.words) == (Endpoint.COMPLETIONS, "")


def equal_features(a: dict[str, Any], b: dict[str, Any]) -> set[str]:
    first, second = hashes_of(read(a)), hashes_of(read(b))
    parts = {name: (first[8 * k : 8 * k + 8], second[8 * k : 8 * k + 8]) for k, name in enumerate(FEATURES)}
    return {name for name, (one, other) in parts.items() if one == other != bytes(8)}


def test_hashes_are_of_the_parts_that_they_are_named_after() -> None:
    same = equal_features(CHAT, CHAT)
    assert same >= {"kind", "namespace", "model", "parameters", "system", "conversation", "last", "plain"}
    assert same - equal_features(CHAT, changed(temperature=1)) == {"parameters"}
    assert same - equal_features(CHAT, changed(model="x")) == {"model"}
    assert same - equal_features(CHAT, changed(messages=[USER])) == {"system"}
    louder = changed(messages=[SYSTEM, said("WRITE a line about  the sea at night.")])
    assert same - equal_features(CHAT, louder) == {"conversation", "last"}


def test_a_continued_conversation_has_the_hash_of_its_start() -> None:
    longer = changed(messages=[SYSTEM, USER, said("Waves.", "assistant"), said("Another.")])
    start = hashes_of(read(CHAT))[8 * FEATURES.index("conversation") :][:8]
    assert start in prefix_hashes(read(longer))
    assert start == hashes_of(read(longer))[8 * FEATURES.index("without_two") :][:8]
