"""The form of the server's replies. Another program at the address may send anything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from knapcache.errors import StoreError
from knapcache.store.redis import scripts
from knapcache.store.redis.call_scripts import COUNT_CALLS


def _text(reply: Any) -> bool:
    return reply is None or isinstance(reply, bytes)


def _texts(reply: Any) -> bool:
    return isinstance(reply, list) and all(map(_text, reply))


def _present(reply: Any) -> bool:
    return isinstance(reply, list) and all(isinstance(each, bytes) for each in reply)


def _table(reply: Any) -> bool:
    return isinstance(reply, dict) and all(isinstance(each, bytes) for pair in reply.items() for each in pair)


def _scan(reply: Any) -> bool:
    return isinstance(reply, tuple) and len(reply) == 2 and str(reply[0]).strip("b'").isdecimal() and _table(reply[1])


def _scores(reply: Any) -> bool:
    return isinstance(reply, list) and all(
        isinstance(row, tuple) and isinstance(row[0], bytes) and isinstance(row[1], float) for row in reply
    )


def _records(reply: Any) -> bool:
    return isinstance(reply, list) and all(isinstance(row[0], bytes) and _table(row[1]) for row in reply)


def _books(reply: Any) -> bool:
    return isinstance(reply, list) and len(reply) >= 4 and all(isinstance(each, int) for each in reply[:4])


_OF_COMMANDS: dict[str, Callable[[Any], bool]] = {
    "GET": _text, "HGET": _text, "GETRANGE": _text, "MGET": _texts, "HMGET": _texts, "HVALS": _present,
    "ZRANGEBYSCORE": _present, "HGETALL": _table, "HSCAN": _scan, "ZREVRANGE": _scores, "XRANGE": _records,
    "INFO": lambda reply: isinstance(reply, dict), "EXISTS": lambda reply: isinstance(reply, int),
    "XLEN": lambda reply: isinstance(reply, int), "WAIT": lambda reply: isinstance(reply, (int, dict)),
}  # fmt: skip
_OF_SCRIPTS: dict[str, Callable[[Any], bool]] = {
    scripts.SHA1[script]: accepts
    for script, accepts in (
        (scripts.OPEN, _books),
        (scripts.DECIDE, lambda reply: _books(reply) and len(reply) == 5 and isinstance(reply[4], bytes)),
        (scripts.PARK, lambda reply: isinstance(reply, bytes)),
        (scripts.TAKE, _present),
        (scripts.TAKE_COUNTS, _present),
        (scripts.TAKE_OWNER_REQUESTS, _present),
        (scripts.DESCRIBE, lambda reply: _texts(reply) and len(reply) == 5),
        (scripts.ACQUIRE, _text),
        (scripts.LEAD, lambda reply: isinstance(reply, bytes) or reply in (0, 1)),
        (COUNT_CALLS, _present),
    )
}
_EXPECTED_LENGTHS = {"MGET": 1, "HMGET": 2}
"""Arguments that are not names of values, of commands that return one value for each name."""


def check_reply(arguments: Sequence[Any], reply: Any) -> Any:
    """Return the reply of a command; StoreError if it has another form than that of the command."""
    name = arguments[0]
    accepts = _OF_SCRIPTS.get(arguments[1]) if name == "EVALSHA" else _OF_COMMANDS.get(name)
    if accepts is not None and not accepts(reply):
        raise StoreError("the server sent a reply of another form")
    if name in _EXPECTED_LENGTHS and len(reply) != len(arguments) - _EXPECTED_LENGTHS[name]:
        raise StoreError("the server sent a reply of another length")
    return reply
