"""The wire formats of the providers' answers, plain and streamed. Pure: bytes in, bytes out, no I/O."""

from knapcache.wire.base import CompleteAnswer, Format, StreamCollector
from knapcache.wire.cache_control import CacheControl, parse_cache_control
from knapcache.wire.registry import FORMATS, PROXY_PATHS, endpoint_of
from knapcache.wire.sse import SseBlock, SseEvent, SseParser

__all__ = [
    "FORMATS",
    "PROXY_PATHS",
    "CacheControl",
    "CompleteAnswer",
    "Format",
    "SseBlock",
    "SseEvent",
    "SseParser",
    "StreamCollector",
    "endpoint_of",
    "parse_cache_control",
]
