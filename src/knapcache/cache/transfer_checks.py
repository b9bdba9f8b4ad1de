"""Checks of what an import file says of an entry. The file may be forged, so everything that is not content is checked.

What an answer says cannot be checked: who writes the file decides that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knapcache.errors import Incomplete, InvalidInput
from knapcache.keys.system_prompt import system_digest
from knapcache.model import Endpoint
from knapcache.price.input_tokens import MAX_TOKENS
from knapcache.price.weights import amount
from knapcache.tags import MAX_ENTRY_TAGS, checked_tags
from knapcache.wire import FORMATS
from knapcache.wire.base import MAX_NAME, StreamCollector, expanded

ENDPOINTS = frozenset(Endpoint)
FORM, IDS, FALLBACK, FRESH = "form", "ids", "fallback", "fresh"
FIELDS = frozenset((FORM, IDS, FALLBACK, FRESH, "lacks", "embedded"))
"""Fields of the metadata that a proxy stores with an answer (`stored_meta` and `stored_reply` in exchange.py). A field
that is new there must be added here."""


def checked_model(model: Any) -> str:
    """Return the name of a model, or raise InvalidInput."""
    if not isinstance(model, str) or len(model) > MAX_NAME:
        raise InvalidInput(f"model must be a text of at most {MAX_NAME} characters")
    return model


def checked_meta(meta: Any, kind: str, body: Mapping[str, Any], payload: bytes) -> dict[str, Any]:
    """Return the metadata of an entry, or raise InvalidInput.

    kind   the endpoint of its request, or another word for the result of a function
    """
    if not isinstance(meta, dict) or not isinstance(inner := meta.get("meta", {}), dict):
        raise InvalidInput("meta must be an object, and its meta, too")
    found = dict(meta)
    if "usd" in found:
        found["usd"] = amount("usd of meta", found["usd"])
    tokens = found.get("tokens", 0)
    if type(tokens) is not int or not 0 <= tokens <= MAX_TOKENS:
        raise InvalidInput(f"tokens of meta must be a whole number from 0 to {MAX_TOKENS}, not {str(tokens)[:40]}")
    if "tags" in found:
        found["tags"] = list(checked_tags(found["tags"], MAX_ENTRY_TAGS))
    found.pop("system", None)
    if system := system_digest(body):
        found["system"] = system
    if FORM in inner and kind in ENDPOINTS:
        check_answer(inner, Endpoint(kind), body, payload)
    return found


def check_answer(inner: Mapping[str, Any], endpoint: Endpoint, body: Mapping[str, Any], payload: bytes) -> None:
    """Raise InvalidInput unless this is an answer as a proxy stores it: complete, and with known metadata only."""
    if extra := set(inner) - FIELDS:
        raise InvalidInput(f"the metadata of an answer must not have {str(min(extra))[:40]!r}")
    ids, fallback = inner.get(IDS, {}), inner.get(FALLBACK, "")
    texts = [fallback, *ids, *ids.values()] if isinstance(ids, dict) else [None]
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise InvalidInput("ids and fallback in the metadata of an answer must be printable texts")
    if FRESH in inner:
        amount("fresh", inner[FRESH])
    wire_format, form = FORMATS[endpoint], inner[FORM]
    try:
        if form == "json":
            check_plain(endpoint, body, payload)
        elif form in ("sse", "compact") and wire_format.streaming is not None:
            collector = StreamCollector(wire_format)
            collector.feed(expanded(payload, form))
            collector.close()
            collector.complete()
        else:
            raise InvalidInput(f"form must be json, sse or compact, not {str(form)[:40]!r}")
    except Incomplete as reason:
        raise InvalidInput(f"its answer is not complete: {reason}") from None


def check_plain(endpoint: Endpoint, body: Mapping[str, Any], payload: bytes) -> None:
    """Raise Incomplete unless this is a complete plain answer, or a stored item of one."""
    wire_format = FORMATS[endpoint]
    if wire_format.per_item is None:
        wire_format.parse(payload, body)
    else:
        wire_format.parse(wire_format.per_item.join([payload]), body)
