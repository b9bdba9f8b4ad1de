"""Keys: which requests are the same."""

from __future__ import annotations

import itertools
import json
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput, Uncacheable
from knapcache.keys import Keyer, Rules, canonical, numbers, parse
from knapcache.keys.cache_marks import MARK_FIELDS
from knapcache.keys.canonical import RequestKeyer
from knapcache.keys.request import KeyedRequest, UnkeyedRequest
from knapcache.keys.rules import CROSS_ITEM_OPTIONS, EXCLUDED, EXCLUDED_AT, STATEFUL_FIELDS
from knapcache.model import Endpoint

SECRET = bytes(range(32))
KEYER = Keyer(SECRET)
BODY: dict[str, Any] = {
    "model": "gpt-4o",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a knapsack?"}],
    "temperature": 0,
}


def key(body: Any, at: str = Endpoint.CHAT, keyer: Keyer = KEYER, **options: Any) -> bytes:
    (found,) = keyer.read(at, body, **options).keys
    return found.digest


def body_with(**changes: Any) -> dict[str, Any]:
    return {**BODY, **changes}


def test_keys_do_not_change_between_versions() -> None:
    """A change of keys empties every cache, and must change VERSION."""
    (found,) = KEYER.read(
        Endpoint.CHAT, body_with(top_p=0.95, seed=2**70, x=[1e-7, 1e23, "é\n\x01/"], stream=True), "me"
    ).keys
    assert found.canonical == (
        b'19:knapcache request 2,16:chat/completions,2:me,0:,{"messages":[{"content":"Be brief.","role":"system"},'
        b'{"content":"What is a knapsack?","role":"user"}],"model":"gpt-4o","seed":1180591620717411303424e0,'
        b'"temperature":0,"top_p":0.95,"x":[1e-7,1e23,"\xc3\xa9\\n\\u0001/"]}'
    )
    assert found.digest.hex() == "e131fdfbd1f6c04ed8cc9ebf78d1abf90e4e980c53d2f19094920ac589d3265f"


# Mistakes of other caches (GPTCache, LiteLLM, Bifrost).


def test_every_message_is_part_of_the_key() -> None:
    other = [{"role": "system", "content": "Answer as a pirate."}, BODY["messages"][1]]
    assert key(body_with(messages=other)) != key(BODY)


def test_the_model_is_part_of_the_key() -> None:
    assert key(body_with(model="gpt-4o-mini")) != key(BODY)


def test_fields_do_not_run_together() -> None:
    keyer = Keyer(SECRET, Rules(include={"user"}))
    assert key(body_with(stop="y", user="z"), keyer=keyer) != key(body_with(stop="yuser: z"), keyer=keyer)
    assert key({"a": "b", "c": "d"}) != key({"a": 'b","c":"d'})


@pytest.mark.parametrize(
    "name", ["extra_body", "guided_json", "top_k", "reasoning_effort", "seed", "store", "logit_bias"]
)
def test_unknown_fields_are_part_of_the_key(name: str) -> None:
    assert (
        len({key(BODY), key(body_with(**{name: 1})), key(body_with(**{name: 2})), key(body_with(**{name: None}))}) == 4
    )


def test_namespaces_have_different_keys() -> None:
    assert key(BODY, namespace="alice") != key(BODY, namespace="bob") != key(BODY)


@pytest.mark.parametrize(
    "text", ["what is a knapsack?", "What is a knapsack? ", "What is a knapsack？", "What is a knapsack"]
)
def test_text_is_not_normalised(text: str) -> None:
    assert key(body_with(messages=[BODY["messages"][0], {"role": "user", "content": text}])) != key(BODY)


