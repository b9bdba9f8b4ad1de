"""Contract test-suites and a fake LLM provider, for our tests and yours.

A policy that passes `check_policy` works in simulator and cache; a store that passes `check_store` works in the cache.
`FakeUpstream` answers as providers do, and fails as they do.
"""

from knapcache.testing.policies import check_policy
from knapcache.testing.stores import check_store
from knapcache.testing.upstream import FakeUpstream

__all__ = ["FakeUpstream", "check_policy", "check_store"]
