"""A small stand-in for vLLM's interface of cache policies, release 0.32, as an installed package.

The tests with vLLM itself (`make test-vllm`) show that the interface is the same.
"""

from __future__ import annotations

from pathlib import Path

BASE = """
from dataclasses import dataclass, field

def make_offload_key(block_hash, group_idx):
    return block_hash + group_idx.to_bytes(4, "big")

def get_offload_group_idx(key):
    return int.from_bytes(key[-4:], "big")

OffloadKey = bytes

@dataclass
class ReqContext:
    req_id: str
    _state: dict = field(default_factory=dict)
    _offload_key_positions: dict = field(default_factory=dict)

    def set_state(self, val):
        self._state[type(val)] = val

    def get_state(self, cls):
        return self._state.get(cls)

    def set_offload_key_position(self, key, end_token):
        self._offload_key_positions[key] = end_token
"""
POLICIES = """
from abc import ABC, abstractmethod

class ChunkStatus:
    def __init__(self, chunk_id):
        self.ref_cnt, self.chunk_id = -1, chunk_id

class CachePolicy(ABC):
    def __init__(self, cache_capacity):
        self.cache_capacity = cache_capacity
    @abstractmethod
    def get(self, key): ...
    @abstractmethod
    def insert(self, key, chunk): ...
    @abstractmethod
    def remove(self, key): ...
    @abstractmethod
    def touch(self, keys, req_context): ...
    def on_store_miss(self, keys, req_context): ...
    def on_request_finished(self, key_groups, insertion_only_keys, reused_keys, req_context): ...
    @abstractmethod
    def evict(self, n, protected): ...
    @abstractmethod
    def clear(self): ...
    def mark_evictable(self, key): ...
    def mark_non_evictable(self, key): ...
"""


def install(folder: Path, version: str = "0.32.0", base: str = BASE, policies: str = POLICIES) -> None:
    """Write the package and its metadata to a folder of the import path."""
    for name in ("", "v1", "v1/kv_offload", "v1/kv_offload/cpu", "v1/kv_offload/cpu/policies"):
        package = folder / "vllm" / name
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
    (folder / "vllm/v1/kv_offload/base.py").write_text(base)
    (folder / "vllm/v1/kv_offload/cpu/policies/base.py").write_text(policies)
    metadata = folder / f"vllm-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
