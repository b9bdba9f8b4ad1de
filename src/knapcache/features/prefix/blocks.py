"""The blocks of a request body, in the order in which the provider caches them.

    Anthropic messages   tools, system, content blocks of messages
    OpenAI chat          tools, content parts and tool calls of messages
    OpenAI responses     tools, instructions, content parts and other items of `input`

A block's id is a chain hash of everything up to its end, so equal ids mean equal prefixes:

    id(k) = hash(id(k − 1), role, content of block k)

What else changes a provider's prefix is part of the chain, at its place. By Anthropic's documentation, `tool_choice`,
`thinking` and the presence of images invalidate messages, but neither tools nor the system prompt; output formats and
`speed` invalidate the system prompt as well. Marks are not part of the chain. A content that is a string has the ids of
its form with one text block.

The hash is Python's own: SipHash for texts, with a key of this process. So ids are valid in one process only. It is not
cryptographic: a collision makes a wrong prediction of what the provider has cached, never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import orjson

from knapcache.features.prefix.shapes import (
    IMAGES,
    LONG_TTL,
    MEDIA,
    MEDIA_SIZE,
    OPENAI_TTL,
    SHAPES,
    SHORT_TTL,
    TOOL_OUTPUTS,
    BodyShape,
    sample,
)
from knapcache.model import Endpoint

SYSTEM_ROLES = frozenset({"system", "developer"})
NOT_IN_HEADER = frozenset({"role", "content", "tool_calls", "cache_control", "type", "id", "status"})
"""Fields of a message that are read elsewhere, or that the model does not see."""


class BodyBlocks(NamedTuple):
    """The blocks of a request body. The lists have one element for each block."""

    ids: list[int]
    """Chain hash up to and including the block."""
    sizes: list[int]
    """Estimated bytes of the text up to and including the block; media count MEDIA_SIZE."""
    markable: list[bool]
    """Whether the block can carry a mark."""
    system: int
    """How many blocks, from the first on, belong to tools and system prompt."""
    kind: str
    """"tool" if the last message has a tool's result, else "text"."""
    marks: tuple[tuple[int, float], ...]
    """Marks that the caller has set, by ascending block: its index, and the TTL in seconds. An automatic mark is on the
    last markable block."""
    managed: bool
    """Whether the caller controls the provider's cache: by marks, or by `prompt_cache_options`."""


def read_blocks(shape: str, body: dict[str, Any], seed: Hashable = None) -> BodyBlocks | None:
    """Return the blocks of a parsed body, or None if its shape is not understood. Never raises.

    shape   an Endpoint
    seed    what else selects the provider's cache: the upstream and its credentials, the model
    """
    reader = READERS.get(shape)
    if reader is None:
        return None
    try:
        return reader(BlockChain(SHAPES[shape], hash(seed)), body)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError, StopIteration):
        return None  # somewhere is a value of another type than the provider's schema has


