"""The live cache: requests come in, answers come out, and what is worth keeping stays."""

from knapcache.cache.cache import Cache
from knapcache.cache.values import Answer, Lookup, Reply

__all__ = ["Answer", "Cache", "Lookup", "Reply"]
