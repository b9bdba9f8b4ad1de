"""Replies of another form than that of the command: another program at the server's address may send anything."""

from __future__ import annotations

from typing import Any

import pytest

from knapcache.errors import StoreError
from knapcache.store.redis import scripts
from knapcache.store.redis.server import check_reply

PAIR = {b"a": b"1"}
GOOD: list[tuple[tuple[Any, ...], list[Any], list[Any]]] = [
    (("GET", b"k"), [b"", None], [1, "text", [b""]]),
    (("MGET", b"k", b"l"), [[b"", None]], [[b""], [b"", b"", b""], [b"", 1], b"ab", (b"", b"")]),
    (("HMGET", b"k", b"f"), [[None]], [[], [b"", b""], [1]]),
    (("HVALS", b"k"), [[], [b""]], [[None], b"", None]),
    (("HGETALL", b"k"), [{}, PAIR], [{b"a": 1}, {"a": b"1"}, [b"a", b"1"]]),
    (("HSCAN", b"k", 0), [(0, {}), (b"7", PAIR)], [(b"x", {}), (0, []), (0, {}, {}), [0, {}], None]),
    (("ZREVRANGE", b"k", 0, 1), [[], [(b"m", 1.0)]], [((b"m", 1.0),), [[b"m", 1.0]], [("m", 1.0)], [(b"m", b"1")]]),
    (("XRANGE", b"k"), [[], [(b"1-0", PAIR)]], [[("1-0", PAIR)], [(b"1-0", [])], ((b"1-0", PAIR),)]),
    (("INFO",), [{}], [b"", None]),
    (("EXISTS", b"k"), [0, 1], [b"1", None]),
    (("WAIT", 1, 1), [0, {"node": 1}], [b"1", None]),
    (("EVALSHA", scripts.sha1_of(scripts.OPEN)), [[1, 2, 3, 4]], [[1, 2, 3], [1, 2, 3, b"4"], (1, 2, 3, 4)]),
    (
        ("EVALSHA", scripts.sha1_of(scripts.DECIDE)),
        [[1, 2, 3, 4, b""]],
        [[1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, b"4", b""], [1, 2, 3, 4, b"", b""]],
    ),
    (("EVALSHA", scripts.sha1_of(scripts.PARK)), [b""], [None, 0]),
    (("EVALSHA", scripts.sha1_of(scripts.TAKE)), [[b""]], [[None], b""]),
    (("EVALSHA", scripts.sha1_of(scripts.DESCRIBE)), [[b"", None, b"", b"", b""]], [[b""] * 4, [0] * 5]),
    (("EVALSHA", scripts.sha1_of(scripts.ACQUIRE)), [b"", None], [0]),
    (("EVALSHA", scripts.sha1_of(scripts.LEAD)), [b"", 0, 1], [2, None, "1"]),
]


@pytest.mark.parametrize(("arguments", "good", "bad"), GOOD, ids=lambda value: str(value[0]) if value else "")
def test_replies_of_another_form_are_errors(arguments: tuple[Any, ...], good: list[Any], bad: list[Any]) -> None:
    for reply in good:
        assert check_reply(arguments, reply) is reply
    for reply in bad:
        with pytest.raises(StoreError, match=r"of another (form|length)"):
            check_reply(arguments, reply)


def test_a_reply_to_a_command_without_a_known_form_is_returned() -> None:
    assert check_reply(("SET", b"k", b"v"), True) is True
