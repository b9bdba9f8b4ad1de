"""The policy for chains against a slow reference, and its guarantees for random traffic."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.policy.chains import experts
from knapcache.policy.chains.policy import ChainPolicy
from tests.support.examples import examples
from tests.support.reference_chains import HALF_LIVES, NAMES, Block, ReferenceChains


def prefixes(path: Block) -> list[Block]:
    """Return the chain of blocks that ends with `path`."""
    return [path[:k] for k in range(1, len(path) + 1)]


def random_path(rng: random.Random, popular: list[Block]) -> Block:
    """Return a path that is new, popular, or the continuation of one."""
    if popular and rng.random() < 0.7:
        path = rng.choice(popular[-30:] if rng.random() < 0.5 else popular[:8])
        if rng.random() < 0.4:
            path += tuple(rng.randrange(10**6) for _ in range(rng.randint(1, 3)))
    else:
        path = (rng.randrange(2), *(rng.randrange(10**6) for _ in range(rng.randint(1, 6))))
    popular.append(path)
    return path


def test_names_and_half_lives() -> None:
    assert list(experts.NAMES) == NAMES
    assert experts.HALF_LIVES == HALF_LIVES


@pytest.mark.parametrize("seed", range(4))
def test_the_same_decisions_as_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    capacity = rng.randint(8, 24)
    policy, reference = ChainPolicy[Block](capacity), ReferenceChains(capacity)
    popular: list[Block] = []
    leaders = set()
    for _ in range(250):
        chain = prefixes(random_path(rng, popular))
        generated = prefixes((*chain[-1], rng.randrange(10**6)))[-1:] if rng.random() < 0.2 else []
        for one in (policy, reference):
            one.start_request()
            one.count(chain)
            if generated:
                one.count(generated, after=chain[-1])
        assert policy.leader == reference.leader
        leaders.add(policy.leader)
        step = rng.randint(1, 5)
        blocks = chain + generated
        for k in range(0, len(blocks), step):
            part = blocks[k : k + step]
            new = [block for block in part if block not in reference.live]
            missing = len(reference.live) + len(new) - capacity
            if missing > 0:
                victims = policy.evict(missing, part)
                assert victims == reference.evict(missing, part)
                if victims is None:
                    break
            for block in new:
                pinned = rng.random() < 0.1
                policy.insert(block, pinned=pinned)
                reference.live.add(block)
                if pinned:
                    reference.pinned.add(block)
        for block in sorted(reference.pinned):
            if rng.random() < 0.6:
                policy.unpin(block)
                reference.pinned.remove(block)
        assert len(policy) == len(reference.live)
        assert all(block in policy for block in reference.live)
    policy.check()
    assert len(leaders) > 1


PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)


@settings(max_examples=examples(40, 400), deadline=None)
@given(
    capacity=st.integers(1, 8),
    more_keys=st.integers(1, 12),
    requests=st.lists(st.tuples(PATHS, st.integers(1, 4), st.integers(0, 3), st.booleans()), max_size=30),
)
def test_guarantees(capacity: int, more_keys: int, requests: list[tuple[Block, int, int, bool]]) -> None:
    """Only leaves leave, neither pinned nor protected, and as many as asked unless there are fewer."""
    policy = ChainPolicy[Block](capacity, max_keys=2 * capacity + more_keys)
    live: set[Block] = set()
    pinned: set[Block] = set()
    for path, step, pins, unpins in requests:
        chain = prefixes(path)
        policy.start_request()
        policy.count(chain)
        if unpins:
            for block in pinned:
                policy.unpin(block)
            pinned = set()
        for block in sorted(live)[:pins]:
            policy.pin(block)
            pinned.add(block)
        for k in range(0, len(chain), step):
            part = chain[k : k + step]
            new = [block for block in part if block not in live]
            missing = len(live) + len(new) - capacity
            if missing > 0:
                victims = policy.evict(missing, part)
                if victims is None:
                    assert evictable(live, pinned | set(part)) < missing
                    policy.check()
                    break
                assert len(victims) == missing
                for victim in victims:
                    assert not any(block[:-1] == victim for block in live)
                    assert victim not in pinned
                    assert victim not in part
                    live.remove(victim)
            for block in new:
                policy.insert(block)
                live.add(block)
            assert len(policy) == len(live) <= capacity
        assert all(block in policy for block in live)
        policy.check()


def evictable(live: set[Block], spared: set[Block]) -> int:
    """Return how many blocks can be evicted one after the other, each a leaf when its turn comes."""
    kept = {block[:k] for block in live & spared for k in range(1, len(block) + 1)}
    return len(live - kept)


def test_counts_outlive_eviction() -> None:
    """A block with requests before its eviction is ranked above one without, by an expert that counts."""
    policy = ChainPolicy[str](2)
    policy._head["leader"] = NAMES.index("half-life-2000")
    for chain in ("a", "a", "a", "b", "a"):
        policy.start_request()
        policy.count([chain])
    policy.insert("a")
    policy.insert("b")
    assert policy.evict(1) == ["b"]
    assert policy.evict(1) == ["a"]
    for chain in ("c", "a", "c"):
        policy.start_request()
        policy.count([chain])
    policy.insert("c")
    policy.insert("a")
    assert policy.evict(1) == ["c"]


def test_the_oldest_keys_are_dropped_from_a_full_table() -> None:
    policy = ChainPolicy[int](1, max_keys=4)
    for block in range(6):
        policy.start_request()
        policy.count([block])
        policy.check()
    assert sorted(policy._id_of) == [2, 3, 4, 5]
    policy.insert(2)
    policy.count([6, 7])
    assert sorted(policy._id_of) == [2, 5, 6, 7]  # a resident block stays


def test_blocks_with_children_are_dropped_if_all_have_some() -> None:
    """The only leaf of the table is resident, so a block before it is dropped; the leaf has no parent then."""
    policy = ChainPolicy[int](1, max_keys=4)
    policy.count([0, 1])
    policy.count([2, 3], after=1)
    policy.insert(3)
    policy.count([4])
    assert len(policy._id_of) == 4
    assert 3 in policy
    policy.check()


def test_a_chain_that_is_longer_than_the_table_is_cut() -> None:
    policy = ChainPolicy[int](2, max_keys=8)
    policy.count(range(100))
    assert sorted(policy._id_of) == [0, 1, 2, 3]
    policy.insert(50)  # a block that was not counted
    policy.check()
    assert policy.evict(1) == [50]


def test_clear_forgets_everything() -> None:
    policy = ChainPolicy[str](2)
    policy.count(["a", "b"])
    policy.insert("a")
    policy.clear()
    policy.check()
    assert len(policy) == 0
    assert "a" not in policy
    assert policy.evict(1) is None


def test_bad_arguments() -> None:
    with pytest.raises(InvalidInput, match="capacity must be at least 1 block, not 0"):
        ChainPolicy[int](0)
    with pytest.raises(InvalidInput, match="max_keys must be above twice the capacity and below 2\\^31, not 4"):
        ChainPolicy[int](2, max_keys=4)
    policy = ChainPolicy[int](1)
    policy.insert(1)
    calls: list[tuple[Callable[[], None], str]] = [
        (lambda: policy.insert(1), "block 1 is resident"),
        (lambda: policy.insert(2), "the cache has 1 blocks already"),
        (lambda: policy.remove(2), "block 2 is not resident"),
        (lambda: policy.pin(2), "block 2 is not resident"),
        (lambda: policy.unpin(2), "block 2 is not resident"),
    ]
    for call, message in calls:
        with pytest.raises(InvalidInput, match=message):
            call()
    policy.remove(1)
    policy.check()
    assert len(policy) == 0
