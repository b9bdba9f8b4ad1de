"""Request bodies as prompts: blocks in the order of the provider's prefix, with their tokens and cache marks.

Two prompts have a common prefix as long as the digests of their blocks are equal. A digest covers the block, its role
and all blocks before it, but no cache marks. These functions do not use `features.prefix`, because they test it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

from knapcache.errors import InvalidInput

Body = dict[str, Any]
CountTokens = Callable[[str], int]

ANTHROPIC_TTLS = {"5m": 300.0, "1h": 3600.0}
MAX_ANTHROPIC_MARKS = 4
UNMARKABLE = ("thinking", "redacted_thinking")
"""Block types of Anthropic that carry no mark."""
NOT_IN_PROMPT = ("role", "content", "tool_calls", "id", "status", "type")
"""Fields of a message of OpenAI that are read elsewhere, or that the model does not see."""
BREAKPOINT_SECONDS = 1800.0
"""TTL of OpenAI's breakpoints."""


class PromptRejected(InvalidInput):
    """The provider answers this request with status 400 and this message."""


class PromptBlock(NamedTuple):
    """One block of a prompt."""

    digest: bytes
    """Of the prefix that ends with this block."""
    tokens: int
    """Length of that prefix."""
    ttl: float
    """Seconds that the block's mark asks for; 0: not marked."""
    text: str
    """The text whose tokens count for this block."""
    ends_message: bool = False
    """Whether OpenAI may place an implicit breakpoint after it: at the end of a message that may carry breakpoints."""


def tokens_by_length(tokens_per_byte: float = 0.25) -> CountTokens:
    """Return a tokenizer that counts this many tokens per byte of UTF-8, rounded up."""
    return lambda text: math.ceil(len(text.encode()) * tokens_per_byte)


def without_marks(value: Any, field: str) -> Any:
    """Return JSON without this field, at any depth."""
    if isinstance(value, dict):
        return {name: without_marks(item, field) for name, item in value.items() if name != field}
    if isinstance(value, list):
        return [without_marks(item, field) for item in value]
    return value


def block_text(block: Body) -> str:
    """Return what counts as tokens of a block: its text, or its JSON if it is none."""
    for field in ("text", "thinking"):
        if isinstance(block.get(field), str):
            return str(block[field])
    content = block.get("content", block.get("output"))
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(block_text(part) if isinstance(part, dict) else str(part) for part in content)
    return json.dumps(block, sort_keys=True)


def as_blocks(content: Any, kind: str = "text") -> list[Body]:
    """Return a message's content as blocks; a string is one text block."""
    return [{"type": kind, "text": content}] if isinstance(content, str) else list(content or [])


