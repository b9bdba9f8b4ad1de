"""The text of a stored answer, which is what judges of two answers compare.

Only plain text can be compared. An answer with a tool call, a refusal, audio, an image or several choices has no text
here. Reasoning is not part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from knapcache.errors import Incomplete
from knapcache.model import Endpoint
from knapcache.wire.base import Form, read_object
from knapcache.wire.registry import FORMATS

FINISHED = frozenset({"stop", "length", "end_turn", "max_tokens", "stop_sequence"})
"""Finish and stop reasons of a text. Others are tool calls, filtered content, refusals and pauses."""
CHAT_TEXT = frozenset({"role", "content", "annotations", "reasoning", "reasoning_content", "reasoning_details", "name"})
"""Fields of a chat message whose text is all in `content`. Any other field must be empty."""
THINKING = frozenset({"thinking", "redacted_thinking"})


def answer_text(endpoint: Endpoint, payload: bytes, form: Form) -> str | None:
    """Return the text of a stored answer; None if it is not plain text, or is blank."""
    read = READERS.get(endpoint)
    if read is None:
        return None
    try:
        found = read(read_object(FORMATS[endpoint].to_plain(payload, form)))
    except Incomplete:  # damaged
        return None
    return found if found and not found.isspace() else None


def only_choice(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the only choice of an answer; None if there are several, or if it ended in another way than a text."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    return choices[0] if choices[0].get("finish_reason") in FINISHED else None


def chat_text(answer: Mapping[str, Any]) -> str | None:
    choice = only_choice(answer)
    message = choice.get("message") if choice else None
    if not isinstance(message, dict) or any(value for name, value in message.items() if name not in CHAT_TEXT):
        return None
    content = message.get("content")
    return content if isinstance(content, str) else joined_parts(content, "text")


def completion_text(answer: Mapping[str, Any]) -> str | None:
    choice = only_choice(answer)
    text = choice.get("text") if choice else None
    return text if isinstance(text, str) else None


def response_text(answer: Mapping[str, Any]) -> str | None:
    """Return the text of a response: its messages, if all other items are reasoning."""
    texts = []
    for item in answer.get("output") or []:
        if not isinstance(item, dict):
            return None
        if item.get("type") == "reasoning":
            continue
        text = joined_parts(item.get("content"), "output_text") if item.get("type") == "message" else None
        if text is None:
            return None
        texts.append(text)
    return "\n".join(texts)


def message_text(answer: Mapping[str, Any]) -> str | None:
    """Return the text of an Anthropic message: its text blocks, if all others are thinking."""
    content = answer.get("content")
    if answer.get("stop_reason") not in FINISHED or not isinstance(content, list):
        return None
    shown = [block for block in content if not (isinstance(block, dict) and block.get("type") in THINKING)]
    return joined_parts(shown, "text")


def joined_parts(parts: Any, kind: str) -> str | None:
    """Return the texts of parts of this type, joined; None if there are other parts."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) and part.get("type") == kind for part in parts):
        return None
    texts = [part.get("text") for part in parts]
    return "".join(text for text in texts if text) if all(isinstance(text, str) for text in texts) else None


READERS: dict[Endpoint, Callable[[Mapping[str, Any]], str | None]] = {
    Endpoint.CHAT: chat_text,
    Endpoint.COMPLETIONS: completion_text,
    Endpoint.RESPONSES: response_text,
    Endpoint.MESSAGES: message_text,
}
