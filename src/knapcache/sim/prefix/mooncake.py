"""Mooncake's traces of prefixes: `{"timestamp": ms, "input_length", "output_length", "hash_ids": [block, …]}`.

A block is 512 tokens of input; the last one may be shorter. The parent of a request is the latest request before it
with the longest common beginning of `hash_ids`. There are no sessions, system prompts, kinds and models: all requests
are of kind `text`.
"""

from __future__ import annotations

from collections.abc import Iterator

from knapcache.sim.prefix.chains import Place, SharingRequest
from knapcache.sim.prefix.fields import finite
from knapcache.sim.traces.base import BrokenLineError, TraceBuilder, number
from knapcache.sim.traces.json_lines import objects
from knapcache.sim.traces.mooncake import BLOCK, chain
from knapcache.sim.traces.source import TraceSource
from knapcache.sim.traces.table import field

ROOT = -1
"""The node before the first block."""


def read(source: TraceSource) -> Iterator[tuple[Place, SharingRequest]]:
    """Yield the place and the request of each line, by time; raises InvalidInput for a broken line."""
    builder = TraceBuilder(source.path, None)
    rows: list[tuple[float, int, list[int], int]] = []
    with source.open() as file:
        for line, row in objects(file, builder):
            try:
                blocks, tokens = chain(row)
                milliseconds = number("timestamp", field(row, "timestamp"))
                rows.append((finite("timestamp", milliseconds) / 1000.0, line, blocks, tokens))
            except BrokenLineError as error:
                builder.broken(f"line {line}", str(error))
    rows.sort(key=lambda row: row[:2])
    nodes: dict[tuple[int, int], int] = {}  # a tree of blocks: node before, block -> node
    latest: list[tuple[int, int]] = []  # by node: line and tokens of the latest request that contains it
    for time, line, blocks, tokens in rows:
        node, known, parent = ROOT, 0, None
        for block in blocks:
            found = nodes.get((node, block))
            if found is None:
                break
            node, known = found, known + 1
        shared = 0
        if known:
            parent, length = latest[node]
            shared = min(BLOCK * known, tokens, length)
        node = ROOT
        for block in blocks:
            node = nodes.setdefault((node, block), len(latest))
            if node == len(latest):
                latest.append((line, tokens))
            else:
                latest[node] = line, tokens
        yield (
            f"line {line}".__str__,
            SharingRequest(
                time=time,
                id=("all", line),
                parent=None if parent is None else ("all", parent),
                shared_tokens=shared,
                input_tokens=tokens,
                system_tokens=0,
                kind="text",
                model="",
            ),
        )
