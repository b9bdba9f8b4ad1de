"""Marks for a provider's prompt cache, inside a request body: where they are, and the body without them.

    Anthropic messages   `cache_control` of tools, of blocks of `system` and of messages, and of blocks in results
    OpenAI chat          `prompt_cache_breakpoint` of content parts; `cache_control` of parts, messages and tools
    OpenAI responses     `prompt_cache_breakpoint` of content parts, in messages and in outputs of tools

OpenAI has no `cache_control`. Gateways that offer Anthropic's models in OpenAI's format (LiteLLM, OpenRouter) read it
at these places and pass it on; other providers ignore it or refuse the request.

Only these positions are marks. The same names elsewhere, as in the input of a tool, are content.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from knapcache.model import Endpoint

MARK_FIELDS: dict[str, tuple[str, ...]] = {
    Endpoint.MESSAGES: ("cache_control",),
    Endpoint.CHAT: ("prompt_cache_breakpoint", "cache_control"),
    Endpoint.RESPONSES: ("prompt_cache_breakpoint",),
}
"""Fields that are marks at the positions above. The provider's own is the first."""

NESTING = frozenset({"tool_result", "search_result", "mcp_tool_result"})
"""Types of Anthropic's blocks whose `content` has blocks that can have marks."""

REMOVED = object()
"""Returned by `change` of edit_marks for a mark that is to be removed."""

Edit = Callable[[Any], Any]
"""Returns a changed copy of a value, or the value itself. A value of another type than the schema has is returned."""


def edit_marks(
    shape: str, body: dict[str, Any], fields: tuple[str, ...], change: Edit = lambda _: REMOVED
) -> dict[str, Any]:
    """Return a body with every mark inside it changed, by default without marks. The given body is not changed.

    Parts without marks are shared. Fields at the top are left alone.
    """
    marks = MarkEditor(fields, change)
    parts: dict[str, Edit]
    if shape == Endpoint.RESPONSES:
        parts = {"input": marks.response_items}
    elif shape == Endpoint.CHAT:
        parts = {"tools": marks.chat_tools, "messages": marks.chat_messages}
    else:
        parts = {"tools": marks.blocks, "system": marks.blocks, "messages": marks.messages}
    for name, edit in parts.items():
        body = edit_field(body, name, edit)
    return body


def edit_field(owner: Any, name: str, edit: Edit) -> Any:
    """Return an object with one field edited."""
    if not isinstance(owner, dict) or name not in owner or (new := edit(owner[name])) is owner[name]:
        return owner
    return {**owner, name: new}


def edit_list(values: Any, edit: Edit) -> Any:
    """Return a list with every element edited."""
    if type(values) is not list:
        return values
    edited = [edit(value) for value in values]
    return values if all(map(operator.is_, edited, values)) else edited


class MarkEditor:
    """The edits of the parts of a body. Each is an `Edit`."""

    def __init__(self, fields: tuple[str, ...], change: Edit) -> None:
        self._fields, self._change = fields, change
        self._gateway_fields = tuple(name for name in fields if name == "cache_control")

    def blocks(self, blocks: Any) -> Any:
        """Edit content blocks, or Anthropic's tools."""
        return edit_list(blocks, self._block)

    def messages(self, messages: Any) -> Any:
        """Edit messages to Anthropic."""
        return edit_list(messages, self._message)

    def chat_tools(self, tools: Any) -> Any:
        """Edit tools of OpenAI chat."""
        return edit_list(tools, self._chat_tool)

    def chat_messages(self, messages: Any) -> Any:
        """Edit messages of OpenAI chat."""
        return edit_list(messages, lambda message: self._message(self._gateway_marks(message)))

    def response_items(self, items: Any) -> Any:
        """Edit the input of OpenAI responses: messages and outputs of tools."""
        return edit_list(items, lambda item: self._message(edit_field(item, "output", self.blocks)))

    def _block(self, block: Any) -> Any:
        block = self._marks(block, self._fields)
        if type(block) is dict and type(kind := block.get("type")) is str and kind in NESTING:
            block = edit_field(block, "content", self.blocks)
        return block

    def _message(self, message: Any) -> Any:
        return edit_field(message, "content", self.blocks)

    def _chat_tool(self, tool: Any) -> Any:
        return edit_field(self._gateway_marks(tool), "function", self._gateway_marks)

    def _gateway_marks(self, value: Any) -> Any:
        return self._marks(value, self._gateway_fields)

    def _marks(self, value: Any, names: tuple[str, ...]) -> Any:
        """Edit the marks of one object."""
        if type(value) is not dict or not any(name in value for name in names):
            return value
        marks = {name: self._change(value[name]) for name in names if name in value}
        return {name: new for name, old in value.items() if (new := marks.get(name, old)) is not REMOVED}
