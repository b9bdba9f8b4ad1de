"""Redaction of texts before they are written: built-in rules, and regular expressions that take linear time."""

from __future__ import annotations

from knapcache.features.content_log.redaction.linear_regex import LinearRegex
from knapcache.features.content_log.redaction.rules import BUILT_IN, TextRedactor, redaction_rules

__all__ = ["BUILT_IN", "LinearRegex", "TextRedactor", "redaction_rules"]
