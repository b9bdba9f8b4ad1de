"""Canonical requests and their keys: same meaning ⇔ same key.

    canonical = netstrings(version, endpoint, namespace, context) + canonical JSON of the body
    digest    = BLAKE2b-256(canonical), keyed with the server's secret

Canonical JSON is compact UTF-8 with names sorted by code point, numbers in normal form (`numbers.py`) and text as it
is. Nothing is lowercased, trimmed or Unicode-normalised, because a model may answer differently. Fields that cannot
change the answer are left out (`rules.py`), and so are marks for the provider's prompt cache (`cache_marks.py`). Null
differs from absent, and no defaults are filled in: what a missing field means is up to the provider, and changes.

A netstring is a length, a colon and that many bytes, so no field can run into the next. The store keeps the canonical
request with the answer: a hit whose canonical request differs is a miss. The digest is keyed, so that a digest in a log
or header does not reveal the request to anyone without the secret.

Embeddings have one key per item of `input`: a text has the same key alone, in a list, or among others.

    canonical of an item = netstrings(version, …, context, common) + canonical JSON of the item

`common` is the canonical JSON of the body without `input`. A long one is replaced by its digest, so the work for all
items together is linear in the body. It cannot be mistaken for JSON of an object, which starts with a brace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from knapcache.errors import InvalidInput, Uncacheable
from knapcache.keys.cache_marks import edit_marks
from knapcache.keys.parse import ParsedBody, normalized_copy, parse_text
from knapcache.keys.request import Key, KeyedRequest, UnkeyedRequest
from knapcache.keys.rules import CROSS_ITEM_OPTIONS, STATEFUL_FIELDS, Rules
from knapcache.model import REQUEST_VERSION, Endpoint

VERSION = REQUEST_VERSION
DIGEST_SIZE = 32
MAX_ITEMS = 2048
"""Items of `input` in one request: OpenAI's limit. A request with more has no keys."""
MAX_COMMON = 1024
"""Bytes of the common part of embeddings that each item's canonical request repeats."""
MAX_CACHED_PREFIX = 1024
"""Characters of a namespace and a context whose prefix is cached. Both may come from a client."""


class RequestKeys(NamedTuple):
    """A parsed request and its keys."""

    endpoint: Endpoint
    body: dict[str, Any]
    """The whole body, numbers in normal form (orjson.Fragment for one that no double holds). Read-only."""
    keys: tuple[Key, ...]
    """One; for embeddings one per item of `input`, in order."""


class Keyer:
    """Computes keys. Stateless: the same secret and rules give the same keys on every machine."""

    def __init__(self, secret: bytes, rules: Rules | None = None) -> None:
        if not isinstance(secret, bytes) or not 16 <= len(secret) <= 64:
            size = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
            raise InvalidInput(f"the secret must be 16 to 64 bytes, not {size}")
        self.rules = rules or Rules()
        self._excluded = {at: self.rules.excluded(at) for at in Endpoint}
        self._marks = {at: self.rules.excluded_marks(at) for at in Endpoint}
        self._keyed_hash = hashlib.blake2b(key=secret, digest_size=DIGEST_SIZE)

    def read(
        self,
        endpoint: Endpoint | str,
        body: bytes | bytearray | memoryview | dict[str, Any],
        namespace: str = "",
        context: Mapping[str, str] | None = None,
    ) -> RequestKeys:
        """Return the keys of a request, or raise Uncacheable.

        body        JSON text; plain objects, which are not changed; or a ParsedBody, which is not parsed again
        namespace   isolates requests: keys of different namespaces never match
        context     what else the answer depends on: the upstream, a version header
        """
        at = endpoint if type(endpoint) is Endpoint else checked_endpoint(endpoint)
        value: dict[str, Any]
        if type(body) is ParsedBody:
            value = body
        elif type(body) is bytes:
            value = parse_text(body)
        elif isinstance(body, (bytearray, memoryview)):
            value = parse_text(bytes(body))
        else:
            value = normalized_copy(body)
        prefix = key_prefix(at, checked_text(namespace), sorted_pairs(context) if context else ())
        keyed = value.copy()  # a plain dict, also for a ParsedBody
        for name in self._excluded[at].intersection(value):
            del keyed[name]
        marks = self._marks[at]
        if marks and may_have_marks(at, keyed, marks):
            keyed = edit_marks(at, keyed, marks)
        if at in STATEFUL_FIELDS:
            reject_fields(keyed, STATEFUL_FIELDS[at], "the answer depends on the state of a server")
        if at is Endpoint.EMBEDDINGS:
            reject_fields(keyed, CROSS_ITEM_OPTIONS, "the embeddings depend on one another")
            keys = self._item_keys(prefix, keyed)
        else:
            keys = (self._key(prefix, keyed),)
        return RequestKeys(at, value, keys)

    def call(self, name: str, arguments: dict[str, Any], namespace: str = "") -> Key:
        """Return the key of a function call, or raise Uncacheable. No request to an endpoint has such a key."""
        prefix = key_prefix("function", checked_text(namespace), (("name", checked_text(name)),))
        return self._key(prefix, normalized_copy(arguments))

    def combine(self, keys: Sequence[Key]) -> Key:
        """Return one key for several items that are requested and answered together."""
        return keys[0] if len(keys) == 1 else self.digested(b"".join(netstring(key.canonical) for key in keys))

    def _item_keys(self, prefix: bytes, keyed: dict[str, Any]) -> tuple[Key, ...]:
        """Return one key for each item of `input`."""
        items = embedding_inputs(keyed)
        common = orjson.dumps({**keyed, "input": None}, option=orjson.OPT_SORT_KEYS)
        if len(common) > MAX_COMMON:
            common = b"digest " + self.digested(common).digest.hex().encode()
        prefix += netstring(common)
        return tuple(self.digested(prefix + orjson.dumps(item)) for item in items)

    def _key(self, prefix: bytes, keyed: dict[str, Any]) -> Key:
        return self.digested(prefix + orjson.dumps(keyed, option=orjson.OPT_SORT_KEYS))

    def digested(self, canonical: bytes) -> Key:
        """Return the key of a canonical request."""
        digest = self._keyed_hash.copy()  # the block of the secret is hashed already
        digest.update(canonical)
        return Key(digest.digest(), canonical)


