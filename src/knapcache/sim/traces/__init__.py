"""Traces in files: one reader a format, one front door."""

from knapcache.sim.traces.read import FORMATS, read_trace
from knapcache.sim.traces.shape import BrokenLine, ColumnRules, Prices

__all__ = ["FORMATS", "BrokenLine", "ColumnRules", "Prices", "read_trace"]
