"""The cost of a JSON text at its limits, and texts that are compared in slices."""

from __future__ import annotations

import json

import pytest

from knapcache.errors import Uncacheable
from knapcache.keys import parse, scan


@pytest.mark.parametrize(
    ("limit", "text", "count"),
    [
        ("MAX_CONTAINERS", b'{"a":[[],{}]}', 4),
        ("MAX_VALUES", b'{"a":[1,2,3]}', 5),
        ("MAX_ESCAPES", rb'{"a":"\n\t\u0041"}', 3),
    ],
)
def test_limits_are_inclusive(monkeypatch: pytest.MonkeyPatch, limit: str, text: bytes, count: int) -> None:
    monkeypatch.setattr(scan, limit, count)
    scan.check_cost(text)
    monkeypatch.setattr(scan, limit, count - 1)
    with pytest.raises(Uncacheable, match=f"more than {count - 1}"):
        scan.check_cost(text)


def test_the_limit_of_memory_is_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"a":["text",1,{"b":null}]}'
    needed = scan.memory(text, scan.exact_cost(text))
    monkeypatch.setattr(scan, "MEMORY_FACTOR", 0)
    monkeypatch.setattr(scan, "MEMORY_FLOOR", needed)
    scan.check_cost(text)
    monkeypatch.setattr(scan, "MEMORY_FLOOR", needed - 1)
    quick = scan.memory(text, scan.quick_cost(text))
    if quick <= needed - 1:
        monkeypatch.setattr(scan, "MEMORY_FLOOR", min(quick, needed) - 1)
    with pytest.raises(Uncacheable, match="parsing takes more than"):
        scan.check_cost(text)


@pytest.mark.parametrize("size", range(4, 12))
def test_slices_do_not_split_characters(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(parse, "SLICE", size)
    text = json.dumps({"a": 'aé€😀 \\ " ' * 5}, ensure_ascii=False)
    pieces = list(parse.escaped(text.encode()))
    assert len(pieces) > 5
    assert b"".join(pieces) == json.dumps(json.loads(text)).replace(" ", "").encode()


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("plain", 0),
        (r"\u00e9", 2),
        (r"\ud83d\ude00", 4),
        (r"\uD83D\uDE00", 4),
        ("é", 1),
        ("ÿ", 1),
        ("Ā", 2),
        ("€", 2),
        ("é\\u20ac", 2),
        ("é\\ud83d", 4),
        ("é\\uD83D", 4),
        ("😀", 4),
    ],
)
def test_the_width_of_characters(text: str, width: int) -> None:
    assert scan.width(text.encode()) == width


@pytest.mark.parametrize(
    ("text", "width"), [("a", 1), ("é", 1), ("aé", 1), ("a€", 2), ("€é", 2), ("😀é", 4), ("a😀", 4)]
)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_the_size_of_a_string(monkeypatch: pytest.MonkeyPatch, text: str, width: int, size: int) -> None:
    """As Python stores it, and of its UTF-8 if it is not ASCII."""
    monkeypatch.setattr(scan, "SLICE", size)
    content = ("[" + 30 * text).encode()
    encoded = 0 if text.isascii() else len(content) - 1
    assert scan.string_size(content, 1, len(content)) == (width * 30 * len(text), encoded)
    assert scan.count(content, (b"[", b"a")) == 1 + 30 * text.count("a")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1023, 1024, 1025, 2048, 5000])
@pytest.mark.parametrize("before", [b"", b"x", b"~", b"x" * 3000])
def test_backslashes_are_counted(count: int, before: bytes) -> None:
    text = before + b"\\" * count + b'"'
    assert scan.backslashes(text, len(text) - 1) == count


def test_the_limit_of_memory_is_inclusive_where_strings_contain_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"a":"[[[[[[[["}'
    needed = scan.memory(text, scan.exact_cost(text))
    assert scan.memory(text, scan.quick_cost(text)) > needed
    monkeypatch.setattr(scan, "MEMORY_FACTOR", 0)
    monkeypatch.setattr(scan, "MEMORY_FLOOR", needed)
    scan.check_cost(text)
    monkeypatch.setattr(scan, "MEMORY_FLOOR", needed - 1)
    with pytest.raises(Uncacheable, match="parsing takes more than"):
        scan.check_cost(text)


@pytest.mark.parametrize("text", [b'"a" "b" "c"', rb'"a" "\""', rb'"\"\""'])
def test_the_limit_of_strings_and_escaped_quotes_is_inclusive(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(scan, "MAX_TOKENS", 3)
    assert list(scan.strings(text))[-1][1] == len(text)
    monkeypatch.setattr(scan, "MAX_TOKENS", 2)
    with pytest.raises(Uncacheable, match="more than 2 strings"):
        list(scan.strings(text))
