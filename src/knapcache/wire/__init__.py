"""The formats in which providers answer, plain and streamed. Pure: bytes in, bytes out, no I/O."""

from knapcache.wire.base import Collector, Whole, as_plain, as_stream, plain_answer
from knapcache.wire.cache_control import Control, control_of, endpoint_of
from knapcache.wire.sse import Block, Event, Parser

__all__ = [
    "Block",
    "Collector",
    "Control",
    "Event",
    "Parser",
    "Whole",
    "as_plain",
    "as_stream",
    "control_of",
    "endpoint_of",
    "plain_answer",
]
