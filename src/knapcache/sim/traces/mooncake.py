"""Mooncake's traces: a line a request, `{"timestamp": ms, "input_length", "output_length", "hash_ids": [block, …]}`.

A block is 512 tokens of input, and its id stands for these tokens *and all before them*: equal ids are equal prefixes.
Nothing says which whole requests are equal; what can be kept and asked for again is a stretch of input. So a request
becomes a few entries, in the order of its input:

    entry   a segment: the longest run of blocks that no request of the trace enters, leaves or ends in the middle of,
            as in a radix tree of all requests; its key is the id of its first block
    size    tokens (the last block of a request is not full)
    cost    tokens at the price of input, `--prices IN,OUT`, or `--cost-each` per segment. OUT is not used: what was
            generated is not an entry

Rejected: a block as an entry, which makes some thirty requests of one that are always asked for together. Not
modelled: a segment is of use only when those before it are there too.

The file is read twice, first to learn where segments end.
"""

from __future__ import annotations

from typing import Any

from knapcache.errors import InvalidInput
from knapcache.sim.traces.json_lines import objects
from knapcache.sim.traces.shape import BrokenLineError, ColumnRules, TraceBuilder, moment, short, whole
from knapcache.sim.traces.source import TraceSource
from knapcache.sim.traces.table import field

RULES = frozenset({"time", "no-time", "cost-each", "prices"})
BLOCK = 512
NOBODY = -1
"""The successor of a block that ends a segment: blocks that differ come after it, or none."""


def read(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Segments into requests."""
    if rules.no_cost:
        raise InvalidInput(
            f"{source.path} (mooncake) holds no costs: give --prices IN,OUT per million tokens, or --cost-each X"
        )
    after = successors(source, builder)
    with source.open() as file:
        for line, row in objects(file, builder):
            try:
                blocks, tokens = chain(row)
                name = rules.time or "timestamp"
                time = None if rules.no_time else moment(name, field(row, name)) / 1000.0
                for first, size in segments(blocks, tokens, after):
                    cost = rules.prices.cost(size, 0) if rules.prices else rules.cost_each or 0.0
                    builder.add(first, size, cost, time)
            except BrokenLineError as error:
                builder.broken(f"line {line}", str(error))


def chain(row: dict[str, Any]) -> tuple[list[int], int]:
    """The blocks of a request and its tokens; raises BrokenLineError."""
    blocks, tokens = field(row, "hash_ids"), whole("input_length", field(row, "input_length"))
    if not isinstance(blocks, list) or not blocks or any(type(b) is not int or b < 0 for b in blocks):
        raise BrokenLineError(f"hash_ids must be a list of whole numbers, not {short(blocks)}")
    if not BLOCK * (len(blocks) - 1) < tokens <= BLOCK * len(blocks):
        raise BrokenLineError(f"input_length is {short(tokens)}, which is not {len(blocks)} blocks of {BLOCK} tokens")
    return blocks, tokens


def successors(source: TraceSource, builder: TraceBuilder) -> dict[int, int]:
    """The one block that comes after each, or NOBODY."""
    after: dict[int, int] = {}
    deaf = TraceBuilder(builder.path, lambda _: None)  # broken lines are for the second reading to tell
    with source.open() as file:
        for _, row in objects(file, deaf):
            try:
                blocks, _ = chain(row)
            except BrokenLineError:
                continue
            for block, following in zip(blocks, [*blocks[1:], NOBODY], strict=True):
                if after.setdefault(block, following) != following:
                    after[block] = NOBODY
    return after


def segments(blocks: list[int], tokens: int, after: dict[int, int]) -> list[tuple[int, int]]:
    """First block and tokens of each segment."""
    found = []
    start = 0
    for k, block in enumerate(blocks, 1):
        if after[block] == NOBODY:
            found.append((blocks[start], min(BLOCK * k, tokens) - BLOCK * start))
            start = k
    return found
