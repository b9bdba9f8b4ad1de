"""Read traces of prompts as chains of blocks. The format is detected by content.

mooncake   JSON lines with `hash_ids`: ids of blocks of 512 tokens (lab/traces/mooncake.py)
sessions   CSV that names the earlier request with the longest common prefix (lab/traces/sessions.py)

A block is `block` tokens of a prompt, together with all tokens before them. A server caches full blocks only, so the
rest of a prompt is left out. Files may be compressed with gzip or zstd. Several files form one trace, and a directory
means its files. Requests are replayed in the order of their times; those of the same time stay in the order of the
files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.trace import Ints
from knapcache.lab.traces.base import BrokenLineError, Progress, TraceBuilder, seconds_of
from knapcache.lab.traces.json_lines import objects
from knapcache.lab.traces.mooncake import BLOCK, chain
from knapcache.lab.traces.read import files, first_fields, not_a_trace, open_sources
from knapcache.lab.traces.sessions import (
    COLUMNS,
    Id,
    Place,
    SharingRequest,
    check_parent,
    is_sessions,
    sessions_by_time,
)
from knapcache.lab.traces.source import TraceSource
from knapcache.lab.traces.table import field

FORMATS = {
    "mooncake": f"JSON lines with hash_ids of blocks of {BLOCK} tokens",
    "sessions": f"CSV with the columns {', '.join(COLUMNS)}",
}


@dataclass(frozen=True, eq=False)
class BlockTrace:
    """Requests in the order of time, each the blocks of its prompt in order."""

    chains: list[Ints]
    """Blocks are numbered from 0. Equal numbers mean equal tokens from the beginning on."""
    block: int
    """Tokens of a block."""
    blocks: int
    """Number of distinct blocks."""

    @property
    def offered(self) -> int:
        """Number of blocks of all requests."""
        return sum(map(len, self.chains))


def read_block_trace(
    path: str | Path | Iterable[str | Path], block: int, *, progress: Progress | None = None
) -> BlockTrace:
    """Read a file, several files, or the files of a directory; raises InvalidInput with the place of a broken line."""
    if block < 1:
        raise InvalidInput(f"a block must have at least 1 token, not {block}")
    paths = files(path)
    chosen = detect(paths[0])
    if chosen == "mooncake" and block % BLOCK:
        raise InvalidInput(f"{paths[0]} has blocks of {BLOCK} tokens: --block must be a multiple of it, not {block}")
    sources = open_sources(paths, chosen, detect, progress)
    if chosen == "mooncake":
        numbers: dict[tuple[int, int], int] = {}
        timed = [found for source in sources for found in read_mooncake(source, block // BLOCK, numbers)]
        chains, blocks = [one for _, one in sorted(timed, key=lambda found: found[0])], len(numbers)
    else:
        chains, blocks = chains_of(sessions_by_time(sources), block)
    if not blocks:
        raise InvalidInput(f"{paths[0]} has no request of at least one block of {block} tokens")
    return BlockTrace([one for one in chains if len(one)], block, blocks)


def detect(path: Path) -> str:
    """Return the format of a file; raises InvalidInput if it is unknown."""
    names = first_fields(path)
    if "hash_ids" in names:
        return "mooncake"
    if is_sessions(names):
        return "sessions"
    raise not_a_trace(path, "prompts", names, FORMATS)


def read_mooncake(source: TraceSource, width: int, numbers: dict[tuple[int, int], int]) -> Iterator[tuple[float, Ints]]:
    """Yield the time and the blocks of each line, whose blocks are `width` of the file's; raises InvalidInput.

    numbers   number of each block, by the number of the block before it and its own id
    """
    builder = TraceBuilder(source.path, None)
    with source.open() as file:
        for line, row in objects(file, builder):
            try:
                ids, tokens = chain(row)
                time = seconds_of("timestamp", field(row, "timestamp"))
            except BrokenLineError as error:
                builder.broken(f"line {line}", str(error))
                continue
            found, before = [], -1
            for last in ids[width - 1 : tokens // BLOCK : width]:
                before = numbers.setdefault((before, last), len(numbers))
                found.append(before)
            yield time, np.array(found, np.int64)


def chains_of(requests: list[tuple[SharingRequest, Path, Place]], block: int) -> tuple[list[Ints], int]:
    """Return the blocks of each request, and the number of distinct blocks. A block in common is in common whole."""
    chains: dict[Id, Ints] = {}
    earlier: dict[Id, int] = {}
    blocks = 0
    for request, file, place in requests:
        try:
            check_parent(request, earlier)
        except BrokenLineError as error:
            raise InvalidInput(f"{file}, {place()}: {error}") from None
        earlier[request.id] = request.input_tokens
        common = chains[request.parent][: request.shared_tokens // block] if request.parent else np.zeros(0, np.int64)
        new = request.input_tokens // block - len(common)
        chains[request.id] = np.concatenate([common, np.arange(blocks, blocks + new)])
        blocks += new
    return list(chains.values()), blocks