def test_order_of_fields_and_spelling_of_numbers_do_not_matter() -> None:
    backwards = dict(reversed(body_with(temperature=0.0).items()))
    assert key(backwards) == key(BODY) == key(body_with(temperature=Decimal("-0.00")))
    text = b'{"temperature": 0e3, "messages": [{"content": "Be \\u0062rief.", "role": "system"}, \n'
    text += b'{"content": "What is a knapsack?", "role": "user"}], "model": "gpt-4o"}'
    assert key(text) == key(BODY) == key(bytearray(text)) == key(memoryview(text))


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"separators": (",", ":"), "ensure_ascii": False},
        {"ensure_ascii": False},
        {"indent": 2, "ensure_ascii": False},
    ],
)
def test_the_fast_parser_accepts_what_clients_write(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = body_with(temperature=0.7, messages=[{"role": "user", "content": 'Größe? 😀 "\n\x7f</é>'}], top_p=1.0)
    wanted = key(body)
    monkeypatch.setattr(parse, "parse_text_exactly", None)
    assert key(json.dumps(body, **form).encode()) == wanted


def test_long_lists_of_numbers() -> None:
    whole = list(range(100))
    for like in ([float(k) for k in whole], [*map(str, whole[:99]), 99.0], [[k, 1.0] for k in whole]):
        assert key(json.dumps({"x": like}).encode()) == key({"x": like})
    assert key(json.dumps({"x": [float(k) for k in whole]}).encode()) == key({"x": whole})


def test_order_of_lists_matters() -> None:
    assert key(body_with(messages=BODY["messages"][::-1])) != key(BODY)


def test_one_entry_serves_stream_and_plain_form() -> None:
    assert (
        key(body_with(stream=True, stream_options={"include_usage": True})) == key(body_with(stream=False)) == key(BODY)
    )


def test_nested_fields_are_part_of_the_key() -> None:
    tool = {"type": "function", "function": {"name": "f", "arguments": {"user": 1, "stream": 2, "metadata": 3}}}
    other = {"type": "function", "function": {"name": "f", "arguments": {"user": 9, "stream": 2, "metadata": 3}}}
    assert key(body_with(tools=[tool])) != key(body_with(tools=[other]))


# Marks for the provider's prompt cache.

MARK = {"type": "ephemeral", "ttl": "1h"}
POINT = {"mode": "explicit"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def anthropic(**mark: Any) -> dict[str, Any]:
    """Return a request with marks at every position that Anthropic knows."""
    found = {"type": "search_result", "content": [{"type": "text", "text": "a", **mark}], **mark}
    parts = [{"type": "text", "text": "21", **mark}, found]
    result = {"type": "tool_result", "tool_use_id": "t", "content": parts, **mark}
    return {
        "model": "claude",
        "tools": [{"name": "f", "input_schema": {"type": "object"}, **mark}],
        "system": [{"type": "text", "text": "Be brief.", **mark}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather?", **mark}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}, **mark}]},
            {"role": "user", "content": [result]},
        ],
        **mark,
    }


def chat(message: dict[str, Any], part: dict[str, Any], tool: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "m",
        "tools": [{**TOOL, **tool}, {**TOOL, "function": {**TOOL["function"], **tool}}],  # type: ignore[dict-item]
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", **part}], **message}],
    }


def responses(mark: dict[str, Any]) -> dict[str, Any]:
    part = {"type": "input_text", "text": "Hi", **mark}
    output = {"type": "function_call_output", "call_id": "c", "output": [part]}
    return {"model": "m", "input": [{"role": "user", "content": [part]}, output]}


@pytest.mark.parametrize(
    ("at", "plain", "marked"),
    [
        (Endpoint.MESSAGES, anthropic(), anthropic(cache_control=MARK)),
        (Endpoint.MESSAGES, anthropic(), anthropic(cache_control=None)),
        (Endpoint.CHAT, chat({}, {}, {}), chat({}, {"prompt_cache_breakpoint": POINT}, {})),
        (Endpoint.CHAT, chat({}, {}, {}), chat({}, {"prompt_cache_breakpoint": POINT, "cache_control": MARK}, {})),
        (Endpoint.CHAT, chat({}, {}, {}), chat({"cache_control": MARK}, {}, {})),
        (Endpoint.CHAT, chat({}, {}, {}), chat({}, {}, {"cache_control": MARK})),
        (Endpoint.CHAT, BODY, body_with(cache_control=MARK)),
        (Endpoint.CHAT, BODY, body_with(prompt_cache_options=POINT, prompt_cache_key="k")),
        (Endpoint.RESPONSES, responses({}), responses({"prompt_cache_breakpoint": POINT})),
    ],
    ids=itertools.count(),
)
def test_marks_of_the_prompt_cache_are_not_part_of_the_key(at: Endpoint, plain: Any, marked: Any) -> None:
    before = json.dumps(marked)
    assert key(marked, at) == key(plain, at) == key(json.dumps(marked).encode(), at)
    assert json.dumps(marked) == before
    parsed = parse.parse_body(json.dumps(marked).encode())
    found = KEYER.read(at, parsed)
    assert found.body is parsed  # with its marks
    assert json.dumps(parsed) == before
    strict = Keyer(SECRET, Rules(include={"cache_control", "prompt_cache_breakpoint", "prompt_cache_options"}))
    assert key(marked, at, strict) != key(plain, at, strict) == key(plain, at)
    for single in with_one_difference(plain, marked):
        assert key(single, at) == key(plain, at)


def with_one_difference(plain: Any, marked: Any) -> Iterator[Any]:
    """Yield copies of `plain` with one of the fields that only `marked` has."""
    if isinstance(plain, dict):
        yield from ({**plain, name: value} for name, value in marked.items() if name not in plain)
    steps = plain if isinstance(plain, dict) else range(len(plain)) if isinstance(plain, list) else ()
    for step in steps:
        for inner in with_one_difference(plain[step], marked[step]):
            changed = plain.copy()
            changed[step] = inner
            yield changed


@pytest.mark.parametrize(
    ("at", "place"),
    [
        (Endpoint.MESSAGES, lambda mark: {"messages": [], "context_management": mark}),
        (Endpoint.MESSAGES, lambda mark: {"messages": [{"role": "user", "content": "a", **mark}]}),
        (Endpoint.MESSAGES, lambda mark: {"messages": [{"content": [{"type": "tool_use", "input": mark}]}]}),
        (Endpoint.MESSAGES, lambda mark: {"messages": [{"content": [{"type": "odd", "content": [mark]}]}]}),
        (
            Endpoint.MESSAGES,
            lambda mark: {"messages": [], "tools": [{"name": "f", "input_schema": {"properties": mark}}]},
        ),
        (Endpoint.CHAT, lambda mark: {"messages": [{"role": "assistant", "tool_calls": [{"function": mark}]}]}),
        (Endpoint.CHAT, lambda mark: {"messages": [], "response_format": mark}),
        (Endpoint.RESPONSES, lambda mark: {"input": [{"type": "function_call", "arguments": mark}]}),
        (Endpoint.RESPONSES, lambda mark: {"input": [], "tools": [mark]}),
        (Endpoint.COMPLETIONS, lambda mark: {"prompt": "a", **mark}),
    ],
    ids=itertools.count(),
)
def test_names_of_marks_elsewhere_are_part_of_the_key(at: Endpoint, place: Any) -> None:
    for name in ("cache_control", "prompt_cache_breakpoint"):
        assert key(place({name: MARK}), at) != key(place({}), at)


def test_a_breakpoint_of_a_message_or_a_tool_is_part_of_the_key() -> None:
    point = {"prompt_cache_breakpoint": POINT}
    assert len({key(body) for body in (chat({}, {}, {}), chat(point, {}, {}), chat({}, {}, point))}) == 3


def test_a_block_with_nothing_but_a_mark_is_not_left_out() -> None:
    bodies = [{"messages": [{"role": "user", "content": content}]} for content in ([], [{"cache_control": MARK}])]
    assert key(bodies[0], Endpoint.MESSAGES) != key(bodies[1], Endpoint.MESSAGES)


def test_secret_and_context_are_part_of_the_key() -> None:
    assert key(BODY, keyer=Keyer(b"another secret, 16+")) != key(BODY)
    contexts = [{}, {"upstream": "a"}, {"upstream": "b"}, {"upstrea": "ma"}, {"upstream": "a", "anthropic-beta": "x"}]
    assert len({key(BODY, context=context) for context in contexts}) == len(contexts)
    assert key(BODY, context={"a": "1", "b": "2"}) == key(BODY, context={"b": "2", "a": "1"})


def test_the_whole_body_is_returned() -> None:
    found = KEYER.read("chat/completions", b'{"model":"m","stream":true,"temperature":1.0}')
    assert found.endpoint is Endpoint.CHAT
    assert found.body == {"model": "m", "stream": True, "temperature": 1}


def test_a_parsed_body_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"model": "m", "temperature": 1.0, "seed": 123456789012345678901234567890, "stream": true}'
    body = parse.parse_body(text)
    assert type(body) is parse.ParsedBody
    wanted = KEYER.read("chat/completions", text)
    for parser in ("parse_text", "normalized_copy"):
        monkeypatch.setattr(f"knapcache.keys.canonical.{parser}", None)
    found = KEYER.read("chat/completions", body)
    assert found.keys == wanted.keys
    assert found.body is body
    assert set(body) == {"model", "temperature", "seed", "stream"}


def test_a_copy_of_a_parsed_body_is_parsed() -> None:
    body = parse.parse_body(b'{"model": "m", "input": "a"}')
    for like in ({**body, "x": float("nan")}, dict(body, x={1: 2})):
        with pytest.raises(Uncacheable):
            KEYER.read("chat/completions", like)


# Embeddings.


def embedding_digests(body: Any) -> list[bytes]:
    return [found.digest for found in KEYER.read(Endpoint.EMBEDDINGS, body).keys]


def test_embeddings_have_a_key_per_item() -> None:
    a, b = embedding_digests({"model": "e", "input": ["a", "b"]})
    assert embedding_digests({"input": ["b", "a", "b"], "model": "e"}) == [b, a, b]
    assert embedding_digests({"model": "e", "input": "a"}) == [a]
    assert embedding_digests(b'{"model": "e", "input": ["a"], "user": "u"}') == [a]
    assert embedding_digests({"model": "e", "input": "a", "dimensions": 8}) != [a]
    assert embedding_digests({"model": "e", "input": "a", "encoding_format": "base64"}) != [a]


@pytest.mark.parametrize("length", [10, 1000, 1100, 50_000])
def test_a_common_part_of_any_length_counts(length: int) -> None:
    """Long ones are replaced by their digest: the canonical requests of all items are not longer together."""
    common = {"model": "e", "x": "x" * length}
    found = KEYER.read(Endpoint.EMBEDDINGS, {**common, "input": ["a", "b"]}).keys
    assert found[:1] == KEYER.read(Endpoint.EMBEDDINGS, {**common, "input": "a"}).keys
    assert len({each.digest for each in found}) == 2
    assert max(len(each.canonical) for each in found) < 1200
    for changed in ({**common, "x": "x" * (length - 1) + "y"}, {**common, "dimensions": 8}):
        assert not {*embedding_digests({**changed, "input": ["a", "b"]})} & {each.digest for each in found}


def test_a_request_with_too_many_items_has_no_keys() -> None:
    assert len(set(embedding_digests({"model": "e", "input": [str(k) for k in range(2048)]}))) == 2048
    with pytest.raises(Uncacheable, match="more than 2048 items at input"):
        embedding_digests({"model": "e", "input": ["a"] * 2049})


def test_prefixes_of_long_names_are_not_cached() -> None:
    canonical.cached_prefix.cache_clear()
    key(BODY, namespace="n" * 2000)
    key(BODY, context={"anthropic-beta": "b" * 2000})
    assert canonical.cached_prefix.cache_info().currsize == 0
    key(BODY, namespace="n" * 100)
    assert canonical.cached_prefix.cache_info().currsize == 1


def test_an_array_of_tokens_is_one_item() -> None:
    (one,) = embedding_digests({"model": "e", "input": [1, 2.0, 3]})
    assert embedding_digests({"model": "e", "input": [[1, 2, 3]]}) == [one]
    assert embedding_digests({"model": "e", "input": [[1, 2], [3]]})[0] != one
    assert embedding_digests(
        b'{"model":"e","input":[%b]}' % b",".join(b"%d" % k for k in range(1000))
    ) == embedding_digests({"model": "e", "input": list(range(1000))})
    assert embedding_digests({"model": "e", "input": ["1"]}) != embedding_digests({"model": "e", "input": [1]})


@pytest.mark.parametrize(
    ("texts", "path"),
    [
        (None, "input"),
        ([], "input"),
        (7, "input"),
        ({"text": "a"}, "input"),
        ([[]], "input[0]"),
        (["a", 1], "input[1]"),
        ([1, "a"], "input[0]"),
        ([True, False], "input[0]"),
        ([1.5], "input[0]"),
        ([["a"]], "input[0]"),
        (["a", {"image": "x"}], "input[1]"),
    ],
)
def test_invalid_inputs_have_no_key(texts: Any, path: str) -> None:
    with pytest.raises(Uncacheable) as caught:
        embedding_digests({"model": "e", "input": texts})
    assert caught.value.path == path
    with pytest.raises(Uncacheable, match="input"):
        embedding_digests({"model": "e"})


def test_late_chunking_has_no_key() -> None:
    with pytest.raises(Uncacheable, match="late_chunking"):
        embedding_digests({"model": "e", "input": ["a", "b"], "late_chunking": True})
    assert embedding_digests({"model": "e", "input": ["a"], "late_chunking": False})


def test_requests_that_depend_on_server_state_have_no_key() -> None:
    with pytest.raises(Uncacheable, match="state of a server at conversation"):
        key({"model": "m", "input": "a", "conversation": "conv_1"}, Endpoint.RESPONSES)
    with pytest.raises(Uncacheable, match="container"):
        key({"model": "m", "messages": [], "container": "c"}, Endpoint.MESSAGES)
    assert key({"model": "m", "input": "a", "conversation": None}, Endpoint.RESPONSES)
    assert key({"model": "m", "previous_response_id": "r1"}, Endpoint.RESPONSES) != key(
        {"model": "m"}, Endpoint.RESPONSES
    )


# Requests without a key.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"a"', "not a JSON object"),
        (b"1.5", "not a JSON object"),
        (b'{"a":1} x', "not JSON"),
        (b'{"a":NaN}', "NaN is not a JSON number"),
        (b'{"a":-Infinity}', "-Infinity is not a JSON number"),
        (b'{"a":1,"a":1}', "duplicate name in one object at a"),
        (b'{"a": {"b":1,"c":2 ,"b":3}}', "duplicate name in one object at b"),
        (b'{"a":1,"\\u0061":1}', "duplicate name in one object at a"),
        (b'{"stream":true,"stream":false}', "duplicate name in one object at stream"),
        (b'{"a":"\\ud800"}', "a lone surrogate is not a character at a"),
        (b'{"a":[{"\\udc00":1}]}', r"a lone surrogate is not a character at a\[0\]"),
        (b'{"a":"\xff"}', "not UTF-8: byte 6 is 0xff"),
        (b'{"a":1e401}', r"a number beyond 10\^±400 at a"),
        (b'{"a":[0,1e-999999999]}', r"beyond 10\^±400 at a\[1\]"),
        (b'{"a":' + b"9" * 65 + b"}", "more than 64 characters"),
        (b'{"a":0.' + b"0" * 100 + b"1}", "more than 64 characters"),
        (b'{"a":' + b"9" * 10**6 + b"}", "more than 64 characters"),
        (b'{"a":' * 201 + b"1" + b"}" * 201, "more than 200 levels"),
        (b'{"a":' + b"[" * 10**4, "more than 200 levels"),
        (b'{"a":' + b"[" * 10**6, "more than 50000 objects and lists"),
    ],
    ids=itertools.count(),  # by number: some are a million bytes long
)
def test_text_without_a_key(text: bytes, reason: str) -> None:
    with pytest.raises(Uncacheable, match=reason):
        key(text)


