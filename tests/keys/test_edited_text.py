"""An edited body is the caller's text with the edit: the rest stays byte for byte, however it is spelled.

Texts are spelled at random from a tree that keeps every byte, so the expected text of an edit is made from the
tree, and not by reading the text.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from knapcache.errors import Uncacheable
from knapcache.exchange.exchange import make_exchange, parse_request
from knapcache.features.prefix.blocks import read_blocks
from knapcache.features.prefix.marks import with_cache_key, with_marks
from knapcache.keys.edited_text import edited_text, with_field
from knapcache.keys.parse import parse_body
from knapcache.model import Endpoint
from tests.support.timing import check_linear

NUMBERS = (
    "18446744073709551616", "-18446744073709551617", "123456789012345678901234567890", "1.0", "-0.0", "0", "1.10",
    "1e5", "1E+2", "0.1e-7", "5e-324", "2.500", "9007199254740993", "3.14159265358979323846", "-1",
)  # fmt: skip
STRINGS = (
    '"a"',
    '""',
    r'"\u0041\n"',
    r'"\"quoted\""',
    r'"\\"',
    r'"\/"',
    '"größer — 大"',
    r'"\ud83d\ude00"',
    '"[{,:}]"',
    '"  "',
)
MARK = {"type": "ephemeral"}
MARK_TEXT = b',"cache_control":{"type":"ephemeral"}'


@dataclass
class Node:
    """A value of a JSON text. pieces: bytes and inner nodes; fields and items: the inner nodes by name and index."""

    pieces: list[bytes | Node]
    fields: dict[str, Node] = field(default_factory=dict)
    items: list[Node] = field(default_factory=list)
    is_object: bool = False
    is_list: bool = False

    def text(self) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece.text() for piece in self.pieces)

    def append(self, text: bytes) -> None:
        """Insert a text before the closing bracket, and before the white space there."""
        self.pieces[-1:] = [text, self.pieces[-1]]


class Speller:
    """Spells JSON at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def blank(self) -> bytes:
        return self._rng.choice((b"", b"", b" ", b"\n\t", b"\r\n  "))

    def leaf(self) -> Node:
        return Node([self._rng.choice((*NUMBERS, *STRINGS, "null", "true", "false")).encode()])

    def value(self, depth: int = 0) -> Node:
        kind = self._rng.random()
        if depth > 3 or kind < 0.5:
            return self.leaf()
        count = self._rng.randrange(4)
        if kind < 0.75:
            return self.object({f"n{k}": self.value(depth + 1) for k in range(count)})
        return self.list([self.value(depth + 1) for _ in range(count)])

    def object(self, fields: dict[str, Node]) -> Node:
        pieces: list[bytes | Node] = [b"{" + self.blank() * bool(fields)]
        for k, (name, value) in enumerate(fields.items()):
            spelled = self._rng.choice((f'"{name}"', f'"\\u{ord(name[0]):04x}{name[1:]}"')).encode()
            # A blank before the colon: the proxy writes none, so its marks can be told from the caller's text.
            pieces += [(b"," + self.blank()) * bool(k) + spelled + b" :" + self.blank(), value]
        return Node([*pieces, self.blank() + b"}"], fields, is_object=True)

    def list(self, items: list[Node]) -> Node:
        pieces: list[bytes | Node] = [b"[" + self.blank()]
        for k, item in enumerate(items):
            pieces += [(self.blank() + b"," + self.blank()) * bool(k), item]
        return Node([*pieces, self.blank() + b"]"], items=items, is_list=True)


def random_body(rng: random.Random) -> Node:
    speller = Speller(rng)
    root = speller.object({f"f{k}": speller.value() for k in range(rng.randrange(1, 6))})
    root.pieces[0] = speller.blank() + b"{" + speller.blank()
    return root


def mark_random_place(rng: random.Random, root: Node, body: dict[str, Any]) -> dict[str, Any]:
    """Mark one object or string of the tree, and return the body with the same mark."""
    node, path = root, list[str | int]()
    while inner := list[tuple[Any, Node]]([*node.fields.items(), *enumerate(node.items)]):
        if path and rng.random() < 0.4:
            break
        step, node = rng.choice(inner)
        path.append(step)
    if node.is_list:
        node, path = root, []

    def copied(value: Any, steps: list[str | int]) -> Any:
        if not steps:
            return {**value, "cache_control": MARK} if node.is_object else [{"text": value, "cache_control": MARK}]
        copy = value.copy()
        copy[steps[0]] = copied(value[steps[0]], steps[1:])
        return copy

    after: dict[str, Any] = copied(body, path)
    if node.is_object:
        node.append(MARK_TEXT if node.fields else MARK_TEXT[1:])
    else:
        node.pieces = [b'[{"text":', Node(node.pieces), MARK_TEXT + b"}]"]
    return after


