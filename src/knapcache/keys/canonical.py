"""Canonical requests and their keys: same meaning ⇔ same key.

    request = netstrings(version, endpoint, namespace, context) + canonical JSON of the body
    digest  = BLAKE2b-256(request), keyed with the server's secret

Canonical JSON is compact UTF-8 with names sorted by code point, numbers in normal form (`numbers.py`) and text as it
is: nothing is lowercased, trimmed or Unicode-normalised, for a model may answer differently. Fields that cannot change
the answer are left out (`rules.py`); null is not the same as absent, and no defaults are filled in, for what a missing
field means is the provider's business and changes.

A netstring is its length, a colon and its bytes, so no field can run into the next. The whole request, not the body
alone, comes out with the digest: a store keeps it, and a hit whose request differs from the kept one is a miss. The
digest is keyed so that nobody without the secret can tell from a digest, in a log or header, what was asked.

Embeddings are kept per item of `input`: one text asked for alone, in a list or among others is the same item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from knapcache.errors import InvalidInput, Uncacheable
from knapcache.keys.parse import ParsedBody, parse_text, plain
from knapcache.keys.rules import CROSS_ITEM_OPTIONS, STATEFUL_FIELDS, Rules
from knapcache.model import Endpoint

VERSION = b"knapcache request 1"
"""Part of every key: a change of what is the same makes it 2, and old entries are not found."""
DIGEST_SIZE = 32


class Key(NamedTuple):
    """What an answer is kept under."""

    digest: bytes
    """32 bytes."""
    canonical: bytes
    """All that was digested. Hits compare it."""


class Keyed(NamedTuple):
    """A request and its keys."""

    endpoint: Endpoint
    body: dict[str, Any]
    """The whole body, numbers in normal form (one that no double holds is an orjson.Fragment); not to be changed."""
    keys: tuple[Key, ...]
    """One; for embeddings one per item of `input`, in order."""


class Keyer:
    """Makes keys. Without state: the same secret and rules make the same keys, today and on another machine."""

    def __init__(self, secret: bytes, rules: Rules | None = None) -> None:
        if not isinstance(secret, bytes) or not 16 <= len(secret) <= 64:
            given = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
            raise InvalidInput(f"the secret must be 16 to 64 bytes, not {given}")
        self.rules = rules or Rules()
        self._keyed = hashlib.blake2b(key=secret, digest_size=DIGEST_SIZE)

    def read(
        self,
        endpoint: Endpoint | str,
        body: bytes | bytearray | memoryview | dict[str, Any],
        namespace: str = "",
        context: Mapping[str, str] | None = None,
    ) -> Keyed:
        """The keys of a request, or Uncacheable.

        body        JSON text, plain objects, which are not changed, or a Body, which is not read again
        namespace   whose cache it is (a tenant): no key of one is a key of another
        context     what else the answer depends on and the body does not say: the upstream, a version header
        """
        at = endpoint if type(endpoint) is Endpoint else checked(endpoint)
        value: dict[str, Any]
        if type(body) is ParsedBody:
            value = body
        elif type(body) is bytes:
            value = parse_text(body)
        elif isinstance(body, (bytearray, memoryview)):
            value = parse_text(bytes(body))
        else:
            value = plain(body)
        start = opening(at, text(namespace), pairs(context) if context else ())
        counted = value.copy()  # a plain dict, of a Body as well
        for name in self.rules.excluded(at).intersection(value):
            del counted[name]
        if at in STATEFUL_FIELDS:
            refuse(counted, STATEFUL_FIELDS[at], "an answer that depends on the state of a server")
        if at is Endpoint.EMBEDDINGS:
            refuse(counted, CROSS_ITEM_OPTIONS, "embeddings that depend on one another")
            keys = tuple(self._key(start, {**counted, "input": item}) for item in embedding_inputs(counted))
        else:
            keys = (self._key(start, counted),)
        return Keyed(at, value, keys)

    def call(self, name: str, arguments: dict[str, Any], namespace: str = "") -> Key:
        """The key of a call of a plain function, or Uncacheable. No request to an endpoint has such a key."""
        return self._key(opening("function", text(namespace), (("name", text(name)),)), plain(arguments))

    def combine(self, keys: Sequence[Key]) -> Key:
        """One key for what is asked in one request and answered in one piece."""
        return keys[0] if len(keys) == 1 else self._digested(b"".join(netstring(key.canonical) for key in keys))

    def _key(self, start: bytes, counted: dict[str, Any]) -> Key:
        return self._digested(start + orjson.dumps(counted, option=orjson.OPT_SORT_KEYS))

    def _digested(self, request: bytes) -> Key:
        digest = self._keyed.copy()  # the key's block is already in it
        digest.update(request)
        return Key(digest.digest(), request)


def checked(endpoint: str) -> Endpoint:
    """An endpoint by its name."""
    try:
        return Endpoint(endpoint)
    except ValueError:
        raise InvalidInput(f"endpoint must be one of {[str(at) for at in Endpoint]}, not {endpoint!r}") from None


def text(given: str) -> str:
    """A namespace, or a word of the context."""
    if type(given) is not str:
        raise InvalidInput(f"namespace and context must be strings, not {type(given).__name__}")
    return given


def pairs(context: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The context, in an order of its own."""
    if not isinstance(context, Mapping):
        raise InvalidInput(f"context must be a mapping of strings, not {type(context).__name__}")
    return tuple(sorted((text(name), text(value)) for name, value in context.items()))


@lru_cache(maxsize=4096)
def opening(kind: str, namespace: str, context: tuple[tuple[str, str], ...]) -> bytes:
    """All that stands before the body. Remembered, for there are few of them."""
    try:
        inner = b"".join(netstring(word.encode()) for pair in context for word in pair)
        return b"".join(map(netstring, (VERSION, kind.encode(), namespace.encode(), inner)))
    except UnicodeEncodeError:
        raise InvalidInput("namespace and context must be characters: there is a lone surrogate in them") from None


def netstring(text: bytes) -> bytes:
    """Bytes that say where they end."""
    return b"%d:%b," % (len(text), text)


def refuse(body: dict[str, Any], names: tuple[str, ...], reason: str) -> None:
    """No key where one of these fields is in use."""
    for name in names:
        if body.get(name) not in (None, False):
            raise Uncacheable(reason, name)


def embedding_inputs(body: dict[str, Any]) -> list[Any]:
    """The items of `input`: a text, an array of tokens, or a list of these."""
    given = body.get("input")
    if isinstance(given, str) or tokens(given):
        return [given]
    if not isinstance(given, list) or not given:
        raise Uncacheable("neither a text, nor an array of tokens, nor a list of these", "input")
    for index, item in enumerate(given):
        if not (isinstance(item, str) or tokens(item)):
            raise Uncacheable("neither a text nor an array of tokens", f"input[{index}]")
    return given


def tokens(value: Any) -> bool:
    """An array of tokens, numbers in normal form; True is no token."""
    return type(value) is list and bool(value) and set(map(type, value)) == {int}
