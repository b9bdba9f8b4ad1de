"""Shapes of request bodies: how each provider writes content blocks, marks and media."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import orjson

from knapcache.keys.cache_marks import MARK_FIELDS
from knapcache.model import Endpoint

SHORT_TTL, OPENAI_TTL, LONG_TTL = 300.0, 1800.0, 3600.0
"""Seconds that a provider caches a prefix: Anthropic's 5m, OpenAI's 30m, Anthropic's 1h."""
TOOL_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
"""Items of OpenAI responses that are results of tools, as a text or as content parts."""
MEDIA_SIZE = 6400
"""Bytes that an image, a document or a sound counts: about 1,600 tokens. Its base64 says nothing about its tokens."""
SAMPLE = 4096
"""Characters at the start, in the middle and at the end of encoded media that are hashed."""

MEDIA = frozenset({
    "image", "document", "image_url", "input_audio", "file", "input_image", "input_file", "computer_call_output",
})  # fmt: skip
IMAGES = frozenset({"image", "image_url", "input_image"})


class BodyShape(NamedTuple):
    """How a provider writes content blocks and marks."""

    text: frozenset[str]
    """Types of blocks that are plain text."""
    markable: frozenset[str]
    """Types of blocks that can carry a mark."""
    unmarkable_roles: frozenset[str]
    """Roles of messages whose blocks cannot carry a mark."""
    marks: tuple[str, ...]
    """Fields of blocks that are marks, the provider's own first."""


SHAPES: dict[str, BodyShape] = {
    Endpoint.MESSAGES: BodyShape(
        marks=MARK_FIELDS[Endpoint.MESSAGES],
        text=frozenset({"text"}),
        markable=frozenset({
            "text", "image", "document", "tool_use", "tool_result", "search_result", "server_tool_use",
            "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
            "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
            "container_upload",
        }),
        unmarkable_roles=frozenset(),
    ),
    Endpoint.CHAT: BodyShape(
        marks=MARK_FIELDS[Endpoint.CHAT],
        text=frozenset({"text"}),
        markable=frozenset({"text", "image_url", "input_audio", "file"}),
        unmarkable_roles=frozenset({"assistant", "function"}),
    ),
    Endpoint.RESPONSES: BodyShape(
        marks=MARK_FIELDS[Endpoint.RESPONSES],
        text=frozenset({"input_text", "output_text"}),
        markable=frozenset({"input_text", "input_image", "input_file"}),
        unmarkable_roles=frozenset({"assistant"}),
    ),
}  # fmt: skip
"""The shapes that are understood, by endpoint. The block types are those of the providers' SDKs."""


def sample(value: Any) -> Hashable:
    """Return a value that is hashed quickly, and is equal for equal media.

    Of long strings three parts are taken. Two images that differ nowhere there have nearly always different lengths.
    """
    if type(value) is str:
        if len(value) <= 3 * SAMPLE:
            return value
        middle = len(value) // 2
        return len(value), value[:SAMPLE], value[middle : middle + SAMPLE], value[-SAMPLE:]
    if type(value) is dict:
        return tuple((name, sample(inner)) for name, inner in value.items())
    return tuple(map(sample, value)) if type(value) is list else orjson.dumps(value)