class RequestKeyer:
    """Computes the keys of requests. `namespace` is the default for requests that name none."""

    def __init__(self, keyer: Keyer, namespace: str) -> None:
        self.keyer, self._namespace = keyer, namespace

    def tenant(self, namespace: str | None) -> str:
        """Return the namespace of a request."""
        return self._namespace if namespace is None else namespace

    def key(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        namespace: str | None,
        context: Mapping[str, str] | None,
    ) -> KeyedRequest | UnkeyedRequest:
        """Return the request with its key, or with the reason why it has none."""
        if isinstance(request, KeyedRequest):
            return request
        tenant = self._namespace if namespace is None else namespace
        # A lone surrogate is not valid UTF-8, so the parser rejects it.
        body = request.encode(errors="surrogatepass") if isinstance(request, str) else request
        try:
            endpoint, parsed, keys = self.keyer.read(endpoint, body, tenant, context)
        except Uncacheable as reason:
            return UnkeyedRequest(checked_endpoint(endpoint), tenant, str(reason))
        model = parsed.get("model")
        key = keys[0] if len(keys) == 1 else self.keyer.combine(keys)
        read_later = None if endpoint is Endpoint.EMBEDDINGS else parsed
        return KeyedRequest(endpoint, key, tenant, model if type(model) is str else "", read_later)

    def items(
        self, endpoint: Endpoint, body: ParsedBody, namespace: str | None, context: Mapping[str, str] | None
    ) -> list[KeyedRequest] | UnkeyedRequest:
        """Return one request for each item of `input`, or the reason why they have no keys."""
        tenant = self.tenant(namespace)
        try:
            _, parsed, keys = self.keyer.read(endpoint, body, tenant, context)
        except Uncacheable as reason:
            return UnkeyedRequest(endpoint, tenant, str(reason))
        model = parsed.get("model")
        name = model if type(model) is str else ""
        return [KeyedRequest(endpoint, key, tenant, name) for key in keys]


def checked_endpoint(endpoint: str) -> Endpoint:
    """Return an endpoint by its name."""
    try:
        return Endpoint(endpoint)
    except ValueError:
        raise InvalidInput(f"endpoint must be one of {[str(at) for at in Endpoint]}, not {endpoint!r}") from None


def checked_text(value: str) -> str:
    """Return a namespace or a string of the context."""
    if type(value) is not str:
        raise InvalidInput(f"namespace and context must be strings, not {type(value).__name__}")
    return value


