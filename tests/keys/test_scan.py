"""The cost of a JSON text is bounded before it is parsed, and the bounds hold."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import InvalidInput, Uncacheable
from knapcache.keys import parse, scan
from tests.support.keys_reference import bodies, write_json

MB = 1 << 20


def values_of(body: Any) -> tuple[int, int, int]:
    """Return values and names, containers, and the characters of strings."""
    if isinstance(body, dict):
        inner = [values_of(item) for pair in body.items() for item in pair]
    elif isinstance(body, list):
        inner = [values_of(item) for item in body]
    else:
        return 1, 0, len(body) if isinstance(body, str) else 0
    values, containers, text = (sum(each) for each in zip(*inner, strict=True)) if inner else (0, 0, 0)
    return values + 1, containers + 1, text


@given(bodies, st.data())
def test_the_counts_are_upper_bounds(body: dict[str, Any], data: st.DataObject) -> None:
    text = write_json(data.draw, body).encode()
    values, containers, characters = values_of(json.loads(text))
    exact, quick = scan.exact_cost(text), scan.quick_cost(text)
    assert exact.containers == containers
    assert values - 1 <= exact.values + 1 <= values + containers + 1
    assert characters <= exact.text
    assert quick.values >= exact.values
    assert quick.containers >= exact.containers
    with mock.patch.object(scan, "SLICE", 4):
        assert scan.exact_cost(text)[:2] == exact[:2]


@given(bodies, st.data())
def test_strings_are_found_as_a_parser_finds_them(body: dict[str, Any], data: st.DataObject) -> None:
    text = write_json(data.draw, body).encode()
    rest, at = b"", 0
    for start, end in scan.strings(text):
        json.loads(text[start:end])
        rest += text[at:start]
        at = end
    assert b'"' not in rest + text[at:]


@given(bodies, st.data())
def test_the_model_is_found_without_parsing(body: dict[str, Any], data: st.DataObject) -> None:
    body["model"] = data.draw(st.sampled_from(["m", "gpt-4o", "é\n", '"', "\\", 'a"\\b', "\U0001f600"]))
    assert scan.find_model(write_json(data.draw, body).encode()) == body["model"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"model":1}',
        b'{"model":["m"]}',
        b'{"a":{"model":"m"}}',
        b'{"a":["model","m"]}',
        b'["model","m"]',
        b'{"a":"model"}',
        b'{"model"',
        b'{"model": 1, "a": "b"}',
        b'{"model":"\\x"}',
        b'{"model":"m\xff"}',
        b'{"a": "\\"model\\": \\"m\\""}',
        b'{"model":"' + b"m" * 7000 + b'"}',
        b'{"a":"' + b"\\" * 9999,
    ],
)
def test_no_model_is_found_where_there_is_none(text: bytes) -> None:
    assert scan.find_model(text) == ""


def test_the_search_for_a_model_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_TOKENS", 5000)
    text = b'{"a":[' + b",".join([b'"b"'] * 5001) + b'],"model":"m"}'
    with pytest.raises(Uncacheable, match="more than 5000 strings"):
        scan.find_model(text)
    assert scan.find_model(b'{"model":"m",' + text[1:]) == "m"
    with pytest.raises(Uncacheable, match="more than 5000 strings"):
        scan.find_model(b'{"a":"' + b'\\"' * 5001 + b'","model":"m"}')


ACCEPTED = {
    "base64": b'{"a":"' + b"x" * (7 * MB) + b'"}',
    "a long string of Latin-1": b'{"a":"' + "é".encode() * (3 * MB) + b'"}',
    "a long string of Chinese": b'{"a":"' + "中".encode() * (2 * MB) + b'"}',
    "an image and a short text with an emoji": '{"a":"\U0001f600","b":"'.encode() + b"x" * (7 * MB) + b'"}',
    "the same, escaped": b'{"a":"\\ud83d\\ude00","b":"' + b"x" * (7 * MB) + b'"}',
    "commas inside a string": b'{"a":"' + b"1,2:[" * MB + b'"}',
    "300,000 tokens": b'{"input":[' + b",".join([b"12345"] * 300_000) + b"]}",
    "floats": b'{"input":[' + b",".join([b"0.12345678901"] * 250_000) + b"]}",
    "escapes": b'{"a":"' + b"\\n\\u0000" * 400_000 + b'"}',
}
REFUSED = {
    "an emoji in a long string": '{"a":"\U0001f600'.encode() + b"x" * (7 * MB) + b'"}',
    "an escaped emoji in a long string": b'{"a":"\\ud83d\\ude00' + b"x" * (7 * MB) + b'"}',
    "objects": b'{"x":[' + b",".join([b'{"a":{}}'] * 100_000) + b"]}",
    "lists": b'{"x":[' + b",".join([b"[]"] * 100_000) + b"]}",
    "nested lists": b'{"x":' + b"[" * 100_000,
    "values": b'{"x":[' + b",".join([b"1"] * 500_000) + b"]}",
    "short strings": b'{"x":[' + b",".join([b'"a"'] * 500_000) + b"]}",
    "newlines": b'{"a":"' + b"\\n" * 1_000_001 + b'"}',
}


def status(field: str) -> int:
    """Return a size from the kernel's record of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", ACCEPTED)
