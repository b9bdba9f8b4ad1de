"""A line of the content log: what is kept of a request and its answer, after redaction and within bounds.

Redaction applies to every text in the JSON of request and answer, also to names of fields and to long numbers, before
anything is cut: a text is cut to MAX_CHARACTERS + MARGIN characters, redacted, and then loses its last MARGIN
characters. So a match of up to MARGIN characters is never cut in two, however much shorter redaction makes the text.
The parts of a content are redacted as one text, too, because a secret may be split over them. Redaction stops after
MAX_REDACTED characters of a request or an answer, and what comes after them is left out.

A request or an answer takes at most MAX_JSON bytes. Where it has more, its texts are cut: to the longest of LENGTHS
that fits. Content that is not text (images, audio, embeddings) is left out.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from knapcache.errors import Incomplete
from knapcache.features.content_log.redaction import TextRedactor
from knapcache.proxy.events.events import Event
from knapcache.wire.base import Form, Format, read_object, stored_length

MAX_CHARACTERS = 32_768
"""Characters of one text."""
MARGIN = 1024
MAX_JSON = 65_536
"""Bytes of a request, and of an answer, as JSON."""
LENGTHS = (MAX_CHARACTERS, 8192, 2048, 512, 128, 32)
MAX_ANSWER = 2 << 20
"""Bytes of an answer as it came. Of a longer one nothing is logged: parsing it would hold the interpreter's lock."""
MAX_NODES = 20_000
"""Values in a request or an answer. What comes after them is left out."""
MAX_REDACTED = 1 << 20
"""Characters of a request, and of an answer, that are redacted: a second's work."""
MAX_TEXT = 32_768
"""Characters of the text that is searched, of a request and of an answer."""
LONG_NUMBER = 10**11
"""Redaction applies to numbers from here on: they may be card or telephone numbers."""
DATA_URL = re.compile(r"data:[a-z]+/[A-Za-z0-9.+-]+(?:;[a-z0-9=-]+)*;base64,", re.ASCII)
BINARY_FIELDS = frozenset({"data", "b64_json", "file_data", "embedding", "encrypted_content", "signature"})
"""Fields with binary data as base64, or with vectors."""
OMITTED = "[omitted]"
TEXT_FIELDS = ("text", "content", "refusal", "arguments", "message", "output", "choices", "function", "tool_calls")
SYSTEM_ROLES = ("system", "developer")


class LoggedContent(NamedTuple):
    """A finished request with its content, as it waits to be written."""

    event: Event
    format: Format
    body: Mapping[str, Any]
    """Parsed; empty: it could not be parsed, or is too long."""
    payload: bytes
    """The answer as it is stored, or as it came; empty: there was none."""
    form: Form

    @property
    def size(self) -> int:
        """Bytes that it keeps in memory, about. Parsed bodies are counted by the caller."""
        return len(self.payload) + 2000


class ContentRecord(NamedTuple):
    """One line of the log."""

    event: Event
    model: str
    request: bytes
    """JSON, compressed; empty: unknown."""
    response: bytes
    prompt: str
    """System prompt and last user text, which are searched."""
    answer: str
    """Text of the answer, which is searched."""
    cut: bool
    """Whether something was left out."""


def make_record(content: LoggedContent, redactor: TextRedactor) -> ContentRecord:
    """Return the line of a request. Everything in it has been redacted."""
    request, cut_request = _bounded(content.body, redactor)
    answer, complete = _answer(content)
    response, cut_response = _bounded(answer, redactor)
    return ContentRecord(
        event=content.event,
        model=redactor.text(content.event.model),
        request=_compressed(request),
        response=_compressed(response),
        prompt="\n".join(prompt_texts(request))[:MAX_TEXT],
        answer="\n".join(texts(response))[:MAX_TEXT],
        cut=cut_request or cut_response or not complete,
    )


def _answer(content: LoggedContent) -> tuple[Mapping[str, Any], bool]:
    """Return the plain answer, and whether it is known. An embedding has no text, so nothing is kept of it."""
    if not content.payload or content.format.per_item is not None:
        return {}, True
    if stored_length(content.payload, content.form) > MAX_ANSWER:
        return {}, False
    try:
        return read_object(content.format.to_plain(content.payload, content.form)), True
    except Incomplete:  # an error page, or a stream that broke off
        return {}, False


def _bounded(value: Mapping[str, Any], redactor: TextRedactor) -> tuple[dict[str, Any], bool]:
    """Return a redacted copy of at most MAX_JSON bytes, and whether something was left out."""
    if not value:
        return {}, False
    redacted, cut = _BoundedCopy(redactor, MAX_CHARACTERS).copy(value)
    for length in LENGTHS:
        if len(orjson.dumps(redacted)) <= MAX_JSON:
            return redacted, cut
        redacted, cut = _BoundedCopy(None, length).copy(redacted)[0], True
    if len(orjson.dumps(redacted)) <= MAX_JSON:
        return redacted, True
    kept = {name: each for name, each in redacted.items() if len(orjson.dumps(each)) <= 1024}
    return (kept if len(orjson.dumps(kept)) <= MAX_JSON else {}), True


