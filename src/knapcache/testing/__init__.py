"""Contract test-suites, for our tests and yours: a policy that passes `check_policy` works in simulator and cache."""

from knapcache.testing.policies import check_policy

__all__ = ["check_policy"]
