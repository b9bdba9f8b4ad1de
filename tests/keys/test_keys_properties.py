"""Same meaning ⇔ same key, against a slow judge."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from knapcache.errors import Uncacheable
from knapcache.keys import Keyer, Rules
from knapcache.keys.parse import MAX_DEPTH, normalized_copy, parse_body, parse_text_exactly
from knapcache.keys.rules import EXCLUDED
from knapcache.model import Endpoint
from tests.support import keys_reference as reference
from tests.support.keys_reference import ALIKE, bodies, meaning, rebuilt, respelled, texts, values

SECRET = b"a secret of the server"
KEYER = Keyer(SECRET)


def split(request: bytes) -> tuple[list[bytes], bytes]:
    """The four netstrings and the body of a request."""
    parts = []
    for _ in range(4):
        length, _, rest = request.partition(b":")
        parts.append(rest[: int(length)])
        assert rest[int(length) : int(length) + 1] == b","
        request = rest[int(length) + 1 :]
    return parts, request


def key(body: Any, **options: Any) -> bytes:
    (found,) = KEYER.read(Endpoint.CHAT, body, **options).keys
    return found.digest


@given(bodies)
def test_what_is_digested_means_what_the_body_means(body: dict[str, Any]) -> None:
    (found,) = KEYER.read(Endpoint.CHAT, body, "me").keys
    parts, text = split(found.canonical)
    assert parts == [b"knapcache request 1", b"chat/completions", b"me", b""]
    counted = {name: value for name, value in body.items() if name not in EXCLUDED}
    assert meaning(reference.read(text)) == meaning(counted)
    assert found.digest == hashlib.blake2b(found.canonical, key=SECRET, digest_size=32).digest()


@given(bodies, st.data())
def test_the_same_request_has_one_key_however_it_is_spelled(body: dict[str, Any], data: st.DataObject) -> None:
    text = respelled(data.draw, body).encode()
    assert meaning(reference.read(text)) == meaning(body)
    assert key(text) == key(body) == key(rebuilt(data.draw, body))


@given(st.data(), st.dictionaries(st.sampled_from("abc"), st.sampled_from(ALIKE), max_size=2))
def test_two_requests_that_look_alike_have_one_key_exactly_if_they_mean_the_same(
    data: st.DataObject, first: dict[str, Any]
) -> None:
    second = data.draw(st.dictionaries(st.sampled_from("abc"), st.sampled_from(ALIKE), max_size=2))
    assert (key(first) == key(second)) == (meaning(first) == meaning(second))


def test_every_two_values_that_look_alike() -> None:
    keys = [key({"x": value}) for value in ALIKE]
    meanings = [meaning(value) for value in ALIKE]
    for k in range(len(ALIKE)):
        for j in range(k):
            assert (keys[k] == keys[j]) == (meanings[k] == meanings[j]), f"{ALIKE[k]!r} and {ALIKE[j]!r}"


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1, 1) | st.floats(-1e17, 1e17))
@example(1e-4)
@example(9.999999999999999e-05)
@example(9999999999999998.0)
@example(0.00001)
@example(1.5e16)
def test_floats_are_written_alike_by_every_version_of_orjson(value: float) -> None:
    """In full between 10^-4 and 10^16, as Python does; beyond that by us."""
    written = split(KEYER.read(Endpoint.CHAT, {"x": value}).keys[0].canonical)[1].decode()
    number = written.removeprefix('{"x":').removesuffix("}")
    digits = repr(value).removesuffix(".0").replace("-0", "0") if value == 0 else repr(value).removesuffix(".0")
    assert number == digits if "e" not in repr(value) else "+" not in number
    assert meaning(reference.read(written.encode())) == meaning({"x": value})


@given(bodies, st.data())
def test_both_readers_of_text_agree(body: dict[str, Any], data: st.DataObject) -> None:
    text = respelled(data.draw, body).encode()
    assert canonical(parse_body(text)) == canonical(parse_text_exactly(text))


def canonical(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)


@given(st.data(), bodies)
def test_what_json_writers_write_has_the_key_of_the_objects(data: st.DataObject, body: dict[str, Any]) -> None:
    body = without_decimals(body)
    blanks = data.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:")]))
    for ascii_ in (True, False):
        assert key(json.dumps(body, separators=blanks, ensure_ascii=ascii_).encode()) == key(body)
    try:
        written = orjson.dumps(body)
    except TypeError:  # an int of more than 64 bits
        return
    assert key(written) == key(body)


def without_decimals(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_decimals(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_decimals(inner) for inner in value]
    return float(value) if isinstance(value, Decimal) else value


@given(st.data(), bodies.filter(bool))
def test_a_name_given_twice_is_found_however_neat_the_text(data: st.DataObject, body: dict[str, Any]) -> None:
    body = without_decimals(body)
    name = data.draw(st.sampled_from(sorted(body)))
    again = data.draw(st.sampled_from([body[name], None, 0, {}, "", "0"]))
    blanks = data.draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    ascii_ = data.draw(st.booleans())
    whole, extra = (json.dumps(x, separators=blanks, ensure_ascii=ascii_) for x in (body, {name: again}))
    level = data.draw(st.sampled_from(["%s", '{"x":%s}', '{"x":[%s]}']))
    with pytest.raises(Uncacheable, match="duplicate name"):
        key((level % f"{whole[:-1]},{extra[1:]}").encode())
    with pytest.raises(Uncacheable, match="duplicate name"):
        key((level % f"{extra[:-1]},{whole[1:]}").encode())


@settings(max_examples=200)
@given(bodies, st.data())
def test_damaged_text_is_read_as_the_judge_reads_it_or_refused(body: dict[str, Any], data: st.DataObject) -> None:
    neat = json.dumps(without_decimals(body), ensure_ascii=False)
    text = bytearray((neat if data.draw(st.booleans()) else respelled(data.draw, body)).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2)
            | st.sampled_from([b'"', b"\\", b"{", b'"a":1,', b"1e", b"\\ud800", b"NaN", b"\xff", b"0"])
        )
    judge_and_compare(bytes(text))


@given(st.binary(max_size=40))
@example(b"\xef\xbb\xbf{}")
@example(b"{}\x00")
@example(b'{"a":01}')
@example(b'{"a":"\t"}')
@example(b'{"a":1,}')
@example(b'{"a":-}')
@example(b'{"a":.5}')
@example(b'{"a":1.}')
@example(b'{"a":"\\x"}')
@example(b'{"a":"\xed\xa0\x80"}')
@example(b'{"a":"\\ud83d\\ude00"}')
@example(b'{"a":"\\ude00\\ud83d"}')
def test_arbitrary_bytes(text: bytes) -> None:
    judge_and_compare(text)


def judge_and_compare(text: bytes) -> None:
    try:
        wanted = reference.read(text)
    except ValueError:
        wanted = None
    refused, found = "", b""
    try:
        found = KEYER.read(Endpoint.CHAT, text).keys[0].canonical
    except Uncacheable as error:
        refused = str(error)
    if refused:
        limits = re.search("digits|characters|beyond", refused)  # the judge has none
        assert not isinstance(wanted, dict) or limits, f"refused, {refused}: {text!r}"
    else:
        assert isinstance(wanted, dict), f"accepted: {text!r}"
        counted = {name: value for name, value in wanted.items() if name not in EXCLUDED}
        assert meaning(reference.read(split(found)[1])) == meaning(counted)


@given(bodies)
def test_objects_given_are_not_changed(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    KEYER.read(Endpoint.CHAT, body)
    assert repr(body) == repr(before)


@given(bodies, texts, texts, st.dictionaries(texts, texts, max_size=2), st.dictionaries(texts, texts, max_size=2))
def test_namespaces_and_contexts_never_meet(
    body: dict[str, Any], one: str, other: str, here: dict[str, str], there: dict[str, str]
) -> None:
    same = (one, here) == (other, there)
    assert (key(body, namespace=one, context=here) == key(body, namespace=other, context=there)) == same
    opening = split(KEYER.read(Endpoint.CHAT, body, one, here).keys[0].canonical)[0]
    assert opening[2] == one.encode()


@given(values)
def test_endpoints_never_meet(value: Any) -> None:
    keys = {KEYER.read(at, {"input": "text", "x": value}).keys[0].digest for at in Endpoint}
    assert len(keys) == len(Endpoint)


@given(bodies, st.sampled_from(sorted(EXCLUDED)), values)
def test_what_does_not_count_changes_nothing_and_can_be_made_to_count(
    body: dict[str, Any], name: str, value: Any
) -> None:
    body.pop(name, None)
    assert key({**body, name: value}) == key(body)
    strict = Keyer(SECRET, Rules(include={name}))
    assert strict.read(Endpoint.CHAT, {**body, name: value}).keys != strict.read(Endpoint.CHAT, body).keys


@given(st.integers(0, 2 * MAX_DEPTH), st.sampled_from(['{"a":%s}', "[%s]", "[1, %s]"]))
def test_depth(levels: int, form: str) -> None:
    text = "1"
    for _ in range(levels):
        text = form % text
    text = f'{{"a":{text}}}'
    objects = reference.read(text.encode())
    for read in (parse_body, parse_text_exactly):
        if levels + 1 <= MAX_DEPTH:
            assert normalized_copy(objects) == read(text.encode())
        else:
            with pytest.raises(Uncacheable, match="levels"):
                read(text.encode())
            with pytest.raises(Uncacheable, match="levels"):
                normalized_copy(objects)
