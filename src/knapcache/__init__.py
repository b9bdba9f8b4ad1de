"""knapcache: an LLM response cache that learns what is worth keeping.

Names are imported on first use, so `import knapcache` is fast and compiles nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from knapcache import oracle, testing
    from knapcache.cache import (
        Answer,
        BreakerStats,
        Cache,
        CachedEntry,
        CacheStats,
        EntryContent,
        EntryListing,
        PickleSerializer,
        Reply,
        RequestTotals,
        Serializer,
        SimilarMatch,
        TypedSerializer,
    )
    from knapcache.errors import (
        ClusterFailed,
        CorruptState,
        InvalidInput,
        KnapcacheError,
        MissingExtra,
        NotCached,
        NotOwner,
        StoreError,
        Uncacheable,
        Unserializable,
    )
    from knapcache.model import Decision, Endpoint, Selection
    from knapcache.price.input_tokens import InputTokens
    from knapcache.price.meter import Bill

__version__ = "1.0.0"

__all__ = [
    "Answer",
    "Bill",
    "BreakerStats",
    "Cache",
    "CacheStats",
    "CachedEntry",
    "ClusterFailed",
    "CorruptState",
    "Decision",
    "Endpoint",
    "EntryContent",
    "EntryListing",
    "InputTokens",
    "InvalidInput",
    "KnapcacheError",
    "MissingExtra",
    "NotCached",
    "NotOwner",
    "PickleSerializer",
    "Reply",
    "RequestTotals",
    "Selection",
    "Serializer",
    "SimilarMatch",
    "StoreError",
    "TypedSerializer",
    "Uncacheable",
    "Unserializable",
    "__version__",
    "oracle",
    "testing",
]

_MODULES = {
    "cache": (
        "Answer",
        "BreakerStats",
        "Cache",
        "CacheStats",
        "CachedEntry",
        "EntryContent",
        "EntryListing",
        "PickleSerializer",
        "Reply",
        "RequestTotals",
        "Serializer",
        "SimilarMatch",
        "TypedSerializer",
    ),
    "errors": (
        "ClusterFailed",
        "CorruptState",
        "InvalidInput",
        "KnapcacheError",
        "MissingExtra",
        "NotCached",
        "NotOwner",
        "StoreError",
        "Uncacheable",
        "Unserializable",
    ),
    "model": ("Decision", "Endpoint", "Selection"),
    "price.input_tokens": ("InputTokens",),
    "price.meter": ("Bill",),
}


def __getattr__(name: str) -> Any:
    if name in ("oracle", "testing"):
        return importlib.import_module(f"knapcache.{name}")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"knapcache.{module}"), name)
    raise AttributeError(f"module 'knapcache' has no attribute {name!r}")
