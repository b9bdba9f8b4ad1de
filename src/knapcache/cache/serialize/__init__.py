"""Results of cached functions as bytes, and arguments as keys. `base.py` has the serializers."""

from knapcache.cache.serialize.base import PickleSerializer, Serializer, TypedSerializer

__all__ = ["PickleSerializer", "Serializer", "TypedSerializer"]
