"""Replay chains of blocks against a KV cache in host memory.

A request looks up its blocks in order, up to the first that is not resident: only these are of use. It computes the
rest, and stores them. A long prompt is computed in steps, and the blocks of a step are stored together. If the cache
has no space for them, it asks the policy to evict as many as are needed. If the policy cannot, the rest of the request
is not stored. vLLM's offloading manager does the same, and `lru` gives the same numbers.

    lru            vLLM's default: the least recently used block; of a request, the last block leaves first
    arc, s3-fifo   the policies of the lab, which see blocks one by one and know no chains
    adaptive       the tournament of `policy/chains`, which vLLM loads from `integrations/vllm.py`
    min            Belady's rule, which knows the future and may refuse blocks: no policy finds more

A block's parent is requested whenever the block is. So the block whose next request is farthest away is a leaf, and
Belady's rule needs to know nothing of chains.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from knapcache.errors import InvalidInput, suggestion
from knapcache.lab.capacity import Capacity
from knapcache.lab.kv.read import BlockTrace
from knapcache.lab.replay import replay
from knapcache.lab.trace import Trace
from knapcache.policy import registry
from knapcache.policy.chains.policy import ChainPolicy

STEP_TOKENS = 8192
"""Tokens of a prompt that a server computes in one step: vLLM's `max_num_batched_tokens`."""
ADAPTIVE, LRU, MIN = "adaptive", "lru", "min"
POLICIES = (LRU, "arc", "s3-fifo", ADAPTIVE)
Block = TypeVar("Block")
REPORT = 256
"""Requests between two progress reports."""


class KvRow(NamedTuple):
    """The result of one policy with one capacity."""

    policy: str
    capacity: int
    """Blocks."""
    tokens_found: float
    """Share of the tokens in full blocks that were resident, with all blocks before them."""
    blocks_written: int | None
    """None for the bound."""


class BlockCache(Protocol):
    """Residents and a policy."""

    def begin(self, chain: list[int]) -> None:
        """Count a request."""

    def __contains__(self, block: int) -> bool: ...

    def __len__(self) -> int: ...

    def insert(self, block: int) -> None: ...

    def evict(self, n: int, protected: Sequence[int]) -> object | None:
        """Evict exactly n blocks that are not protected; None if there are fewer."""

    def finish(self, offered: list[int]) -> None:
        """End a request, which looked up or stored these blocks."""


class LruBlocks(OrderedDict[int, None]):
    """Evicts the least recently used block, as vLLM's `LRUCachePolicy` does."""

    def begin(self, chain: list[int]) -> None: ...

    def insert(self, block: int) -> None:
        self[block] = None

    def evict(self, n: int, protected: Sequence[int]) -> list[int] | None:
        spared = set(protected)
        victims = list(islice((block for block in self if block not in spared), n))
        if len(victims) < n:
            return None
        for block in victims:
            del self[block]
        return victims

    def finish(self, offered: list[int]) -> None:
        for block in reversed(offered):
            if block in self:
                self.move_to_end(block)


class AdaptiveBlocks(ChainPolicy[int]):
    """The adaptive policy with the interface of the replay."""

    def begin(self, chain: list[int]) -> None:
        self.start_request()
        self.count(chain)

    def finish(self, offered: list[int]) -> None: ...


def replay_kv(
    trace: BlockTrace,
    capacities: Sequence[Capacity],
    policies: Sequence[str],
    *,
    progress: Callable[[int], None] | None = None,
) -> list[KvRow]:
    """Return a row for each capacity and policy, and for the bound at each capacity. Shares are of distinct blocks.

    progress   called with the number of requests that were replayed, of len(trace.chains) for each row
    """
    check_policies(policies)
    return [
        replay_one(trace, capacity, policy, progress or (lambda _: None))
        for capacity in sorted({one.units(trace.blocks) for one in capacities})
        for policy in (*policies, MIN)
    ]


def check_policies(policies: Sequence[str]) -> None:
    """Raise InvalidInput for a policy that is unknown, or given twice."""
    for name in policies:
        if name not in POLICIES:
            raise InvalidInput(f"unknown policy {name!r}{suggestion(name, POLICIES)}")
    if len(set(policies)) < len(policies):
        raise InvalidInput(f"a policy is given twice: {', '.join(policies)}")


def replay_one(trace: BlockTrace, capacity: int, policy: str, progress: Callable[[int], None]) -> KvRow:
    """Return the row of one policy."""
    written: int | None
    if policy in (LRU, ADAPTIVE):
        cache = LruBlocks() if policy == LRU else AdaptiveBlocks(capacity)
        found, written = replay_chains(cache, trace, capacity, progress)
    else:
        keys = np.concatenate(trace.chains)
        flat = Trace(keys, np.ones(len(keys), np.int64), np.ones(len(keys)), trace.blocks)
        hits = replay(registry.find("belady" if policy == MIN else policy).build_for(capacity, flat), flat).hits
        written = len(keys) - int(hits.sum()) if policy != MIN else None  # they admit every block
        found = sum(leading(part) for part in np.split(hits, np.cumsum([len(one) for one in trace.chains])))
        progress(len(trace.chains))
    return KvRow(policy, capacity, found / trace.offered, written)


def leading(hits: np.ndarray) -> int:
    """Return the number of blocks before the first that is missing."""
    return len(hits) if hits.all() else int(np.argmin(hits))


def replay_chains(
    cache: BlockCache, trace: BlockTrace, capacity: int, progress: Callable[[int], None]
) -> tuple[int, int]:
    """Return the number of blocks found, and of those written."""
    found = written = 0
    for number, blocks in enumerate(trace.chains, 1):
        chain = blocks.tolist()
        cache.begin(chain)
        hits = offered = next((k for k, block in enumerate(chain) if block not in cache), len(chain))
        for part in steps(chain[hits:], trace.block):
            offered += len(part)
            new = [block for block in part if block not in cache]
            missing = len(cache) + len(new) - capacity
            if missing > 0 and cache.evict(missing, part) is None:
                break
            for block in new:
                cache.insert(block)
            written += len(new)
        cache.finish(chain[:offered])
        found += hits
        if number % REPORT == 0 or number == len(trace.chains):
            progress((number - 1) % REPORT + 1)
    return found, written


def steps(chain: Sequence[Block], block: int) -> Iterator[Sequence[Block]]:
    """Yield the blocks that a server computes in one step."""
    width = max(1, STEP_TOKENS // block)
    for k in range(0, len(chain), width):
        yield chain[k : k + width]
