"""The policy for vLLM, with a stand-in of vLLM's interface. `make test-vllm` runs it with vLLM itself."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache.errors import MissingExtra
from knapcache.lab.capacity import Capacity
from knapcache.lab.kv import BlockTrace, replay_kv
from knapcache.lab.kv.replay import STEP_TOKENS, steps
from tests.support import vllm_stand_in

MODULE = "knapcache.integrations.vllm"
Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """A function that installs the stand-in and imports the module."""

    def install_and_import(**options: Any) -> Any:
        vllm_stand_in.install(tmp_path, **options)
        return importlib.import_module(MODULE)

    monkeypatch.syspath_prepend(tmp_path)
    yield install_and_import
    for name in [name for name in sys.modules if name == MODULE or name.split(".")[0] == "vllm"]:
        del sys.modules[name]


class Request:
    """A request as vLLM's manager makes it: what it calls of a policy."""

    def __init__(self, policy: Any, name: str) -> None:
        base = importlib.import_module("vllm.v1.kv_offload.base")
        self.policies = importlib.import_module("vllm.v1.kv_offload.cpu.policies.base")
        self.policy, self.context = policy, base.ReqContext(name)
        self.key: Callable[[int, int], bytes] = lambda block, group: base.make_offload_key(bytes([block]), group)

    def keys(self, *blocks: int, group: int = 0) -> list[bytes]:
        """Return the keys of further blocks, in order."""
        keys = [self.key(block, group) for block in blocks]
        for key in keys:
            self.context.set_offload_key_position(key, 16 * (1 + len(self.context._offload_key_positions)))
        return keys

    def store(self, keys: list[bytes], capacity: int) -> int:
        """Store blocks as `prepare_store` and `complete_store` do; return how many, or −1."""
        new = [key for key in keys if self.policy.get(key) is None]
        if not new:
            return 0
        self.policy.on_store_miss(new, self.context)
        missing = len(self.policy._chunks) + len(new) - capacity
        if missing > 0 and self.policy.evict(missing, set(keys)) is None:
            return -1
        for key in new:
            self.policy.insert(key, self.policies.ChunkStatus(0))
        for key in new:
            self.policy.get(key).ref_cnt = 0
            self.policy.mark_evictable(key)
        return len(new)

    def finish(self) -> None:
        self.policy.on_request_finished((), set(), set(), self.context)


def test_the_same_as_in_the_lab(load: Load) -> None:
    rng = random.Random(1)
    numbers: dict[tuple[int, ...], int] = {}
    chains = []
    for _ in range(400):
        path = (0, *(min(rng.randrange(8), rng.randrange(8)) for _ in range(rng.randint(0, 3))))
        if any(path[:k] not in numbers for k in range(1, len(path) + 1)) and len(numbers) > 200:
            continue
        chains.append([numbers.setdefault(path[:k], len(numbers)) for k in range(1, len(path) + 1)])
    block, capacity = STEP_TOKENS // 2, 12
    policy = load().AdaptivePolicy(cache_capacity=capacity)
    found = written = 0
    for number, chain in enumerate(chains):
        request = Request(policy, str(number))
        keys = request.keys(*chain)
        hits = next((k for k, key in enumerate(keys) if policy.get(key) is None), len(keys))
        for key in keys[:hits]:
            policy.mark_non_evictable(key)
        for key in keys[:hits]:
            policy.mark_evictable(key)
        for part in steps(keys[hits:], block):
            written += request.store(list(part), capacity)
        request.finish()
        found += hits
        assert set(policy._chunks) == policy._policy._residents
    trace = BlockTrace([np.array(chain) for chain in chains], block, len(numbers))
    row = replay_kv(trace, [Capacity.parse(str(capacity))], ["adaptive"])[0]
    assert (found / trace.offered, written) == (row.tokens_found, row.blocks_written)
    policy._policy.check()


def test_a_block_in_use_is_not_evicted(load: Load) -> None:
    policy = load().AdaptivePolicy(cache_capacity=2)
    first = Request(policy, "1")
    (one, two) = first.keys(1, 2)
    assert first.store([one, two], 2) == 2
    policy.mark_non_evictable(two)
    assert policy.evict(1, set()) is None  # block 1 has a child, which is in use
    policy.mark_evictable(two)
    assert [key for key, _ in policy.evict(2, set())] == [two, one]
    assert policy.get(one) is None


def test_a_failed_store_is_removed(load: Load) -> None:
    module = load()
    policy = module.AdaptivePolicy(cache_capacity=2)
    request = Request(policy, "1")
    (key,) = request.keys(1)
    policy.on_store_miss([key], request.context)
    policy.insert(key, module.ChunkStatus(0))
    assert policy.evict(1, set()) is None  # it is being written
    policy.remove(key)
    assert policy.get(key) is None
    policy._policy.check()


def test_generated_blocks_and_groups_of_layers(load: Load) -> None:
    """Each group has a chain of its own. Blocks that are generated continue it, and a request counts once."""
    policy = load().AdaptivePolicy(cache_capacity=8)
    request = Request(policy, "1")
    full = request.keys(1, 2)
    window = request.keys(1, 2, group=1)
    assert request.store(full + window, 8) == 4
    generated = request.keys(3)
    assert request.store(generated, 8) == 1
    request.finish()
    core = policy._policy
    ids = [core._id_of[key] for key in (*full, *generated)]
    assert core._rows["parent"][ids].tolist() == [-1, *ids[:2]]
    assert core._rows["parent"][core._id_of[window[1]]] == core._id_of[window[0]]
    assert core._rows["requests"][: len(core._key_of)].tolist() == [1] * 5
    assert core._head["now"][0] == 1
    core.check()


def test_clear(load: Load) -> None:
    policy = load().AdaptivePolicy(cache_capacity=2)
    request = Request(policy, "1")
    keys = request.keys(1, 2)
    request.store(keys, 2)
    policy.clear()
    assert policy.get(keys[0]) is None
    assert request.store(request.keys(3), 2) == 1  # the request goes on
    request.finish()
    policy._policy.check()


def test_without_vllm() -> None:
    with pytest.raises(MissingExtra, match=r"^knapcache\.integrations\.vllm needs vLLM 0\.32, which is not installed$"):
        importlib.import_module(MODULE)


def test_another_release(load: Load) -> None:
    with pytest.raises(MissingExtra, match=r"^knapcache\.integrations\.vllm needs vLLM 0\.32, and 0\.33\.1 is instal"):
        load(version="0.33.1")


@pytest.mark.parametrize(
    "changes",
    [
        {"policies": vllm_stand_in.POLICIES.replace("def evict(self, n, protected)", "def evict(self, n)")},
        {"policies": vllm_stand_in.POLICIES + "    def rank(self, key): ...\n"},
        {"base": vllm_stand_in.BASE.replace("_offload_key_positions", "_positions")},
    ],
)
def test_another_interface(load: Load, changes: dict[str, str]) -> None:
    with pytest.raises(MissingExtra, match=r"differs from the one of the installed vLLM 0\.32\.0$"):
        load(**changes)


def test_classes_that_were_moved(load: Load) -> None:
    with pytest.raises(MissingExtra, match="cannot import vLLM's cache policies: cannot import name 'CachePolicy'"):
        load(policies="")
