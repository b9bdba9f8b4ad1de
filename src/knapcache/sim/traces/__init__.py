"""Traces in files: one reader a format, one front door."""

from knapcache.sim.traces.read import FORMATS, read_trace
from knapcache.sim.traces.shape import BrokenLine, Prices, Rules

__all__ = ["FORMATS", "BrokenLine", "Prices", "Rules", "read_trace"]
