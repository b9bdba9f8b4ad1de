"""Contract tests for policies and stores, and a fake LLM provider.

A policy that passes `check_policy` works in the simulator and in the cache. A store that passes `check_store` works in
the cache. `FakeUpstream` serves the endpoints of OpenAI and Anthropic, with injectable faults.
"""

from knapcache.testing.policies import check_policy
from knapcache.testing.stores import check_store
from knapcache.testing.upstream import FakeUpstream

__all__ = ["FakeUpstream", "check_policy", "check_store"]
