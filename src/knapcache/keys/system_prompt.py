"""The digest of the system prompt, by which entries can be purged.

    text     system prompt, instructions, and messages of the roles `system` and `developer`, in this order, with a
             line feed between two parts; line ends are LF, and white space at both ends is left out
    digest   the first 16 hex digits of SHA-256(UTF-8 of the text); empty without a text

It is not keyed with the secret: people compute it from a file, also with `sha256sum`, and only those who may see a
cache's requests see it. Tools are not part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

SYSTEM_FIELDS = ("system", "instructions")
CONVERSATION_FIELDS = ("messages", "input")
SYSTEM_ROLES = ("system", "developer")
DIGEST_LENGTH = 16
"""Hex digits."""
MAX_CACHED = 16 << 10
"""Characters of a text whose digest is cached: system prompts repeat, and a lookup takes a tenth of the time."""


def system_digest(body: Mapping[str, Any]) -> str:
    """Return the digest of a request's system prompt; empty if it has none."""
    texts: list[str] = []
    for name in SYSTEM_FIELDS:
        if name in body:
            texts += texts_of(body[name])
    for name in CONVERSATION_FIELDS:
        messages = body.get(name)
        if type(messages) is list:
            for message in messages:
                if type(message) is dict and message.get("role") in SYSTEM_ROLES:
                    texts += texts_of(message.get("content"))
    return text_digest("\n".join(texts)) if texts else ""


def text_digest(text: str) -> str:
    """Return the digest of a system prompt; empty if it is white space only."""
    return _cached_digest(text) if len(text) <= MAX_CACHED else _digest(text)


def _digest(text: str) -> str:
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    content = text.strip().encode(errors="surrogatepass")
    return hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH] if content else ""


_cached_digest = lru_cache(maxsize=256)(_digest)


def texts_of(content: Any) -> Iterator[str]:
    """Yield the texts of a content: a text, or a list of parts that may have one."""
    if type(content) is str:
        yield content
    elif type(content) is list:
        for part in content:
            if type(part) is dict and type(text := part.get("text")) is str:
                yield text