def test_memory_is_bounded(name: str) -> None:
    """The resident memory, because orjson reserves twelve times the text and touches little of it."""
    text = ACCEPTED[name]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before = status("VmRSS")
    body = parse.parse_text(text)
    growth, limit = status("VmHWM") - before, scan.max_memory(text)
    assert body
    assert len(text) + growth <= limit + MB


@pytest.mark.parametrize("name", REFUSED)
def test_expensive_texts_are_refused_before_a_parser_sees_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orjson, "loads", lambda _: pytest.fail("parsed"))
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(Uncacheable, match=r"more than|parsing takes"):
        parse.parse_text(REFUSED[name])


@pytest.mark.parametrize(
    "text",
    [
        b'{"x":[' + b",".join([b"1e0"] * 60_000) + b"]}",
        b'{"x":[' + b",".join([b"0." + b"7" * 300] * 60_000) + b"]}",
        b'{"a":"\\u0041","x":[' + b",".join([b"12"] * 60_000) + b"]}",
        '{"a":"\\u0041","b":"\U0001f600","c":"'.encode() + b"x" * (7 * MB) + b'"}',
    ],
)
def test_the_standard_library_gets_no_long_texts(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(Uncacheable, match="unusual numbers, escapes or names"):
        parse.parse_text(text)


@given(bodies, st.data(), st.booleans(), st.integers(4, 9))
def test_texts_are_compared_in_slices(body: dict[str, Any], data: st.DataObject, ascii_only: bool, size: int) -> None:
    """What a JSON writer writes passes the check; a change of one byte does not, unless it is white space."""
    values = json.loads(write_json(data.draw, body))
    try:
        written = orjson.dumps(values)
    except TypeError:  # an integer of more than 64 bits
        return
    text = json.dumps(
        values, ensure_ascii=ascii_only, separators=data.draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    )
    if json.loads(written) != values or "e-" in text or "e+" in text:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parse, "SLICE", size)
        assert parse.is_lossless(written, text.encode())
        assert not parse.is_lossless(written, text.encode() + b"1")
        assert not parse.is_lossless(written, text.encode()[:-1])
        k = data.draw(st.integers(0, len(written.decode())))
        changed = f"{written.decode()[:k]}\x7f{written.decode()[k:]}"
        assert not parse.is_lossless(changed.encode(), text.encode())


@pytest.mark.parametrize(
    "text",
    [b'{"model":"a","model":"b"}', b'{"model":5,"model":"b"}', b'{"x":{"model":1},"model":"a", "mo\\u0064el" : 1}'],
)
def test_two_models_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="twice"):
        scan.find_model(text)


@pytest.mark.parametrize(
    "text", [b'{"model":"a","x":{"model":"b","model":"c"}}', b'{"x":["model"],"model":"a","y":"model"}']
)
def test_a_model_that_is_not_at_the_top_is_no_second_one(text: bytes) -> None:
    assert scan.find_model(text) == "a"