def sorted_pairs(context: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the context by name."""
    if not isinstance(context, Mapping):
        raise InvalidInput(f"context must be a mapping of strings, not {type(context).__name__}")
    return tuple(sorted((checked_text(name), checked_text(value)) for name, value in context.items()))


def key_prefix(kind: str, namespace: str, context: tuple[tuple[str, str], ...]) -> bytes:
    """Return what precedes the body in a canonical request. Short ones are cached, because there are few."""
    if len(namespace) + sum([len(name) + len(value) for name, value in context]) > MAX_CACHED_PREFIX:
        return make_prefix(kind, namespace, context)
    return cached_prefix(kind, namespace, context)


def make_prefix(kind: str, namespace: str, context: tuple[tuple[str, str], ...]) -> bytes:
    """Return what precedes the body in a canonical request."""
    try:
        inner = b"".join(netstring(word.encode()) for pair in context for word in pair)
        return b"".join(map(netstring, (VERSION, kind.encode(), namespace.encode(), inner)))
    except UnicodeEncodeError:
        raise InvalidInput("namespace and context must not contain lone surrogates") from None


cached_prefix = lru_cache(maxsize=4096)(make_prefix)


def netstring(text: bytes) -> bytes:
    """Return bytes with their length before them."""
    return b"%d:%b," % (len(text), text)


def reject_fields(body: dict[str, Any], names: tuple[str, ...], reason: str) -> None:
    """Raise Uncacheable if one of these fields is in use."""
    for name in names:
        if body.get(name) not in (None, False):
            raise Uncacheable(reason, name)


def embedding_inputs(body: dict[str, Any]) -> list[Any]:
    """Return the items of `input`: a text, an array of tokens, or a list of these."""
    value = body.get("input")
    if isinstance(value, str) or is_token_array(value):
        return [value]
    if not isinstance(value, list) or not value:
        raise Uncacheable("neither a text, nor an array of tokens, nor a list of these", "input")
    if len(value) > MAX_ITEMS:
        raise Uncacheable(f"more than {MAX_ITEMS} items", "input")
    for index, item in enumerate(value):
        if not (isinstance(item, str) or is_token_array(item)):
            raise Uncacheable("neither a text nor an array of tokens", f"input[{index}]")
    return value


def is_token_array(value: Any) -> bool:
    """Return whether a value is an array of tokens; True is not a token."""
    return type(value) is list and bool(value) and set(map(type, value)) == {int}


# Whether a body has marks for the provider's prompt cache. This is on the path of every request.


def may_have_marks(shape: str, body: dict[str, Any], fields: tuple[str, ...]) -> bool:
    """Return False only if none of these fields is at its position inside the body. Its top is not looked at.

    Every key needs to know this, and most bodies have no marks. So this is fast: it copies nothing, and does not check
    types. For a body that is not of the provider's schema it may return True; edit_marks looks again.
    """
    try:
        return FINDERS[shape](body, fields[0], fields[-1])
    except (AttributeError, LookupError, TypeError):
        return True


def _in_messages(body: dict[str, Any], one: str, other: str) -> bool:
    if "tools" in body and _in_blocks(body["tools"], one, other):
        return True
    if "system" in body and _in_blocks(body["system"], one, other):
        return True
    for message in body["messages"]:
        content = message["content"]
        if type(content) is list:  # not _in_blocks: agents send many short lists, and a call takes as long as a block
            for block in content:
                if one in block:
                    return True
                if "content" in block and type(block["content"]) is list and _in_blocks(block["content"], one, other):
                    return True
    return False


def _in_chat(body: dict[str, Any], one: str, other: str) -> bool:
    if "tools" in body:
        functions = [tool["function"] for tool in body["tools"] if "function" in tool]
        if _in_blocks(body["tools"], one, other) or _in_blocks(functions, one, other):
            return True
    for message in body["messages"]:
        if one in message or other in message:
            return True
        content = message.get("content")
        if type(content) is list and _in_blocks(content, one, other):
            return True
    return False


def _in_responses(body: dict[str, Any], one: str, other: str) -> bool:
    items = body["input"]
    for item in items if type(items) is list else ():
        if "content" in item and _in_blocks(item["content"], one, other):
            return True
        if "output" in item and _in_blocks(item["output"], one, other):
            return True
    return False


FINDERS: dict[str, Callable[[dict[str, Any], str, str], bool]] = {
    Endpoint.MESSAGES: _in_messages,
    Endpoint.CHAT: _in_chat,
    Endpoint.RESPONSES: _in_responses,
}


def _in_blocks(blocks: Any, one: str, other: str) -> bool:
    if type(blocks) is list:
        for block in blocks:
            if one in block or (one is not other and other in block):
                return True
            if "content" in block and type(inner := block["content"]) is list and _in_blocks(inner, one, other):
                return True
    return False