class BlockChain:
    """The blocks that were read so far."""

    __slots__ = ("hash", "ids", "images", "managed", "marks", "shape", "size", "sizes", "unmarkable")

    def __init__(self, shape: BodyShape, seed: int) -> None:
        self.shape, self.hash, self.size = shape, seed, 0
        self.ids: list[int] = []
        self.sizes: list[int] = []
        self.unmarkable: list[int] = []
        self.marks: list[tuple[int, float]] = []
        self.images = self.managed = False

    def settings(self, body: dict[str, Any], names: tuple[str, ...]) -> None:
        """Make the next ids depend on fields of the body."""
        if found := {name: body[name] for name in names if body.get(name) is not None}:
            self.hash = hash((self.hash, orjson.dumps(found)))

    def add(self, header: Hashable, content: Hashable, size: int, *, markable: bool) -> None:
        if not markable:
            self.unmarkable.append(len(self.ids))
        self.hash = hash((self.hash, header, content))
        self.size += size
        self.ids.append(self.hash)
        self.sizes.append(self.size)

    def tools(self, tools: Any) -> None:
        """Add the definitions of tools, each a block. Those of OpenAI cannot carry a mark."""
        markable = self.shape.marks[0] == "cache_control"
        for tool in optional_list(tools):
            if type(tool) is not dict:
                raise TypeError("a tool is not an object")
            given = tool
            if "cache_control" in tool or ("function" in tool and "cache_control" in tool["function"]):
                given = self.without_marks(tool)
                if "function" in given:
                    given = {**given, "function": self.without_marks(given["function"])}
            data = orjson.dumps(given)
            self.add("tool", data, len(data), markable=markable)

    def messages(self, messages: list[dict[str, Any]]) -> None:
        """Add the blocks of messages. Frequent block types are handled inline: a call per block doubles the time."""
        texts, anthropic = self.shape.text & self.shape.markable, "tool_use" in self.shape.markable
        dumps, last, size = orjson.dumps, self.hash, self.size
        ids, add_id, add_size, add_unmarkable = self.ids, self.ids.append, self.sizes.append, self.unmarkable.append
        for header, content, markable in self.contents(messages):
            if type(content) is str:
                last = hash((last, header, content))
                size += len(content) if content.isascii() else len(content.encode())
                if not (markable and content):
                    add_unmarkable(len(ids))
                add_id(last)
                add_size(size)
                continue
            for block in content if type(content) is list else checked_list(content):
                kind, can_carry = block["type"], True
                if kind in texts and len(block) == 2:
                    text = can_carry = block["text"]
                    last = hash((last, header, text))
                    size += len(text) if text.isascii() else len(text.encode())
                elif anthropic and kind == "tool_use" and "cache_control" not in block:
                    data = dumps(block)
                    last = hash((last, header, data))
                    size += len(data)
                elif anthropic and kind == "tool_result" and len(block) == 3 and type(block.get("content")) is str:
                    text = block["content"]
                    last = hash((last, header, block["tool_use_id"], text))
                    size += len(text) if text.isascii() else len(text.encode())
                else:
                    parts, length, can_carry = self.block(block)
                    last = hash((last, header, *parts))
                    size += length
                if not (markable and can_carry):
                    add_unmarkable(len(ids))
                add_id(last)
                add_size(size)
        self.hash, self.size = last, size

    def contents(self, messages: list[dict[str, Any]]) -> Iterator[tuple[Hashable, Any, bool]]:
        """Yield header and content of each message, and whether its role lets blocks carry marks."""
        unmarkable_roles = self.shape.unmarkable_roles
        for message in messages:
            role = message["role"]
            if len(message) == 2 and "content" in message:
                yield role, message["content"], role not in unmarkable_roles
            else:
                yield *self.other_fields(message), role not in unmarkable_roles

    def system_messages(self, messages: list[dict[str, Any]]) -> int:
        """Add the blocks of messages. Return how many blocks belong to what the conversation starts with: system
        prompts, and what was added before.
        """
        count = 0
        while count < len(messages) and messages[count].get("role") in SYSTEM_ROLES:
            count += 1
        self.messages(messages[:count])
        system = len(self.ids)
        self.messages(messages[count:])
        return system

    def other_fields(self, message: dict[str, Any]) -> tuple[Hashable, Any]:
        """Return header and content of a message with other fields than role and content. Tool calls are content."""
        role, content = message["role"], message.get("content")
        if len(message) == 3 and "tool_call_id" in message:
            return (role, message["tool_call_id"]), content
        if (calls := message.get("tool_calls")) is not None:
            content = [{"type": "text", "text": content}] if type(content) is str else optional_list(content)
            content = content + checked_list(calls)
        if "cache_control" in message:
            blocks = 1 if type(content) is str else len(optional_list(content))
            self.mark(max(0, len(self.ids) + blocks - 1), message["cache_control"])
        rest = {name: value for name, value in message.items() if name not in NOT_IN_HEADER}
        return (role, orjson.dumps(rest)) if rest else role, [] if content is None else content

    def block(self, block: dict[str, Any]) -> tuple[tuple[Hashable, ...], int, bool]:
        """Return what a block contains, its size, and whether it can carry a mark in a message that can."""
        kind = block["type"]
        block = self.without_marks(block)
        markable = kind in self.shape.markable
        if kind == "tool_result" and (inner := block.get("content")) is not None:
            head = block["tool_use_id"] if len(block) == 3 else orjson.dumps({**block, "content": None})
            if type(inner) is str:
                return (head, inner), length_of(inner), markable
            blocks = list(map(self.block, checked_list(inner)))
            return (head, *chain.from_iterable(each[0] for each in blocks)), sum(each[1] for each in blocks), markable
        if kind in MEDIA:
            content, size = self.media(kind, block)
            return (content,), size, markable
        if kind in self.shape.text and len(block) == 2:
            text = block["text"]
            return (text,), length_of(text), markable and text != ""
        data = orjson.dumps(block)
        return (data,), len(data), markable and block.get("text") != ""

    def media(self, kind: str, block: Any) -> tuple[Hashable, int]:
        """Return a hashable sample of an image, a document or a sound, and its size."""
        self.images = self.images or kind in IMAGES
        source = block.get("source")
        if type(source) is dict and type(text := source.get("data")) is str and source.get("type") == "text":
            return sample(block), length_of(text)
        return sample(block), MEDIA_SIZE

    def conversation(self, read: Callable[[Any], None], messages: Any) -> None:
        """Read the messages; once more if they have images, because these change the ids of all messages."""
        lists: tuple[list[Any], ...] = (self.ids, self.sizes, self.unmarkable, self.marks)
        start, size, lengths = self.hash, self.size, [len(each) for each in lists]
        read(messages)
        if self.images:
            for each, length in zip(lists, lengths, strict=True):
                del each[length:]
            self.hash, self.size = hash((start, "images")), size
            read(messages)

    def without_marks(self, block: dict[str, Any]) -> dict[str, Any]:
        """Return a block without marks, which are noted for the next block that is added."""
        fields = self.shape.marks
        marks = [block[name] for name in fields if name in block]
        for mark in marks:
            self.mark(len(self.ids), mark)
        return {name: value for name, value in block.items() if name not in fields} if marks else block

    def mark(self, block: int, value: Any) -> None:
        """Note a caller's mark; null is none."""
        if value is not None:
            self.managed = True
            long = OPENAI_TTL if self.shape.marks[0] == "prompt_cache_breakpoint" else SHORT_TTL
            self.marks.append((block, LONG_TTL if value.get("ttl") == "1h" else long))

    def found(self, body: dict[str, Any], system: int, *, tool: bool) -> BodyBlocks:
        markable = [True] * len(self.ids)
        for block in self.unmarkable:
            markable[block] = False
        automatic = body.get("cache_control") if "cache_control" in self.shape.marks else None
        if automatic is not None and True in markable:
            self.mark(len(markable) - 1 - markable[::-1].index(True), automatic)
        return BodyBlocks(
            ids=self.ids,
            sizes=self.sizes,
            markable=markable,
            system=system,
            kind="tool" if tool else "text",
            marks=tuple(sorted({block: ttl for block, ttl in self.marks if block < len(markable)}.items())),
            managed=self.managed or body.get("prompt_cache_options") is not None,
        )