class _BoundedCopy:
    """Copies a JSON value: texts redacted and cut, binary data left out."""

    def __init__(self, redactor: TextRedactor | None, length: int) -> None:
        self._redactor, self._length = redactor, length
        self._nodes, self._redacted, self._cut = 0, 0, False

    def copy(self, value: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return a copy, and whether something was left out."""
        copied = {self._text(name): self._value(name, each) for name, each in self._counted(value.items())}
        return copied, self._cut

    def _value(self, name: str, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            if DATA_URL.match(value) or (name in BINARY_FIELDS and len(value) > 256):
                self._cut = True
                return OMITTED
            return self._text(value)
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, (int, float)):
            if self._redactor is None or not (isinstance(value, int) and abs(value) >= LONG_NUMBER):
                return value
            return self._redactor.number(value)
        if isinstance(value, orjson.Fragment):  # a number that no double holds (keys/numbers.py)
            return self._text(bytes(orjson.dumps(value)).decode())
        if depth > 100:
            self._cut = True
            return OMITTED
        if isinstance(value, Mapping):
            items = self._counted(value.items())
            return {self._text(key): self._value(key, each, depth + 1) for key, each in items}
        if name in BINARY_FIELDS and isinstance(value, list) and value and isinstance(value[0], (int, float)):
            self._cut = True
            return OMITTED
        parts = list(self._counted(value))
        return self._joined(parts, [self._value(name, each, depth + 1) for each in parts])

    def _joined(self, parts: list[Any], copied: list[Any]) -> list[Any]:
        """Return copied parts of a content. If a match spans several, all their text is in the first of them."""
        found = [(k, text) for k, part in enumerate(parts) if (text := part_text(part)) is not None]
        if self._redactor is None or len(found) < 2:
            return copied
        whole = "".join(text for _, text in found)
        self._redacted += 2 * len(whole)
        if self._redacted > MAX_REDACTED:
            redacted = OMITTED
        else:
            redacted = self._redactor.text(whole)
            if redacted == "".join(self._redactor.text(text) for _, text in found):
                return copied
        self._cut = self._cut or redacted == OMITTED or len(redacted) > self._length
        redacted = redacted[: self._length].encode("utf-8", "replace").decode()
        for k, _ in found:
            copied[k] = redacted if isinstance(copied[k], str) else copied[k] | {"text": redacted}
            redacted = ""
        return copied

    def _counted(self, values: Any) -> Iterator[Any]:
        for each in values:
            self._nodes += 1
            if self._nodes > MAX_NODES:
                self._cut = True
                return
            yield each

    def _text(self, text: str) -> str:
        if self._redactor is not None:
            whole = len(text) <= self._length + MARGIN
            text = text[: self._length + MARGIN]
            self._redacted += len(text)
            if self._redacted > MAX_REDACTED:
                self._cut = True
                return OMITTED
            text = self._redactor.text(text).encode("utf-8", "replace").decode()  # SQLite takes no lone surrogates
            if not whole:
                self._cut, text = True, text[: max(0, len(text) - MARGIN)]
        if len(text) > self._length:
            self._cut, text = True, text[: self._length]
        return text


def part_text(part: Any) -> str | None:
    """Return the text of a part of a content; None if it has none."""
    text = part.get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) and not DATA_URL.match(text) else None


def prompt_texts(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield the system prompt and the last user text of a request, or its whole input."""
    for name in ("system", "instructions"):
        yield from texts(request.get(name))
    conversation = next((request[name] for name in ("messages", "input", "prompt") if request.get(name)), None)
    if not isinstance(conversation, list) or not any(isinstance(each, dict) for each in conversation):
        yield from texts(conversation)
        return
    messages = [each for each in conversation if isinstance(each, dict)]
    for message in messages:
        if message.get("role") in SYSTEM_ROLES:
            yield from texts(message)
    last = [each for each in messages if each.get("role") == "user"] or messages
    yield from texts(last[-1])


def texts(value: Any) -> Iterator[str]:
    """Yield the texts of a message, of its parts, or of an answer."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif isinstance(value, dict):
        for name in TEXT_FIELDS:
            if name in value:
                yield from texts(value[name])
        if "error" in value and isinstance(value["error"], dict):
            yield from texts(value["error"])


def _compressed(value: Mapping[str, Any]) -> bytes:
    return zlib.compress(orjson.dumps(value), 6) if value else b""


def expanded(compressed: bytes) -> dict[str, Any]:
    """Return the JSON of a request or an answer; empty if it is unknown."""
    found: dict[str, Any] = orjson.loads(zlib.decompress(compressed)) if compressed else {}
    return found
