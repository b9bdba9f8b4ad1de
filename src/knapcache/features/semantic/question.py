"""The question of a request: its only user text, and the body without it.

Two requests can share an answer only if they differ in nothing but this text. The key of the body without the text,
computed like any key, is the *frame*: it depends on endpoint, namespace, upstream, model, system prompt, tools and
parameters. Requests that ask for more than an answer to one short text have no question, nor have texts whose meaning
depends on more than their words:

    deixis     refers to something outside the text: "this", "the text below", "as above"
    date       relative to the time of asking: "tomorrow", "next week", "on Friday"
    code       contains a code block
    language   is not in English: the score and the vetoes were not measured there
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from knapcache.features.semantic.plain_text import is_disguised, plain_text
from knapcache.features.semantic.vocabulary import AMBIGUOUS_WORDS, COMMON_WORDS, FOREIGN_WORDS
from knapcache.keys.outline import CanonicalRequest, read_canonical
from knapcache.keys.parse import ParsedBody
from knapcache.model import Endpoint

MAX_CHARACTERS = 512
"""A longer text has more than MAX_TOKENS tokens, or is not worth counting them."""
MAX_TOKENS = 64
SYSTEM_ROLES = ("system", "developer")
TEXT_PARTS = {Endpoint.CHAT: "text", Endpoint.MESSAGES: "text", Endpoint.RESPONSES: "input_text"}
"""The type of a text part, for the endpoints whose requests may have a question."""
CONVERSATIONS = {Endpoint.CHAT: "messages", Endpoint.MESSAGES: "messages", Endpoint.RESPONSES: "input"}
"""The field with the conversation."""


class Question(NamedTuple):
    """The text of a request, and all the rest."""

    text: str
    frame: ParsedBody
    """The body with an empty text."""


def read_question(endpoint: Endpoint, body: Mapping[str, Any], max_temperature: float = 0.0) -> Question | str:
    """Return the question of a parsed request, or why it has none.

    max_temperature   a request with a higher temperature has none; one that names no temperature may have one
    """
    found = split_request(endpoint, body, max_temperature)
    return found if isinstance(found, str) else excluded(found.text) or found


def split_request(endpoint: Endpoint, body: Mapping[str, Any], max_temperature: float) -> Question | str:
    """Return the question of a parsed request whatever its text says, or why it has none."""
    if endpoint not in CONVERSATIONS:
        return "endpoint"
    if reason := excluded_field(body, max_temperature):
        return reason
    field = CONVERSATIONS[endpoint]
    messages = body.get(field)
    if isinstance(messages, str):
        found: tuple[str, Any] | str = (messages, "")
    else:
        found = only_text(messages, TEXT_PARTS[endpoint])
    if isinstance(found, str):
        return found
    text, blanked = found
    if len(text) > MAX_CHARACTERS:
        return "long text"
    return Question(text, ParsedBody({**body, field: blanked}))


def excluded_field(body: Mapping[str, Any], max_temperature: float) -> str:
    """Return the first option of a request that forbids an answer to another wording; empty: none does."""
    temperature = body.get("temperature")
    if isinstance(temperature, (int, float)) and temperature > max_temperature:
        return "temperature"
    if body.get("n") not in (None, 1):
        return "n"
    if body.get("logprobs") or body.get("top_logprobs"):
        return "logprobs"
    if body.get("seed") is not None:
        return "seed"
    text = body.get("text")
    formats = (body.get("response_format"), text.get("format") if isinstance(text, Mapping) else None)
    if any(isinstance(each, Mapping) and each.get("type") == "json_schema" for each in formats):
        return "JSON schema"
    return ""


def only_text(messages: Any, part_type: str) -> tuple[str, Any] | str:
    """Return the only user text of a conversation and the conversation without it, or why there is none."""
    if not isinstance(messages, list) or not messages:
        return "no conversation"
    *before, last = messages
    if not isinstance(last, Mapping) or last.get("role") != "user":
        return "tools" if isinstance(last, Mapping) and last.get("role") in ("tool", "function") else "no user text"
    if any(not isinstance(message, Mapping) or message.get("role") not in SYSTEM_ROLES for message in before):
        return "several turns"
    content = last.get("content")
    if isinstance(content, str):
        return content, [*before, {**last, "content": ""}]
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], Mapping):
        return "several parts"
    part = content[0]
    if part.get("type") != part_type or not isinstance(part.get("text"), str):
        return "image or file"
    return part["text"], [*before, {**last, "content": [{**part, "text": ""}]}]


def stored_text(canonical: bytes) -> str | None:
    """Return the text of the question in a stored request, whatever it says; None: there is none."""
    found = _stored_question(canonical)
    return None if found is None else found[1].text


def same_frame(stored: bytes, asked: bytes) -> bool:
    """Return whether two requests have questions, and differ in nothing else. The text of `asked` was checked."""
    first, second = stored_question(stored), _stored_question(asked)
    if first is None or second is None:
        return False
    (request, question), (other_request, other_question) = first, second
    return (
        request.kind == other_request.kind
        and request.namespace == other_request.namespace
        and request.context == other_request.context
        and question.frame == other_question.frame
    )


def stored_question(canonical: bytes) -> tuple[CanonicalRequest, Question] | None:
    """Return a stored request and its question; None: it has none."""
    found = _stored_question(canonical)
    return None if found is None or excluded(found[1].text) else found


def _stored_question(canonical: bytes) -> tuple[CanonicalRequest, Question] | None:
    request = read_canonical(canonical)
    if request is None or request.kind not in CONVERSATIONS:
        return None
    found = split_request(Endpoint(request.kind), request.body, max_temperature=float("inf"))
    return None if isinstance(found, str) else (request, found)


# Texts whose meaning depends on more than their words.

_TIMES = (
    r"(?:seconds?|minutes?|hours?|days?|weeks?|weekends?|months?|quarters?|years?|decades?|morning|afternoon|evening|night"
    r"|noon|time|mon(?:day)?|tue(?:s|sday)?|wed(?:nesday)?|thu(?:rs|rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?"
    r"|january|february|march|april|may|june|july|august|september|october|november|december"
    r"|spring|summer|autumn|fall|winter|christmas|easter|semester|term|season)"
)
_DATE = re.compile(
    rf"\b(?:today|tonight|tomorrow|yesterday|nowadays|now|currently|recently|lately|right away|at the moment"
    rf"|(?:this|these|next|last|past|coming|following|previous|upcoming) (?:few |couple of |\d+ |two |three )?{_TIMES}"
    rf"|the weekend|{_TIMES} (?:ago|from now)|day (?:after|before)"
    rf"|(?:on|by|until|till|since|for|from|to|is|due|after|before) "
    rf"(?:mon|tues|wednes|thurs|fri|satur|sun)day(?! ?\d))\b",
    re.IGNORECASE,
)
_DEIXIS = re.compile(
    r"""\b(?:this|these)\b(?!\s+(?:way|kind|sort|type)\b)
    |\b(?:below|above|attached|aforementioned)\b\s*(?:[.:?!,;]|$)
    |\b(?:the|my|as|see|from|with)\s+(?:above|below|following|attached|foregoing|aforementioned)\b(?!\s+\d)
    |\bhere(?:'s|\s+is|\s+are)\b
    |\b(?:previous|last|earlier|preceding|former)\s+(?:message|answer|question|response|reply|text|paragraph|sentence)\b
    |\byou\s+(?:just\s+)?(?:said|wrote|mentioned|told)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_CODE_LINE = re.compile(
    r"[{};]\s*$|^\s*(?:def|class|import|from|return|if|for|while|#include|<\w+).*[:;>)]\s*$|^\s*\S+ = .+"
)
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
MIN_WORDS = 4
"""Of a shorter text, only foreign words and scripts tell the language."""


@lru_cache(maxsize=20_000)
def excluded(text: str) -> str:
    """Return why a text is never answered by similarity: "deixis", "date", "code" or "language"; "" if it may be."""
    if is_disguised(text):
        return "language"
    text = plain_text(text)
    if "```" in text or sum(bool(_CODE_LINE.search(line)) for line in text.splitlines()) > 1:
        return "code"
    if not _is_english(text):
        return "language"
    if _DATE.search(text):
        return "date"
    return "deixis" if _DEIXIS.search(text) else ""


def _is_english(text: str) -> bool:
    """Whether the letters are Latin, and common English words outnumber the common words of other languages."""
    letters = [character for character in text if character.isalpha()]
    if sum(character > "\u024f" for character in letters) * 5 > len(letters):
        return False
    words = [word.lower() for word in _WORD.findall(text)]
    bases = [word.partition("'")[0] for word in words]
    english = sum((base in COMMON_WORDS) - 0.5 * (base in AMBIGUOUS_WORDS) for base in bases)
    foreign = sum(word in FOREIGN_WORDS for word in words)
    return foreign <= english if len(words) < MIN_WORDS else foreign < english