def read_messages(chain: BlockChain, body: dict[str, Any]) -> BodyBlocks:
    chain.tools(body.get("tools"))
    chain.settings(body, ("output_format", "output_config", "speed"))
    if (system := body.get("system")) is not None:
        chain.messages([{"role": "system", "content": system}])
    chain.settings(body, ("tool_choice", "thinking"))
    count, messages = len(chain.ids), checked_list(body["messages"])
    chain.conversation(chain.messages, messages)
    last = messages[-1]["content"] if messages else ""
    return chain.found(body, count, tool=type(last) is list and any(each["type"] == "tool_result" for each in last))


def read_chat(chain: BlockChain, body: dict[str, Any]) -> BodyBlocks:
    chain.settings(body, ("response_format", "reasoning_effort", "verbosity", "web_search_options", "functions"))
    chain.tools(body.get("tools"))
    messages = checked_list(body["messages"])
    count = chain.system_messages(messages)
    return chain.found(body, count, tool=bool(messages) and messages[-1]["role"] in ("tool", "function"))


def read_responses(chain: BlockChain, body: dict[str, Any]) -> BodyBlocks:
    chain.settings(body, ("text", "reasoning", "previous_response_id", "prompt"))
    chain.tools(body.get("tools"))
    if (instructions := body.get("instructions")) is not None:
        chain.add("instructions", instructions, length_of(instructions), markable=False)
    given = body["input"]
    items = [{"role": "user", "content": given}] if type(given) is str else checked_list(given)
    count = chain.system_messages([item if "role" in item else as_message(item) for item in items])
    tool = bool(items) and "role" not in items[-1] and items[-1]["type"].endswith("_output")
    return chain.found(body, count, tool=tool)


def as_message(item: dict[str, Any]) -> dict[str, Any]:
    """Return another item of OpenAI responses in the form of a message. It is one block, or the output of a tool."""
    kind = item["type"]
    if kind in TOOL_OUTPUTS:
        return {"role": (kind, item["call_id"]), "content": item["output"]}
    return {"role": kind, "content": [item]}


READERS: dict[str, Callable[[BlockChain, dict[str, Any]], BodyBlocks]] = {
    Endpoint.MESSAGES: read_messages,
    Endpoint.CHAT: read_chat,
    Endpoint.RESPONSES: read_responses,
}


def checked_list(value: Any) -> list[Any]:
    """Return a list, or raise TypeError."""
    if type(value) is not list:
        raise TypeError(f"a list was expected, not {type(value).__name__}")
    return value


def optional_list(value: Any) -> list[Any]:
    """Return a list, which is empty for None, or raise TypeError."""
    return [] if value is None else checked_list(value)


def length_of(text: str) -> int:
    """Return the bytes of a text in UTF-8. Python has them at hand if a JSON writer has seen the text."""
    return len(text) if text.isascii() else len(text.encode())
