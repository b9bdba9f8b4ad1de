"""Open prefix traces, rendered as requests whose blocks stand for the trace's tokens.

A request has the blocks that it shares with its parent, and one new block with the missing tokens. The trace counts
shared tokens in whole blocks of its own, so a request that shares all whole blocks of a prefix is taken to share that
prefix.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK_TOKENS = {"agent_sessions": 64, "chat_prefixes": 512}
"""Tokens in which each trace counts."""
TOKENS_PER_BYTE = {"agent_sessions": 16.0, "chat_prefixes": 2.0}
"""Of rendered text, so that a request of 150,000 tokens has less than 10 KB. Chat has short blocks."""
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class TraceRow(NamedTuple):
    """One request of a trace."""

    time: float
    id: tuple[str, int]
    parent: tuple[str, int] | None
    shared: int
    tokens: int
    system: int
    kind: str
    model: str


class TextBlock(NamedTuple):
    """A block of a rendered request."""

    text: str
    end: int
    """Tokens of the prefix that ends with it."""
    kind: str
    """`system`, `tool` or `text`."""


class RenderedRequest(NamedTuple):
    """A request of a trace and its blocks."""

    row: TraceRow
    blocks: list[TextBlock]
    previous: int
    """Index of the last block of the parent, if this request continues it; else -1."""
    serial: int


def trace_path(name: str) -> Path:
    """Return the file of a trace; skips the test where it is absent."""
    folder = Path(os.environ.get("KNAPCACHE_TRACES") or ROOT.parent / "shared" / "data")
    path = folder / f"{name}.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is absent: KNAPCACHE_TRACES names the folder of the traces")
    return path


def load_trace(name: str, limit: int | None = None) -> list[TraceRow]:
    """Return the first requests of a trace."""
    with gzip.open(trace_path(name), "rt") as file:
        return [
            TraceRow(
                time=float(row["time"]),
                id=(row["session"], int(row["request"])),
                parent=(row["session"], int(row["parent"])) if int(row["parent"]) >= 0 else None,
                shared=int(row["shared_tokens"]),
                tokens=int(row["input_tokens"]),
                system=int(row["system_tokens"]),
                kind=row["kind"],
                model=row["model"] or "claude-sonnet-4-6",
            )
            for row in islice(csv.DictReader(file), limit)
        ]


def render(name: str, rows: list[TraceRow]) -> Iterator[RenderedRequest]:
    """Yield the requests of a trace, in its order."""
    block_tokens, scale = BLOCK_TOKENS[name], TOKENS_PER_BYTE[name]
    requests: dict[tuple[str, int], list[TextBlock]] = {}
    siblings: dict[int, int] = {}
    """Blocks that follow a block, by the identity of its object: requests share blocks with their parents."""
    for serial, row in enumerate(rows):
        parent = requests[row.parent] if row.parent is not None else []
        shared = [
            block
            for block in parent
            if block.end <= row.tokens and block.end // block_tokens * block_tokens <= row.shared
        ]
        blocks = list(shared)
        place = id(blocks[-1]) if blocks else 0
        siblings[place] = siblings.get(place, 0) + 1
        if not blocks and 0 < row.system < row.tokens:
            blocks.append(text_block(blocks, row.system, "system", (serial, siblings[place]), scale))
        if not blocks or blocks[-1].end < row.tokens:
            blocks.append(text_block(blocks, row.tokens, row.kind, (serial, siblings[place]), scale))
        requests[row.id] = blocks
        continues = bool(parent) and len(shared) == len(parent)
        yield RenderedRequest(row, blocks, len(parent) - 1 if continues else -1, serial)


def text_block(before: list[TextBlock], end: int, kind: str, numbers: tuple[int, int], scale: float) -> TextBlock:
    """Return a block up to this number of tokens, whose text no other block in its place has.

    numbers   of the request in its trace, and of the block among those in its place, which is shorter
    """
    start = before[-1].end if before else 0
    length = max(1, round(end / scale) - round(start / scale))
    number, label = numbers[0] if length > 2 else numbers[1], ""
    while number or not label:
        number, digit = divmod(number, len(DIGITS))
        label += DIGITS[digit]
    return TextBlock(label.ljust(length, "."), end, kind)


def messages_body(request: RenderedRequest, marks: dict[int, str] | None = None) -> dict[str, Any]:
    """Return a request to Anthropic with these marks: TTL by index of the block."""
    system: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for index, block in enumerate(request.blocks):
        content: dict[str, Any] = {"type": "text", "text": block.text}
        if block.kind == "tool":
            content = {"type": "tool_result", "tool_use_id": "toolu_1", "content": block.text}
        if marks and index in marks:
            content["cache_control"] = {"type": "ephemeral", "ttl": marks[index]}
        if block.kind == "system":
            system.append(content)
        else:
            messages.append({"role": "user", "content": [content]})
    # Two rows of a trace may have the same prompt. Another max_tokens makes them different for a response cache.
    body = {"model": request.row.model, "max_tokens": request.serial + 1, "messages": messages}
    return {**body, "system": system} if system else body
