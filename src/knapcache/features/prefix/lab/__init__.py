"""Traces of prefixes, and their replay with rules that place marks for a provider's prompt cache."""

from knapcache.features.prefix.lab.read import PrefixTrace, read_prefix_trace
from knapcache.features.prefix.lab.replay import replay_rules, rule_names

__all__ = ["PrefixTrace", "read_prefix_trace", "replay_rules", "rule_names"]
