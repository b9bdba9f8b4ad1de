"""Shapes of request bodies: how each provider writes content blocks and marks."""

from __future__ import annotations

from typing import NamedTuple

from knapcache.keys.cache_marks import MARK_FIELDS
from knapcache.model import Endpoint

SHORT_TTL, OPENAI_TTL, LONG_TTL = 300.0, 1800.0, 3600.0
"""Seconds that a provider caches a prefix: Anthropic's 5m, OpenAI's 30m, Anthropic's 1h."""
TOOL_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
"""Items of OpenAI responses that are results of tools, as a text or as content parts."""


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
