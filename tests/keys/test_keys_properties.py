"""Same meaning ⇔ same key, tested against the reference in tests/support/keys_reference.py."""

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
from tests.support.examples import examples
from tests.support.keys_reference import SIMILAR, bodies, meaning, rebuilt, texts, values, write_json

SECRET = b"a secret of the server"
KEYER = Keyer(SECRET)


def split(request: bytes) -> tuple[list[bytes], bytes]:
    """Split a canonical request into its four netstrings and its body."""
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
def test_the_canonical_request_means_the_same_as_the_body(body: dict[str, Any]) -> None:
    (found,) = KEYER.read(Endpoint.CHAT, body, "me").keys
    parts, text = split(found.canonical)
    assert parts == [b"knapcache request 2", b"chat/completions", b"me", b""]
    counted = {name: value for name, value in body.items() if name not in EXCLUDED}
    assert meaning(reference.read(text)) == meaning(counted)
    assert found.digest == hashlib.blake2b(found.canonical, key=SECRET, digest_size=32).digest()


@given(bodies, st.data())
def test_all_spellings_of_a_request_have_one_key(body: dict[str, Any], data: st.DataObject) -> None:
    text = write_json(data.draw, body).encode()
    assert meaning(reference.read(text)) == meaning(body)
    assert key(text) == key(body) == key(rebuilt(data.draw, body))


@given(st.data(), st.dictionaries(st.sampled_from("abc"), st.sampled_from(SIMILAR), max_size=2))
def test_similar_requests_have_one_key_if_and_only_if_they_mean_the_same(
    data: st.DataObject, first: dict[str, Any]
) -> None:
    second = data.draw(st.dictionaries(st.sampled_from("abc"), st.sampled_from(SIMILAR), max_size=2))
    assert (key(first) == key(second)) == (meaning(first) == meaning(second))


def test_every_pair_of_similar_values() -> None:
    keys = [key({"x": value}) for value in SIMILAR]
    meanings = [meaning(value) for value in SIMILAR]
    for k in range(len(SIMILAR)):
        for j in range(k):
            assert (keys[k] == keys[j]) == (meanings[k] == meanings[j]), f"{SIMILAR[k]!r} and {SIMILAR[j]!r}"


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1, 1) | st.floats(-1e17, 1e17))
@example(1e-4)
@example(9.999999999999999e-05)
@example(9999999999999998.0)
@example(0.00001)
@example(1.5e16)
def test_floats_do_not_depend_on_the_version_of_orjson(value: float) -> None:
    """Written in full between 10^-4 and 10^16, like Python; outside of that by our own code."""
    written = split(KEYER.read(Endpoint.CHAT, {"x": value}).keys[0].canonical)[1].decode()
    number = written.removeprefix('{"x":').removesuffix("}")
    digits = repr(value).removesuffix(".0").replace("-0", "0") if value == 0 else repr(value).removesuffix(".0")
    assert number == digits if "e" not in repr(value) else "+" not in number
    assert meaning(reference.read(written.encode())) == meaning({"x": value})


@given(bodies, st.data())
def test_both_parsers_agree(body: dict[str, Any], data: st.DataObject) -> None:
    text = write_json(data.draw, body).encode()
    assert canonical(parse_body(text)) == canonical(parse_text_exactly(text))


def canonical(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)


@given(st.data(), bodies)
def test_json_text_has_the_key_of_its_objects(data: st.DataObject, body: dict[str, Any]) -> None:
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
def test_duplicate_names_are_always_found(data: st.DataObject, body: dict[str, Any]) -> None:
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


@settings(max_examples=examples(80, 200))
@given(bodies, st.data())
def test_damaged_text_is_parsed_like_the_reference_or_rejected(body: dict[str, Any], data: st.DataObject) -> None:
    neat = json.dumps(without_decimals(body), ensure_ascii=False)
    text = bytearray((neat if data.draw(st.booleans()) else write_json(data.draw, body)).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2)
            | st.sampled_from([b'"', b"\\", b"{", b'"a":1,', b"1e", b"\\ud800", b"NaN", b"\xff", b"0"])
        )
    compare_with_reference(bytes(text))


@given(st.binary(max_size=40))
@example(b"\xef\xbb\xbf{}")
@example(b"{}\x00")
@example(b'{"a":1e9999999999999999999}')
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
    compare_with_reference(text)


def compare_with_reference(text: bytes) -> None:
    try:
        wanted = reference.read(text)
    except ValueError:
        wanted = None
    rejected, found = "", b""
    try:
        found = KEYER.read(Endpoint.CHAT, text).keys[0].canonical
    except Uncacheable as error:
        rejected = str(error)
    if rejected:
        limits = re.search("digits|characters|beyond", rejected)  # the reference has no limits
        assert not isinstance(wanted, dict) or limits, f"rejected, {rejected}: {text!r}"
    else:
        assert isinstance(wanted, dict), f"accepted: {text!r}"
        counted = {name: value for name, value in wanted.items() if name not in EXCLUDED}
        assert meaning(reference.read(split(found)[1])) == meaning(counted)


@given(bodies)
def test_objects_are_not_changed(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    KEYER.read(Endpoint.CHAT, body)
    assert repr(body) == repr(before)


@given(bodies, texts, texts, st.dictionaries(texts, texts, max_size=2), st.dictionaries(texts, texts, max_size=2))
def test_namespaces_and_contexts_have_different_keys(
    body: dict[str, Any], one: str, other: str, here: dict[str, str], there: dict[str, str]
) -> None:
    same = (one, here) == (other, there)
    assert (key(body, namespace=one, context=here) == key(body, namespace=other, context=there)) == same
    parts = split(KEYER.read(Endpoint.CHAT, body, one, here).keys[0].canonical)[0]
    assert parts[2] == one.encode()


@given(values)
def test_endpoints_have_different_keys(value: Any) -> None:
    keys = {KEYER.read(at, {"input": "text", "x": value}).keys[0].digest for at in Endpoint}
    assert len(keys) == len(Endpoint)


@given(bodies, st.sampled_from(sorted(EXCLUDED)), values)
def test_excluded_fields_change_nothing_unless_included(body: dict[str, Any], name: str, value: Any) -> None:
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
