"""A canonical request taken apart: its fields, its first words, and hashes that find similar requests.

    read_canonical(canonical)   endpoint, namespace, context and body; the inverse of `canonical.py`
    outline_of(canonical)       a short name for people, and FEATURES hashes of parts of the request

Two requests are similar if some of their hashes are equal. That costs one comparison of numbers for each pair, so one
request can be compared with every entry of a cache. `difference.py` then compares the few best ones exactly.

The hash `plain` ignores what most often makes two prompts differ by accident: white space, upper and lower case, and
words with digits (times, counters, ids).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zlib
from typing import Any, NamedTuple

import numpy as np
import orjson

from knapcache.errors import InvalidInput
from knapcache.keys.canonical import VERSION, netstring
from knapcache.keys.system_prompt import SYSTEM_FIELDS, SYSTEM_ROLES
from knapcache.model import Endpoint

MAX_WORDS = 160
"""Characters of a name."""
MAX_PARSED = 1 << 20
"""Bytes of a canonical request that is parsed: a longer one would hold the interpreter for several milliseconds."""
MAX_SAMPLED = 200
"""Words at the start, and at the end, of a prompt from which samples are drawn."""
MAX_LEFT_OUT = 64
"""Messages by which a request may be longer than the one that it continues."""
CONVERSATION = ("messages", "input", "prompt", "contents")
"""Fields that hold the conversation or the input; a request has one of them."""
SAMPLES = 6
FEATURES = (
    "kind", "namespace", "context", "model", "parameters", "system", "tools", "conversation", "last", "plain",
    "without_one", "without_two", *(f"sample {k}" for k in range(SAMPLES)),
)  # fmt: skip
"""Names of the hashes. `without_one`: the conversation without its last message. Each sample is the smallest hash of a
word of the prompt, under a hash function of its own (MinHash): two prompts with a share J of words in common have an
equal sample with probability J."""

_FACTORS = np.array([0x9E3779B97F4A7C15 * (2 * k + 1) % 2**64 | 1 for k in range(1, SAMPLES + 1)], np.uint64)
_VARYING = re.compile(r"\b[^\W\d]*\d[\w.:+-]*")


class CanonicalRequest(NamedTuple):
    """The parts of a canonical request."""

    kind: str
    """An endpoint, or "function"."""
    namespace: str
    context: dict[str, str]
    """The upstream, and headers that are part of the key."""
    body: dict[str, Any]
    """Without the fields that are not part of the key."""


class Outline(NamedTuple):
    """What the list of entries and the search for similar ones need of a request: about 700 bytes."""

    kind: str
    words: str
    """The first words of the prompt: of the last message of the user, or of the input. At most MAX_WORDS characters."""
    hashes: bytes
    """Eight bytes for each of FEATURES; zeros: the request has no such part."""


def read_canonical(canonical: bytes) -> CanonicalRequest | None:
    """Return the parts of a canonical request; None for other bytes, and for several items under one key."""
    try:
        parts, rest = _netstrings(canonical, 4)
        version, kind, namespace, inner = parts
        if version != VERSION:
            return None
        names, end = _netstrings(inner, None)
        if end or len(names) % 2:
            return None
        context = {names[k].decode(): names[k + 1].decode() for k in range(0, len(names), 2)}
        if kind.decode() == Endpoint.EMBEDDINGS:
            (common,), item = _netstrings(rest, 1)
            long = common.startswith(b"digest ")
            body = {"other fields": common.decode()} if long else _loads(common)
            body["input"] = _loads(item)
        else:
            body = _loads(rest)
    except (ValueError, RecursionError):
        return None
    return (
        CanonicalRequest(sys.intern(kind.decode()), namespace.decode(), context, body)
        if isinstance(body, dict)
        else None
    )


def with_namespace(canonical: bytes, namespace: str) -> bytes:
    """Return a canonical request in another namespace. Raises InvalidInput for several items under one key."""
    try:
        (version, kind, _, context), rest = _netstrings(canonical, 4)
    except ValueError:
        version = b""
    if version != VERSION:
        raise InvalidInput("a canonical request of several items, or of another version, cannot change its namespace")
    return b"".join(map(netstring, (version, kind, namespace.encode(), context))) + rest


def outline_of(canonical: bytes) -> Outline:
    """Return the outline of a canonical request."""
    request = read_canonical(canonical) if len(canonical) <= MAX_PARSED else None
    if request is None:
        return Outline(_kind_of(canonical), "", bytes(8 * len(FEATURES)))
    return Outline(request.kind, words_of(request), hashes_of(request))


def words_of(request: CanonicalRequest) -> str:
    """Return the first words of the prompt, in one line."""
    if request.kind == "function":
        return _cut(f"{request.context.get('name', '')} {json.dumps(request.body, ensure_ascii=False)}")
    return _cut(last_text(request))


def last_text(request: CanonicalRequest) -> str:
    """Return the text of the last message of the user, or of the whole input if it has no messages."""
    conversation = next((request.body[name] for name in CONVERSATION if name in request.body), None)
    if not isinstance(conversation, list):
        return text_of(conversation)
    if conversation and all(type(token) is int for token in conversation):
        return f"[{len(conversation)} tokens]"
    of_user = [message for message in conversation if isinstance(message, dict) and message.get("role") == "user"]
    texts = (text_of(message) for message in reversed(of_user or conversation))
    return next((text for text in texts if text), "")


def text_of(value: Any) -> str:
    """Return the text in a message, in its content, or in a part of that."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(filter(None, map(text_of, value)))
    if isinstance(value, dict):
        if value.get("type") in ("image", "image_url", "input_image", "input_audio", "file", "input_file", "document"):
            return f"[{value['type']}]"
        return text_of(value.get("content", value.get("text", value.get("output"))))
    return ""


