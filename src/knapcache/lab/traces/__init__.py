"""Readers of trace files, one per format, and `read_trace` for all of them."""

from knapcache.lab.traces.base import AUTO, BrokenLine, ColumnRules, Prices
from knapcache.lab.traces.read import FORMATS, read_trace

__all__ = ["AUTO", "FORMATS", "BrokenLine", "ColumnRules", "Prices", "read_trace"]
