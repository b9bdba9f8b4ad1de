"""Replay of chains of blocks: small cases by hand, the bound by brute force, and all policies below it."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.lab.capacity import Capacity
from knapcache.lab.kv import MIN, POLICIES, BlockTrace, replay_kv
from knapcache.lab.kv.replay import STEP_TOKENS, steps


def trace_of(*chains: list[int], block: int = STEP_TOKENS) -> BlockTrace:
    """Return a trace. By default a step has one block."""
    return BlockTrace([np.array(chain, np.int64) for chain in chains], block, 1 + max(map(max, chains)))


def found(trace: BlockTrace, capacity: int, policy: str) -> tuple[int, int | None]:
    """Return the blocks that a policy found and wrote."""
    names = [policy] if policy != MIN else []
    rows = {row.policy: row for row in replay_kv(trace, [Capacity.parse(str(capacity))], names)}
    return round(rows[policy].tokens_found * trace.offered), rows[policy].blocks_written


def test_only_a_whole_prefix_is_found() -> None:
    trace = trace_of([0, 1, 2], [0, 1, 2], [3])
    assert found(trace, 3, "lru") == (3, 4)
    assert found(trace, 3, "s3-fifo") == (3, 4)
    assert found(trace, 2, "lru") == (0, 6)  # the second request does not find block 1: block 0 was evicted


def test_the_last_block_of_a_request_is_evicted_first() -> None:
    assert found(trace_of([0, 1, 2], [3], [0, 1, 2]), 3, "lru") == (2, 5)
    assert found(trace_of([0, 1, 2], [3], [0, 1, 2]), 3, "adaptive") == (2, 5)


def test_a_step_that_does_not_fit_ends_the_storing() -> None:
    """Steps of two blocks in a cache of one: nothing is stored, but blocks of shorter requests are."""
    trace = trace_of([0, 1, 2, 3], [4], [4], block=STEP_TOKENS // 2)
    assert found(trace, 1, "lru") == (1, 1)
    assert found(trace, 1, "adaptive") == (1, 1)


def test_steps() -> None:
    assert list(steps([1, 2, 3], STEP_TOKENS // 2)) == [[1, 2], [3]]
    assert list(steps([1, 2], 2 * STEP_TOKENS)) == [[1], [2]]


def random_trace(seed: int, requests: int) -> BlockTrace:
    """Return requests for paths in a small random tree."""
    rng = random.Random(seed)
    numbers: dict[tuple[int, ...], int] = {}
    chains = []
    for _ in range(requests):
        path = tuple(rng.randrange(2) for _ in range(rng.randint(1, 3)))
        chains.append([numbers.setdefault(path[:k], len(numbers)) for k in range(1, len(path) + 1)])
    return trace_of(*chains)


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_the_best_of_all_decisions(seed: int) -> None:
    trace = random_trace(seed, 8)
    blocks = [int(block) for chain in trace.chains for block in chain]
    starts = {0, *np.cumsum([len(chain) for chain in trace.chains]).tolist()}

    @cache
    def best(k: int, residents: frozenset[int], whole: bool) -> int:
        """Return the most blocks that can be found from position k on. whole: all blocks before it were found."""
        if k == len(blocks):
            return 0
        hit = blocks[k] in residents and (whole or k in starts)
        after = residents | {blocks[k]}
        return int(hit) + max(best(k + 1, frozenset(kept), hit) for kept in combinations(after, min(3, len(after))))

    assert found(trace, 3, MIN)[0] == best(0, frozenset(), True)
    for policy in POLICIES:
        assert found(trace, 3, policy)[0] <= found(trace, 3, MIN)[0]


def test_rows_and_progress() -> None:
    trace = random_trace(1, 300)
    done: list[int] = []
    rows = replay_kv(trace, [Capacity.parse("50%"), Capacity.parse("2")], POLICIES, progress=done.append)
    assert [row.policy for row in rows] == [*POLICIES, MIN] * 2
    assert [row.capacity for row in rows] == [2] * 5 + [trace.blocks // 2] * 5
    assert sum(done) == len(rows) * len(trace.chains)
    assert all(0.0 <= row.tokens_found <= 1.0 for row in rows)
    assert all((row.blocks_written is None) == (row.policy == MIN) for row in rows)


def test_policies_are_checked() -> None:
    trace = random_trace(1, 3)
    with pytest.raises(InvalidInput, match="unknown policy 'lruu'"):
        replay_kv(trace, [], ["lruu"])
    with pytest.raises(InvalidInput, match="a policy is given twice: lru, lru"):
        replay_kv(trace, [], ["lru", "lru"])