@pytest.mark.parametrize("cases", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_an_edit_changes_no_other_byte(cases: int) -> None:
    rng = random.Random(cases)
    for _ in range(cases):
        root = random_body(rng)
        text = root.text()
        body = parse_body(text)
        after = mark_random_place(rng, root, body)
        assert edited_text(text, body, after) == root.text(), text


def test_marks_of_the_prefix_tier_change_no_other_byte() -> None:
    rng = random.Random(2)
    speller = Speller(rng)
    wrapped = re.compile(rb'\[\{"type":"text","text":("(?:[^"\\]|\\.)*"),"cache_control":\{"type":"ephemeral"\}\}\]')
    marked = 0
    for _ in range(200):
        block = {"type": Node([b'"text"']), "text": Node([rb'"a\u0042 \"c\""']), "extra": speller.value()}
        messages = [
            speller.object(
                {
                    "role": Node([b'"user"']),
                    "content": rng.choice((Node([rb'"a\/b"']), speller.list([speller.object(block)]))),
                }
            )
            for _ in range(rng.randrange(1, 4))
        ]
        fields = {"model": Node([b'"m"']), "seed": speller.leaf(), "messages": speller.list(messages)}
        text = speller.object(fields).text()
        body = parse_body(text)
        blocks = read_blocks(Endpoint.MESSAGES, body, "seed")
        assert blocks is not None
        places = [at for at, markable in enumerate(blocks.markable) if markable]
        found = edited_text(text, body, with_marks(Endpoint.MESSAGES, body, [(rng.choice(places), 300.0)]))
        marked += found != text
        assert wrapped.sub(rb"\1", found).replace(MARK_TEXT, b"") == text
    assert marked == 200


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        ('{ "a" : 1.0 , "b" : 2 }', "a", '{ "a" : 1.0 }'),
        ('{ "a" : 1.0 , "b" : 2 }', "b", '{ "b" : 2 }'),
        ('{ "a" : 1.0 , "b" : 2 }', "", "{  }"),
        ('{"a":1,"b":2,"c":3,"d":4}', "bd", '{"b":2,"d":4}'),
        ('{"a":1,"b":2,"c":3,"d":4}', "ad", '{"a":1,"d":4}'),
    ],
)
def test_fields_are_removed_with_their_commas(text: str, names: str, expected: str) -> None:
    body = parse_body(text.encode())
    assert edited_text(text.encode(), body, {name: body[name] for name in names}).decode() == expected


def test_items_of_a_shorter_or_longer_list_keep_their_text() -> None:
    text = b'{"input": [ "\\u0041", "b",[1.0, 2], "d" ] }'
    body = parse_body(text)
    a, b, c, d = body["input"]
    assert edited_text(text, body, {"input": [d, c]}) == b'{"input": [ "d",[1.0, 2] ] }'
    assert edited_text(text, body, {"input": [a, b, {"new": 1}, c, d]}) == (
        b'{"input": [ "\\u0041","b",{"new":1},[1.0, 2],"d" ] }'
    )
    assert edited_text(b'{"input": [ ]}', parse_body(b'{"input": [ ]}'), {"input": [1]}) == b'{"input": [1 ]}'


def test_a_field_is_set_in_any_object() -> None:
    for text, expected in (
        (b'{"model": "a", "x": 1.0}', b'{"model": "b", "x": 1.0}'),
        (b' { "x" : 1.0 } ', b' { "x" : 1.0,"model":"b" } '),
        (b"{ }", b'{"model":"b" }'),
        (rb'{"mode\u006c":"a","model":null, "y":{"model":"a"}}', rb'{"mode\u006c":"b","model":"b", "y":{"model":"a"}}'),
        (b'{"a":1,"a":2,"model":"a"}', b'{"a":1,"a":2,"model":"b"}'),
    ):
        assert with_field(text, "model", "b") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "[1]",
        "1",
        '{"a"',
        '{"a":',
        '{"a":1',
        '{"a":"b',
        '{"a":[1',
        "{1 2}",
        '{"a":"\\"}',
        '{"}":"\\"',
        "{,}",
        '{"a"}',
    ],
)
def test_a_text_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not|JSON|expected"):
        with_field(text.encode(), "model", "b")


def test_what_the_proxy_edits_in_a_body_leaves_the_rest() -> None:
    raw = (
        b'{ "model": "m", "stream":true, "seed": 18446744073709551616, "cache": {"ttl": 9},\n'
        b' "stream_options": {"include_usage": false , "x": 1.10}, "messages": [{"role":"user","content":"\\u0041"}] }'
    )
    parsed = parse_request(raw)
    assert not isinstance(parsed, Uncacheable)
    exchange = make_exchange(Endpoint.CHAT, {}, raw, parsed, None, {})
    without_directives = raw.replace(b' "cache": {"ttl": 9},', b"")
    assert exchange.upstream_body(False) == without_directives
    asked = without_directives.replace(b"false ,", b"true ,")
    assert exchange.upstream_body(True) == asked
    keyed = exchange.upstream_body(True, with_cache_key(parsed, "k"))
    assert keyed == asked[:-2] + b',"prompt_cache_key":"k" }'


@pytest.mark.parametrize("inner", ['{"a":["b",1]},', r'"\"\\",', '"' + 40 * "abc" + '",', "1,"])
def test_time_is_linear(inner: str) -> None:
    def prepare(size: int) -> Any:
        text = b'{"a":[' + inner.encode() * size + b'0],"b":1}'
        body = orjson.loads(text)
        return lambda: edited_text(text, body, {**body, "b": 2})

    check_linear(prepare, 500, "splicing a body")
