"""Eviction policy for the KV cache that vLLM keeps in host memory (its offloading connector).

vLLM loads it by configuration:

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 68719476736, "eviction_policy": "AdaptivePolicy",
        "cache_policy_module_path": "knapcache.integrations.vllm"}}'

vLLM calls this interface experimental: it may change with every release. So this module can be imported with the
release that it is tested with only. `make test-vllm` runs it in the manager of that release.

A request is counted when its first block is to be stored, or at its end if none was. vLLM then knows the keys of all
full blocks of the prompt, in order: `ReqContext` has them with their positions, and no public method lists them. Blocks
that the request generates follow later. A model with several groups of layers has a chain of blocks for each group.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any

from knapcache.errors import MissingExtra
from knapcache.policy.chains.policy import ChainPolicy, warm_up

RELEASE = "0.32"
INTERFACE = {
    "get": ["key"],
    "insert": ["key", "chunk"],
    "remove": ["key"],
    "touch": ["keys", "req_context"],
    "on_store_miss": ["keys", "req_context"],
    "on_request_finished": ["key_groups", "insertion_only_keys", "reused_keys", "req_context"],
    "evict": ["n", "protected"],
    "clear": [],
    "mark_evictable": ["key"],
    "mark_non_evictable": ["key"],
}
"""Methods that vLLM calls, and their arguments."""


def check_release() -> None:
    """Raise MissingExtra unless vLLM is installed, in the release that this module is for."""
    try:
        found = version("vllm")
    except PackageNotFoundError:
        raise MissingExtra(f"knapcache.integrations.vllm needs vLLM {RELEASE}, which is not installed") from None
    if not found.startswith(f"{RELEASE}."):
        raise MissingExtra(f"knapcache.integrations.vllm needs vLLM {RELEASE}, and {found} is installed")


def check_interface(policy: type, context: type) -> None:
    """Raise MissingExtra unless vLLM's classes have the methods and fields that this module uses."""
    methods = {name: method for name, method in vars(policy).items() if inspect.isfunction(method) and name[0] != "_"}
    found = {name: list(inspect.signature(method).parameters)[1:] for name, method in methods.items()}
    if found != INTERFACE or "_offload_key_positions" not in getattr(context, "__dataclass_fields__", {}):
        raise MissingExtra(
            f"knapcache.integrations.vllm needs the interface of cache policies of vLLM {RELEASE}, "
            f"which differs from the one of the installed vLLM {version('vllm')}"
        )


check_release()
try:
    from vllm.v1.kv_offload.base import OffloadKey, ReqContext, get_offload_group_idx
    from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus
except ImportError as error:
    raise MissingExtra(f"knapcache.integrations.vllm cannot import vLLM's cache policies: {error}") from None
check_interface(CachePolicy, ReqContext)


class CountedBlocks:
    """The blocks of a request that were counted. vLLM keeps it with the request."""

    def __init__(self, owner: AdaptivePolicy) -> None:
        self.owner = owner
        self.keys = 0
        self.last: dict[int, Any] = {}
        """The last block of each group of layers."""


class AdaptivePolicy(CachePolicy):  # type: ignore[misc]
    """Evicts blocks that are not the beginning of others, by the rule that suits the traffic (`policy/chains`)."""

    def __init__(self, cache_capacity: int) -> None:
        """Compile the kernels if they are not in the user's cache directory, which takes half a minute."""
        super().__init__(cache_capacity)
        warm_up()
        self._policy = ChainPolicy[Any](cache_capacity)
        self._chunks: dict[OffloadKey, ChunkStatus] = {}

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """Return the chunk of a resident block, or None."""
        return self._chunks.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        """Add a block. It cannot be evicted before it is written."""
        self._policy.insert(key, pinned=chunk.ref_cnt != 0)
        self._chunks[key] = chunk

    def remove(self, key: OffloadKey) -> None:
        """Remove a block that could not be written."""
        self._policy.remove(key)
        del self._chunks[key]

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Do nothing: a request counts once, with all its blocks."""

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:  # noqa: ARG002
        """Count the blocks of a request, before the first of them is stored."""
        self._count(req_context)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],  # noqa: ARG002
        insertion_only_keys: set[OffloadKey],  # noqa: ARG002
        reused_keys: set[OffloadKey],  # noqa: ARG002
        req_context: ReqContext,
    ) -> None:
        """Count the blocks of a request that has stored none."""
        self._count(req_context)

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """Evict exactly n blocks that are not protected; None if there are fewer, and nothing has changed."""
        evicted = self._policy.evict(n, protected)
        return None if evicted is None else [(key, self._chunks.pop(key)) for key in evicted]

    def clear(self) -> None:
        """Forget all blocks and all counts."""
        self._policy.clear()
        self._chunks.clear()

    def mark_evictable(self, key: OffloadKey) -> None:
        """Allow the eviction of a block that is not in use."""
        self._policy.unpin(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """Exclude a block that is in use from eviction."""
        self._policy.pin(key)

    def _count(self, req_context: ReqContext) -> None:
        """Count the blocks of a request that it did not have before."""
        counted = req_context.get_state(CountedBlocks)
        if counted is None or counted.owner is not self:
            counted = CountedBlocks(self)
            req_context.set_state(counted)
            self._policy.start_request()
        positions = req_context._offload_key_positions
        groups: dict[int, list[OffloadKey]] = {}
        for key in islice(positions, counted.keys, None):
            groups.setdefault(get_offload_group_idx(key), []).append(key)
        counted.keys = len(positions)
        for group, keys in groups.items():
            self._policy.count(keys, after=counted.last.get(group))
            counted.last[group] = keys[-1]