class _PromptChain:
    """The blocks of a prompt so far."""

    def __init__(self, count_tokens: CountTokens, mark: str) -> None:
        self.blocks: list[PromptBlock] = []
        self._count_tokens, self._mark = count_tokens, mark
        self._digest, self._tokens = b"", 0

    def salt(self, value: Any) -> None:
        """Make the digests of all later blocks depend on a value that has no tokens."""
        self._digest = blake2b(self._digest + json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()

    def add(self, role: Any, block: Body, ttl: float = 0.0, ends_message: bool = False) -> None:
        bare = without_marks(block, self._mark)
        content = json.dumps([role, bare], sort_keys=True).encode()
        self._digest = blake2b(self._digest + content, digest_size=16).digest()
        text = block_text(bare)
        self._tokens += self._count_tokens(text)
        self.blocks.append(PromptBlock(self._digest, self._tokens, ttl, text, ends_message))


def anthropic_ttl(place: str, mark: Any) -> float:
    """Return the seconds of a `cache_control` mark, 0 for none."""
    if mark is None:
        return 0.0
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral" or set(mark) - {"type", "ttl"}:
        raise PromptRejected(f'{place}.cache_control: must be {{"type": "ephemeral"}} with an optional ttl')
    ttl = mark.get("ttl", "5m")
    if ttl not in ANTHROPIC_TTLS:
        raise PromptRejected(f"{place}.cache_control.ttl: Input should be '5m' or '1h'")
    return ANTHROPIC_TTLS[ttl]


def _anthropic_blocks(body: Body) -> Iterator[tuple[str, str, Body]]:
    """Yield place, role and block in the order of the prefix."""
    for index, tool in enumerate(body.get("tools") or []):
        yield f"tools.{index}", "tool", tool
    for index, block in enumerate(as_blocks(body.get("system"))):
        yield f"system.{index}", "system", block
    for number, message in enumerate(body["messages"]):
        for index, block in enumerate(as_blocks(message["content"])):
            yield f"messages.{number}.content.{index}", message["role"], block


def _nested_marks(block: Body) -> int:
    content = block.get("content")
    parts = content if isinstance(content, list) else []
    return sum(isinstance(part, dict) and bool(part.get("cache_control")) for part in parts)


def is_markable(block: Body) -> bool:
    """Return whether Anthropic accepts a mark on this block."""
    kind = block.get("type")
    return kind not in UNMARKABLE and not (kind == "text" and not block.get("text"))


def contains_image(block: Body) -> bool:
    """Return whether a block is an image, or a tool's result with one."""
    content = block.get("content")
    parts = content if isinstance(content, list) else []
    return block.get("type") == "image" or any(contains_image(part) for part in parts if isinstance(part, dict))


def anthropic_prompt(body: Body, count_tokens: CountTokens) -> list[PromptBlock]:
    """Return the blocks of a Messages request.

    Tools, system and messages follow each other. A changed `tool_choice` or `thinking`, and the first image of a
    prompt, change the digests of message blocks only.
    """
    found = list(_anthropic_blocks(body))
    ttls = [anthropic_ttl(place, block.get("cache_control")) for place, _, block in found]
    for (place, _, block), ttl in zip(found, ttls, strict=True):
        if ttl and block.get("type") in UNMARKABLE:
            raise PromptRejected(f"{place}.{block['type']}.cache_control: Extra inputs are not permitted")
        if ttl and not is_markable(block):
            raise PromptRejected(f"{place}: cache_control cannot be set for empty text blocks")
    automatic = anthropic_ttl("body", body.get("cache_control"))
    if automatic:
        last = max((n for n, (_, _, block) in enumerate(found) if is_markable(block)), default=-1)
        if last >= 0 and ttls[last] not in (0.0, automatic):
            raise PromptRejected(f"{found[last][0]}: cache_control differs from the top-level cache_control")
        if last >= 0:
            ttls[last] = automatic
    marks = sum(bool(ttl) for ttl in ttls) + sum(_nested_marks(block) for _, _, block in found)
    if marks > MAX_ANTHROPIC_MARKS:
        raise PromptRejected(f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")
    placed = [ttl for ttl in ttls if ttl]
    if placed != sorted(placed, reverse=True):
        raise PromptRejected("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block")
    chain = _PromptChain(count_tokens, "cache_control")
    in_messages = False
    for (_, role, block), ttl in zip(found, ttls, strict=True):
        if role in ("user", "assistant") and not in_messages:
            in_messages = True
            has_images = any(contains_image(one) for _, _, one in found)
            chain.salt([body.get("tool_choice"), body.get("thinking"), has_images])
        chain.add(role, block, ttl)
    return chain.blocks


def _openai_parts(body: Body) -> Iterator[tuple[str, Body, list[Body]]]:
    """Yield role, other fields and blocks of each message of a chat or Responses request; tools come first."""
    for tool in body.get("tools") or []:
        yield "tools", {}, [tool]
    if isinstance(body.get("instructions"), str):
        yield "instructions", {}, as_blocks(body["instructions"])
    if "messages" not in body:
        content = body.get("input")
        items = [{"role": "user", "content": content}] if isinstance(content, str) else list(content or [])
    else:
        items = list(body["messages"])
    for item in items:
        if "role" not in item:  # an item of the Responses API that is not a message
            is_output = item["type"].endswith("_output")
            fields = {"type": item["type"], "call_id": item.get("call_id")} if is_output else {}
            yield "item", fields, as_blocks(item.get("output"), "input_text") if is_output else [item]
            continue
        kind = "text" if "messages" in body else "input_text"
        calls = [{"type": "call", "call": call} for call in item.get("tool_calls") or []]
        fields = {name: value for name, value in item.items() if name not in NOT_IN_PROMPT}
        yield item["role"], fields, as_blocks(item.get("content"), kind) + calls


def openai_prompt(body: Body, count_tokens: CountTokens) -> list[PromptBlock]:
    """Return the blocks of a chat or Responses request."""
    chain = _PromptChain(count_tokens, "prompt_cache_breakpoint")
    implicit = openai_cache_mode(body) == "implicit"
    for role, fields, blocks in _openai_parts(body):
        accepts = role in ("system", "developer", "user", "tool", "item")
        for index, block in enumerate(blocks):
            mark = block.get("prompt_cache_breakpoint")
            if mark is not None and (not accepts or mark != {"mode": "explicit"}):
                raise PromptRejected(f"prompt_cache_breakpoint {mark!r} is not supported on content of role {role!r}")
            last = index == len(blocks) - 1
            ttl = BREAKPOINT_SECONDS if mark else 0.0
            chain.add([role, fields], block, ttl, ends_message=implicit and last and accepts)
    return chain.blocks


def openai_cache_mode(body: Body) -> str:
    """Return the mode of `prompt_cache_options`: "implicit" or "explicit"."""
    options = body.get("prompt_cache_options") or {}
    if not isinstance(options, dict) or set(options) - {"mode", "ttl"}:
        raise PromptRejected(f"Unknown parameter in prompt_cache_options: {options!r}; allowed are mode and ttl")
    if options.get("ttl", "30m") != "30m":
        raise PromptRejected(f"prompt_cache_options.ttl must be '30m', not {options['ttl']!r}")
    if options.get("mode", "implicit") not in ("implicit", "explicit"):
        raise PromptRejected(f"prompt_cache_options.mode must be implicit or explicit, not {options['mode']!r}")
    return str(options.get("mode", "implicit"))
