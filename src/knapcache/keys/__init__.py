"""Request keys: which requests are the same."""

from knapcache.keys.canonical import Key, Keyer, RequestKeys
from knapcache.keys.parse import ParsedBody
from knapcache.keys.rules import Rules

__all__ = ["Key", "Keyer", "ParsedBody", "RequestKeys", "Rules"]
