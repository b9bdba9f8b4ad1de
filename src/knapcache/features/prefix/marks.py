"""Place marks for a provider's prompt cache in a request body, and change or remove them.

    Anthropic messages   `cache_control` of a tool or a block; without `ttl` for 5 minutes, `"ttl": "1h"` for an hour
    OpenAI, 5.6 on       `prompt_cache_breakpoint` of a content part, and `prompt_cache_options` with mode explicit

A given body is never changed: what is returned has copies along the path to the marked blocks, and shares the rest. A
string gets the form of one text block if it is marked, because only blocks can carry a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from knapcache.features.prefix.shapes import LONG_TTL, SHAPES, SHORT_TTL, TOOL_OUTPUTS
from knapcache.keys.cache_marks import MARK_FIELDS, edit_marks
from knapcache.model import Endpoint

MAX_MARKS = 4
"""Marks in one request, by the rules of Anthropic and OpenAI."""
OPENAI = frozenset({Endpoint.CHAT, Endpoint.RESPONSES})

Path = tuple[str | int, ...]


def with_marks(shape: str, body: dict[str, Any], marks: Iterable[tuple[int, float]]) -> dict[str, Any]:
    """Return a body with marks on some of its blocks. Raise ValueError for marks that the provider would refuse.

    body    one that `read_blocks` understands, without marks
    marks   index of the block and TTL in seconds, in any order. OpenAI has one TTL, so the given one does not count.
            Without marks, a request to OpenAI gets the mode explicit as well: its prefix is not written.
    """
    ordered = check_marks(shape, marks)
    paths = find_blocks(shape, body, [block for block, _ in ordered])
    if shape in OPENAI:
        body = {**body, "prompt_cache_options": {"mode": "explicit"}}
    for path, (_, ttl) in zip(paths, ordered, strict=True):
        check_markable(shape, body, path)
        body = edited(body, path, partial(marked, shape=shape, path=path, ttl=ttl))
    return body


def check_marks(shape: str, marks: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return marks in the order of their blocks, or raise ValueError."""
    if shape not in SHAPES:
        raise ValueError(f"shape must be one of {[str(each) for each in SHAPES]}, not {shape!r}")
    ordered = sorted(marks)
    if len(ordered) > MAX_MARKS:
        raise ValueError(f"{len(ordered)} marks were given; at most {MAX_MARKS} are allowed")
    if len({block for block, _ in ordered}) < len(ordered):
        raise ValueError("a block was given two marks")
    if shape not in OPENAI:
        ttls = [ttl for _, ttl in ordered]
        if unknown := [ttl for ttl in ttls if ttl not in (SHORT_TTL, LONG_TTL)]:
            raise ValueError(f"a TTL must be {SHORT_TTL:g} or {LONG_TTL:g} seconds, not {unknown[0]}")
        if ttls != sorted(ttls, reverse=True):
            raise ValueError("marks with the long TTL must come before those with the short one")
    return ordered


def find_blocks(shape: str, body: dict[str, Any], blocks: Sequence[int]) -> list[Path]:
    """Return where blocks are, by ascending index as `read_blocks` counts them. The path of a string ends there."""
    if blocks and blocks[0] < 0:
        raise ValueError(f"block {blocks[0]} was given; the first one is 0")
    found: list[Path] = []
    start = 0
    for path, content in sections(shape, body):
        if len(found) == len(blocks):
            return found
        size = len(content) if type(content) is list else 1
        while len(found) < len(blocks) and blocks[len(found)] < start + size:
            place = blocks[len(found)] - start
            found.append((*path, place) if type(content) is list else path)
        start += size
    if len(found) < len(blocks):
        raise ValueError(f"block {blocks[-1]} was given; the body has {start} blocks")
    return found


def sections(shape: str, body: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the content of each part of a body that has blocks: a list of them, or one block."""
    if tools := body.get("tools"):
        yield ("tools",), tools
    system = "instructions" if shape == Endpoint.RESPONSES else "system"
    if shape != Endpoint.CHAT and body.get(system) is not None:
        yield (system,), body[system]
    name = "input" if shape == Endpoint.RESPONSES else "messages"
    messages = body[name]
    if type(messages) is str:
        yield (name,), messages
        return
    for index, message in enumerate(messages):
        if "role" in message:
            if (content := message.get("content")) is not None:
                yield (name, index, "content"), content
            if message.get("tool_calls"):
                yield (name, index, "tool_calls"), message["tool_calls"]
        elif message["type"] in TOOL_OUTPUTS:
            yield (name, index, "output"), message["output"]
        else:
            yield (name, index), message


def check_markable(shape: str, body: dict[str, Any], path: Path) -> None:
    """Raise ValueError if the block there cannot carry a mark."""
    block: Any = body
    role = None
    for step in path:
        block = block[step]
        role = block.get("role", role) if type(block) is dict else role
    rules = SHAPES[shape]
    if type(block) is str:
        markable = block != "" and path != ("instructions",)
    elif path[0] == "tools":
        markable = shape not in OPENAI
    else:
        markable = block["type"] in rules.markable and block.get("text") != ""
    if not markable or role in rules.unmarkable_roles:
        raise ValueError(f"the block at {path} cannot carry a mark")


def edited(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """Return a value with one part changed. Only what is on the path to it is copied."""
    if not path:
        return change(value)
    copy = value.copy()  # a plain dict, also for a ParsedBody
    copy[path[0]] = edited(value[path[0]], path[1:], change)
    return copy


def marked(value: Any, shape: str, path: Path, ttl: float) -> Any:
    """Return a block with a mark, or a string as one text block with a mark."""
    field = MARK_FIELDS[shape][0]
    mark = {"mode": "explicit"} if shape in OPENAI else cache_control(ttl)
    if type(value) is not str:
        return {**value, field: mark}
    content = [{"type": "input_text" if shape == Endpoint.RESPONSES else "text", "text": value, field: mark}]
    return [{"role": "user", "content": content}] if path == ("input",) else content


def cache_control(ttl: float) -> dict[str, str]:
    return {"type": "ephemeral", "ttl": "1h"} if ttl == LONG_TTL else {"type": "ephemeral"}


def with_ttl(shape: str, body: dict[str, Any], ttl: float) -> dict[str, Any]:
    """Return a body whose marks have this TTL in seconds. Those of OpenAI have one TTL, and stay."""
    if shape in OPENAI:
        return body
    check_marks(shape, [(0, ttl)])

    def change(mark: Any) -> Any:
        if type(mark) is not dict:
            return mark
        same = {name: value for name, value in mark.items() if name != "ttl"}
        return {**same, "ttl": "1h"} if ttl == LONG_TTL else same

    body = edit_marks(shape, body, MARK_FIELDS[shape], change)
    return edited(body, ("cache_control",), change) if shape == Endpoint.MESSAGES and "cache_control" in body else body


def with_cache_key(body: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a body with `prompt_cache_key`, which OpenAI uses to send similar requests to one machine.

    A key that the caller has set stays.
    """
    return body if body.get("prompt_cache_key") is not None else {**body, "prompt_cache_key": key}
