"""The live cache: requests in, answers out, and the most valuable answers stored."""

from knapcache.cache.cache import Cache
from knapcache.cache.replies import PendingFetch
from knapcache.cache.results import BreakerStats, CachedEntry, CacheStats, EntryContent, EntryListing, RequestTotals
from knapcache.cache.serialize import PickleSerializer, Serializer, TypedSerializer
from knapcache.cache.values import Answer, Lookup, Reply, SimilarMatch

__all__ = [
    "Answer",
    "BreakerStats",
    "Cache",
    "CacheStats",
    "CachedEntry",
    "EntryContent",
    "EntryListing",
    "Lookup",
    "PendingFetch",
    "PickleSerializer",
    "Reply",
    "RequestTotals",
    "Serializer",
    "SimilarMatch",
    "TypedSerializer",
]
