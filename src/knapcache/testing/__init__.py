"""Contract test-suites, for our tests and yours.

A policy that passes `check_policy` works in simulator and cache; a store that passes `check_store` works in the cache.
"""

from knapcache.testing.policies import check_policy
from knapcache.testing.stores import check_store

__all__ = ["check_policy", "check_store"]
