"""Readers of trace files, one per format, and `read_trace` for all of them."""

from knapcache.sim.traces.base import AUTO, BrokenLine, ColumnRules, Prices
from knapcache.sim.traces.read import FORMATS, read_trace

__all__ = ["AUTO", "FORMATS", "BrokenLine", "ColumnRules", "Prices", "read_trace"]