def hashes_of(request: CanonicalRequest) -> bytes:
    """Return eight bytes for each of FEATURES."""
    body = request.body
    messages, system = conversation_of(request)
    last = last_text(request)
    plain = plain_text(last)
    special = {"model", "tools", *CONVERSATION, *SYSTEM_FIELDS}
    found = {
        "kind": request.kind,
        "namespace": request.namespace,
        "context": request.context,
        "model": body.get("model"),
        "parameters": {name: value for name, value in body.items() if name not in special},
        "system": system or None,
        "tools": body.get("tools"),
        "conversation": messages or None,
        "last": last or None,
        "plain": plain or None,
        "without_one": messages[:-1] or None,
        "without_two": messages[:-2] or None,
    }
    hashes = b"".join(hash_of(found[name]) for name in FEATURES[:-SAMPLES])
    return hashes + samples_of(plain)


def conversation_of(request: CanonicalRequest) -> tuple[list[Any], list[Any]]:
    """Return the messages without those of the system, and what the system says."""
    body = request.body
    if request.kind == "function":
        return [body], []
    found: Any = next((body[name] for name in CONVERSATION if name in body), [])
    messages = found if isinstance(found, list) else [found]
    system = [body[name] for name in SYSTEM_FIELDS if name in body]
    system += [message for message in messages if is_system(message)]
    return [message for message in messages if not is_system(message)], system


def prefix_hashes(request: CanonicalRequest) -> list[bytes]:
    """Return the hashes of the conversations that this request may continue: without its last messages."""
    messages, _ = conversation_of(request)
    return [hash_of(messages[:k]) for k in range(len(messages) - 1, max(0, len(messages) - MAX_LEFT_OUT), -1)]


def samples_of(text: str) -> bytes:
    """Return SAMPLES hashes of words of a text; zeros for fewer than three words."""
    words = text.split()
    if len(words) < 3:
        return bytes(8 * SAMPLES)
    chosen = {*words[:MAX_SAMPLED], *words[-MAX_SAMPLED:]}
    values = np.fromiter((zlib.crc32(word.encode(errors="surrogatepass")) for word in chosen), np.uint64, len(chosen))
    mixed = values[:, None] * _FACTORS + (_FACTORS >> np.uint64(7))
    mixed ^= mixed >> np.uint64(31)
    return bytes((mixed * _FACTORS).min(axis=0))


def is_system(message: Any) -> bool:
    """Return whether a message is a system prompt."""
    return isinstance(message, dict) and message.get("role") in SYSTEM_ROLES


def plain_text(text: str) -> str:
    """Return a text without what often differs by accident: case, white space, and words with digits."""
    return " ".join(_VARYING.sub("#", text.casefold()).split())


def hash_of(value: Any) -> bytes:
    """Return eight bytes that are equal for equal values; zeros for None."""
    if value is None:
        return bytes(8)
    try:
        content = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer of more than 64 bits
        content = json.dumps(value, sort_keys=True).encode(errors="surrogatepass")
    return hashlib.blake2b(content, digest_size=8).digest()


def _cut(text: str) -> str:
    text = " ".join(text[: 4 * MAX_WORDS].split())
    return text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS - 1]}…"


def _kind_of(canonical: bytes) -> str:
    try:
        return _netstrings(canonical, 2)[0][1].decode()
    except ValueError:
        return ""


def _loads(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # numbers that no double holds
        return json.loads(text)


def _netstrings(data: bytes, count: int | None) -> tuple[list[bytes], bytes]:
    """Return the first netstrings of the data, or all, and the rest. Raises ValueError."""
    found: list[bytes] = []
    at = 0
    while at < len(data) if count is None else len(found) < count:
        colon = data.index(b":", at, at + 20)
        size = int(data[at:colon])
        end = colon + 1 + size
        if size < 0 or data[end : end + 1] != b",":
            raise ValueError("not a netstring")
        found.append(data[colon + 1 : end])
        at = end + 1
    return found, data[at:]
