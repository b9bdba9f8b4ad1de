"""Marks for a provider's prompt cache, inside a request body: where they are, and the body without them.

    Anthropic messages   `cache_control` of tools, of blocks of `system` and of messages, and of blocks in results
    OpenAI chat          `prompt_cache_breakpoint` of content parts; `cache_control` of parts, messages and tools
    OpenAI responses     `prompt_cache_breakpoint` of content parts, in messages and in outputs of tools

OpenAI has no `cache_control`. Gateways that offer Anthropic's models in OpenAI's format (LiteLLM, OpenRouter) read it
at these places and pass it on; other providers ignore it or refuse the request.

Only these positions are marks. The same names elsewhere, as in the input of a tool, are content.
"""

from __future__ import annotations

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


def edit_marks(
    shape: str, body: dict[str, Any], fields: tuple[str, ...], change: Callable[[Any], Any] = lambda _: REMOVED
) -> dict[str, Any]:
    """Return a body with every mark inside it changed, by default without marks. The given body is not changed.

    Parts without marks are shared. Fields at the top are left alone.
    """
    gateway = tuple(name for name in fields if name == "cache_control")

    def edit_object(value: Any, names: tuple[str, ...]) -> Any:
        if type(value) is not dict or not any(name in value for name in names):
            return value
        marks = {name: change(value[name]) for name in names if name in value}
        return {name: new for name, old in value.items() if (new := marks.get(name, old)) is not REMOVED}

    def edit_block(block: Any) -> Any:
        block = edit_object(block, fields)
        if type(block) is dict and type(kind := block.get("type")) is str and kind in NESTING:
            block = edit_field(block, "content", edit_blocks)
        return block

    def edit_blocks(blocks: Any) -> Any:
        if type(blocks) is not list:
            return blocks
        edited = [edit_block(block) for block in blocks]
        return blocks if all(new is old for new, old in zip(edited, blocks, strict=True)) else edited

    def edit_field(owner: Any, name: str, edit: Callable[[Any], Any]) -> Any:
        if not isinstance(owner, dict) or name not in owner or (new := edit(owner[name])) is owner[name]:
            return owner
        return {**owner, name: new}

    def edit_each(edit: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda values: [edit(value) for value in values] if type(values) is list else values

    def edit_tool(tool: Any) -> Any:
        return edit_field(edit_object(tool, gateway), "function", lambda function: edit_object(function, gateway))

    def edit_message(message: Any) -> Any:
        message = edit_object(message, gateway) if shape == Endpoint.CHAT else message
        message = edit_field(message, "output", edit_blocks) if shape == Endpoint.RESPONSES else message
        return edit_field(message, "content", edit_blocks)

    if shape == Endpoint.RESPONSES:
        return edit_field(body, "input", edit_each(edit_message))  # type: ignore[no-any-return]
    if shape == Endpoint.CHAT:
        body = edit_field(body, "tools", edit_each(edit_tool))
    else:
        body = edit_field(body, "tools", edit_blocks)
        body = edit_field(body, "system", edit_blocks)
    return edit_field(body, "messages", edit_each(edit_message))  # type: ignore[no-any-return]