class Word(StrEnum):
    A = "a"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "NaN is not a JSON number at x.y[1]"),
        (float("-inf"), "-Infinity is not a JSON number at x.y[1]"),
        (Decimal("sNaN"), "sNaN is not a JSON number at x.y[1]"),
        (Decimal("Infinity"), "Infinity is not a JSON number at x.y[1]"),
        (10**64, "a number of more than 64 digits at x.y[1]"),
        (-(10**5000), "a number of more than 64 digits at x.y[1]"),
        (Decimal("1." + "1" * 64), "a number of more than 64 digits at x.y[1]"),
        (Decimal("1e401"), "a number beyond 10^±400 at x.y[1]"),
        ("\ud83d", "a lone surrogate is not a character at x.y[1]"),
        (b"bytes", "a builtins.bytes is not a JSON value at x.y[1]"),
        ({1, 2}, "a builtins.set is not a JSON value at x.y[1]"),
        (1j, "a builtins.complex is not a JSON value at x.y[1]"),
        (OrderedDict(a=1), "a collections.OrderedDict is not a JSON value at x.y[1]"),
        (Word.A, "Word is not a JSON value at x.y[1]"),
        ({1: 2}, "a name must be a string, not 1 at x.y[1].1"),
        ({"\ud83d": 1}, r"a lone surrogate is not a character at x.y[1].\ud83d"),
        ({"a\nb": [b""]}, r"a builtins.bytes is not a JSON value at x.y[1].a\nb[0]"),
    ],
    ids=itertools.count(),
)
def test_objects_without_a_key(value: Any, reason: str) -> None:
    with pytest.raises(Uncacheable, match=re.escape(reason)) as caught:
        key(body_with(x={"y": [0, value]}))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.reason, again.path) == (str(caught.value), caught.value.reason, caught.value.path)


