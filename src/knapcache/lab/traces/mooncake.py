"""Mooncake's traces: one request per line,
`{"timestamp": ms, "input_length", "output_length", "hash_ids": [block, …]}`.

A block is 512 tokens of input. Its id identifies these tokens *and all before them*: equal ids mean equal prefixes.
Nothing identifies equal whole requests, so what can be cached is a part of the input. A request becomes several
entries, in the order of its input:

    entry   a segment: the longest run of blocks that no request of the trace enters, leaves or ends in the middle of,
            as in a radix tree of all requests; its key is the id of its first block
    size    tokens (the last block of a request is not full)
    cost    tokens at the price of input, `--prices IN,OUT`, or `--cost-each` per segment. OUT is not used, because
            generated text is not an entry

Rejected: one entry per block. A request would become about thirty requests for blocks that always occur together. Not
modelled: a segment is useful only if all segments before it are cached too.

The file is read twice, first to find where segments end.
"""

from __future__ import annotations

from typing import Any

from knapcache.errors import InvalidInput
from knapcache.lab.traces.base import AUTO, BrokenLineError, ColumnRules, Prices, TraceBuilder, seconds_of, short, whole
from knapcache.lab.traces.json_lines import objects
from knapcache.lab.traces.source import TraceSource
from knapcache.lab.traces.table import field

RULES = frozenset({"time", "no-time", "cost-each", "prices"})
BLOCK = 512
NO_SUCCESSOR = -1
"""Marks a block that ends a segment: different blocks follow it, or none."""


def read(source: TraceSource, rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the segments of a file to `builder`."""
    if rules.no_cost:
        raise InvalidInput(
            f"{source.path} (mooncake) contains no costs: use --prices IN,OUT per million tokens, or --cost-each X"
        )
    if rules.prices == AUTO:
        raise InvalidInput(
            f"--prices auto needs the model of each call, and {source.path} (mooncake) has none: use --prices IN,OUT"
        )
    builder.units.add(rules.unit)
    after = successors(source, builder)
    with source.open() as file:
        for line, row in objects(file, builder):
            try:
                blocks, tokens = chain(row)
                name = rules.time or "timestamp"
                time = None if rules.no_time else seconds_of(name, field(row, name)) / 1000.0
                for first, size in segments(blocks, tokens, after):
                    cost = rules.prices.cost(size, 0) if isinstance(rules.prices, Prices) else rules.cost_each or 0.0
                    builder.add(first, size, cost, time)
            except BrokenLineError as error:
                builder.broken(f"line {line}", str(error))


def chain(row: dict[str, Any]) -> tuple[list[int], int]:
    """Return the blocks of a request and its number of tokens; raises BrokenLineError."""
    blocks, tokens = field(row, "hash_ids"), whole("input_length", field(row, "input_length"))
    if not isinstance(blocks, list) or not blocks or any(type(b) is not int or b < 0 for b in blocks):
        raise BrokenLineError(f"hash_ids must be a list of whole numbers, not {short(blocks)}")
    if not BLOCK * (len(blocks) - 1) < tokens <= BLOCK * len(blocks):
        raise BrokenLineError(f"input_length is {short(tokens)}, which is not {len(blocks)} blocks of {BLOCK} tokens")
    return blocks, tokens


def successors(source: TraceSource, builder: TraceBuilder) -> dict[int, int]:
    """Map each block to the only block that follows it, or to NO_SUCCESSOR."""
    after: dict[int, int] = {}
    silent = TraceBuilder(builder.path, lambda _: None)  # broken lines are reported by the second pass
    with source.open() as file:
        for _, row in objects(file, silent):
            try:
                blocks, _ = chain(row)
            except BrokenLineError:
                continue
            for block, following in zip(blocks, [*blocks[1:], NO_SUCCESSOR], strict=True):
                if after.setdefault(block, following) != following:
                    after[block] = NO_SUCCESSOR
    return after


def segments(blocks: list[int], tokens: int, after: dict[int, int]) -> list[tuple[int, int]]:
    """Return the first block and the number of tokens of each segment."""
    found = []
    start = 0
    for k, block in enumerate(blocks, 1):
        if after[block] == NO_SUCCESSOR:
            found.append((blocks[start], min(BLOCK * k, tokens) - BLOCK * start))
            start = k
    return found
