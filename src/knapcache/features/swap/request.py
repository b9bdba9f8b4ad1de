"""What swap reads of a request: whether another model may answer it, and its frame.

Never swapped: embeddings, requests with tools, images, audio or files, several answers, log probabilities, prompts and
conversations that the provider stores, and answers of a caller who sends `x-knapcache-swap: off`. A later turn of a
conversation is answered by the model of its first turn: another model would lose the provider's prompt cache, and the
caller would notice the change. That model is known from the store, which all processes share: the cheaper model if its
answer to the first turn is stored, with the same fields, and otherwise the asked one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from knapcache.model import Endpoint

REFUSAL_HEADER = "x-knapcache-swap"
SYSTEM_ROLES = frozenset(("system", "developer"))
TEXT_PARTS = frozenset(("text", "input_text", "output_text"))
TOOL_ROLES = frozenset(("tool", "function"))
CALLS = ("tool_calls", "function_call")
"""Fields of a message that calls tools."""
TOOL_FIELDS = ("tools", "functions", "web_search_options", "mcp_servers")
STORED_FIELDS = ("previous_response_id", "conversation", "container")
"""Fields that name earlier turns, which the provider has."""
FORMAT_FIELDS = ("response_format", "text", "output_config", "output_format")
"""Fields that prescribe the form of the answer."""
NOT_ASKED: tuple[object, ...] = (None, False, 0)


class SwapRequest(NamedTuple):
    """A request that may be swapped."""

    frame: bytes
    """Digest of what requests of one kind have in common: system prompt and prescribed form of the answer."""
    opening: dict[str, Any] | None
    """The body of the first turn of the conversation; None: the request is that turn."""


def read_request(endpoint: Endpoint, body: Mapping[str, Any]) -> SwapRequest | str:
    """Return what is read of a request, or why it is never swapped."""
    if endpoint is Endpoint.EMBEDDINGS:
        return "embeddings"
    # `web_search_options` is an option of its own, so an empty object counts, too.
    if any(body.get(name) not in (None, []) for name in TOOL_FIELDS) or body.get("tool_choice") not in (None, "none"):
        return "tools"
    if any(body.get(name) is not None for name in STORED_FIELDS):
        return "conversation of the provider"
    if endpoint is not Endpoint.COMPLETIONS and body.get("prompt") is not None:
        return "prompt of the provider"
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        return "several answers"
    if body.get("logprobs") not in NOT_ASKED or body.get("top_logprobs") not in NOT_ASKED:
        return "log probabilities"
    if body.get("modalities") not in (None, ["text"]) or body.get("audio"):
        return "audio"
    messages = messages_of(endpoint, body)
    if not messages:
        return "no conversation"
    if any(message.get("role") in TOOL_ROLES or any(map(message.get, CALLS)) for message in messages):
        return "tools"
    if any(not is_text(message.get("content")) for message in messages):
        return "image, file or tool"
    turns = [message for message in messages if message.get("role") not in SYSTEM_ROLES]
    first = next((k for k, message in enumerate(messages) if message.get("role") == "user"), None)
    if first is None:
        return "no user text"
    system = [body.get("system"), body.get("instructions")]
    system += [message for message in messages if message.get("role") in SYSTEM_ROLES]
    form = [body.get(name) for name in FORMAT_FIELDS]
    opening = None if len(turns) == 1 else {**body, messages_field(endpoint): messages[: first + 1]}
    return SwapRequest(digest((system, form)), opening)


def messages_field(endpoint: Endpoint) -> str:
    """Return the field of a request that has its messages."""
    return {Endpoint.COMPLETIONS: "prompt", Endpoint.RESPONSES: "input"}.get(endpoint, "messages")


def messages_of(endpoint: Endpoint, body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the messages of a request; empty if it has none, or if one is not a message."""
    found = body.get(messages_field(endpoint))
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        return []
    return found


def is_text(content: Any) -> bool:
    """Return whether the content of a message is text and nothing else."""
    if isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") in TEXT_PARTS for part in content
    )


def digest(value: Iterable[Any]) -> bytes:
    """Return a digest of JSON values."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)).digest()