def test_recursive_objects_have_no_key() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(Uncacheable, match="levels of nesting at x") as caught:
        key({"x": ring})
    assert len(caught.value.path) < 300


@pytest.mark.parametrize("body", [None, "text", 5, ["a"], ()])
def test_a_body_must_be_an_object(body: Any) -> None:
    with pytest.raises(Uncacheable, match="not a JSON object"):
        key(body)


def test_bad_arguments() -> None:
    for secret in (b"short", b"x" * 65, "a string of letters"):
        with pytest.raises(InvalidInput, match="16 to 64 bytes"):
            Keyer(secret)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"endpoint must be one of .*'audio'"):
        key(BODY, "audio")
    for bad in ({"namespace": b"x"}, {"namespace": None}, {"context": {"a": 1}}, {"context": [("a", "b")]}):
        with pytest.raises(InvalidInput, match="context must be"):
            key(BODY, **bad)
    with pytest.raises(InvalidInput, match="lone surrogate"):
        key(BODY, namespace="\ud800")


def test_bad_rules() -> None:
    assert Rules(include=["user"]) == Rules(include={"user"})  # type: ignore[arg-type]
    for options, reason in (
        ({"include": {"model"}}, "part of the key anyway"),
        ({"exclude": {"messages"}}, "must be part of the key"),
        ({"include": {"user"}, "exclude": {"user"}}, "in include and in exclude"),
        ({"include": "user"}, "^include must be a set"),
        ({"exclude": [1]}, "^exclude must be a set"),
        ({"exclude": {""}}, "^exclude must be a set"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            Rules(**options)


def test_more_fields_can_be_left_out() -> None:
    keyer = Keyer(SECRET, Rules(exclude={"trace_id"}))
    assert key(body_with(trace_id=1), keyer=keyer) == key(BODY, keyer=keyer)
    assert key(body_with(trace_id=1)) != key(BODY)


def test_excluded_fields_are_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "keys.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    listed = [(name, "every endpoint", why) for name, why in EXCLUDED.items()]
    listed += [(name, f"`{at}`", why) for at, more in EXCLUDED_AT.items() for name, why in more.items()]
    assert rows == listed
    for name in (*(name for names in STATEFUL_FIELDS.values() for name in names), *CROSS_ITEM_OPTIONS):
        assert f"`{name}`" in page
    for limit in (numbers.MAX_DIGITS, f"10^±{numbers.MAX_EXPONENT}", parse.MAX_DEPTH):
        assert str(limit) in page
    for at in Endpoint:
        assert f"`{at}`" in page
    for name in {name for at in Endpoint for name in MARK_FIELDS.get(at, ())}:
        assert f"`{name}` " in page


def test_the_key_of_a_function_call_depends_on_name_namespace_and_arguments() -> None:
    calls = [
        ("f", {"x": 1}, ""),
        ("f", {"x": 1}, "a"),
        ("f", {"x": 1}, "b"),
        ("g", {"x": 1}, "a"),
        ("f", {"x": 2}, "a"),
    ]
    keys = [KEYER.call(*call) for call in calls]
    assert len({key.digest for key in keys}) == len({key.canonical for key in keys}) == len(calls)
    assert KEYER.call("f", {"x": 1}, "a") == keys[1]
    assert KEYER.call("f", {"x": 1}) == keys[0]


def test_a_request_as_text_has_the_key_of_its_bytes() -> None:
    keyer = RequestKeyer(KEYER, "default")
    text = json.dumps(BODY)
    found = keyer.key(Endpoint.CHAT, text, None, None)
    assert isinstance(found, KeyedRequest)
    assert found == keyer.key(Endpoint.CHAT, text.encode(), None, None)
    assert (found.tenant, found.model) == ("default", "gpt-4o")
    assert keyer.key(Endpoint.CHAT, found, "ignored", None) is found


def test_a_text_with_a_lone_surrogate_has_no_key() -> None:
    found = RequestKeyer(KEYER, "").key(Endpoint.CHAT, '{"model": "\ud800"}', "mine", None)
    assert isinstance(found, UnkeyedRequest)
    assert (found.tenant, found.endpoint) == ("mine", Endpoint.CHAT)
    assert found.reason


def test_several_items_together_have_a_key_of_their_own() -> None:
    keyer = RequestKeyer(KEYER, "")

    def key_of(*items: str) -> bytes:
        found = keyer.key(Endpoint.EMBEDDINGS, {"model": "m", "input": list(items)}, None, None)
        assert isinstance(found, KeyedRequest)
        return found.key.digest

    keys = [key_of("a"), key_of("b"), key_of("a", "b"), key_of("b", "a"), key_of("a", "b", "c"), key_of("ab")]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("inside", "beyond"), [("1e399", "1e400"), ("1e-401", "1e-402"), ("-12e398", "-12e399")])
def test_the_largest_and_smallest_powers_of_ten(inside: str, beyond: str) -> None:
    assert numbers.from_decimal(Decimal(inside)) is not None
    with pytest.raises(Uncacheable, match="beyond"):
        numbers.from_decimal(Decimal(beyond))


@pytest.mark.parametrize("value", [-(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**63, 10**64 - 1])
def test_whole_numbers_of_up_to_64_digits_are_exact(value: int) -> None:
    assert key({**BODY, "x": value}) == key(json.dumps({**BODY, "x": value}).encode())
    assert key({**BODY, "x": value}) != key({**BODY, "x": value + 1 if value < 10**64 - 1 else value - 1})
    with pytest.raises(Uncacheable, match="more than 64 digits"):
        numbers.from_int(10**64)


@pytest.mark.parametrize("value", ["0.0001", "0.00010", "1e-4", "1.0E-4", "0.1e-3", "10e-5"])
def test_forms_of_one_number_at_the_limit_of_plain_decimals(value: str) -> None:
    assert numbers.from_decimal(Decimal(value)) == 0.0001
    assert key(b'{"model":"m","x":%b}' % value.encode()) == key({"model": "m", "x": 0.0001})
    assert key(b'{"model":"m","x":-%b}' % value.encode()) == key({"model": "m", "x": -0.0001})


@pytest.mark.parametrize("value", ["1e16", "10000000000000000", "1e+16", "1.0e16", "10000000000000000.0"])
def test_forms_of_one_large_number(value: str) -> None:
    assert key(b'{"model":"m","x":%b}' % value.encode()) == key({"model": "m", "x": 10**16})
