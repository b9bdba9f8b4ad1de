"""The live cache: requests in, answers out, and the most valuable answers stored."""

from knapcache.cache.cache import Cache
from knapcache.cache.pending_fetch import PendingFetch
from knapcache.cache.serialize import PickleSerializer, Serializer, TypedSerializer
from knapcache.cache.values import Answer, Lookup, Reply

__all__ = [
    "Answer",
    "Cache",
    "Lookup",
    "PendingFetch",
    "PickleSerializer",
    "Reply",
    "Serializer",
    "TypedSerializer",
]
