"""Replay of prompts against the KV cache of an inference server: blocks of equal size that form chains."""

from knapcache.lab.kv.read import BlockTrace, read_block_trace
from knapcache.lab.kv.replay import MIN, POLICIES, KvRow, replay_kv

__all__ = ["MIN", "POLICIES", "BlockTrace", "KvRow", "read_block_trace", "replay_kv"]
