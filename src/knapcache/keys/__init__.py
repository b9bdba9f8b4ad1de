"""Request keys: which requests are the same."""

from knapcache.keys.canonical import Keyer, RequestKeyer, RequestKeys
from knapcache.keys.parse import ParsedBody
from knapcache.keys.request import Key, KeyedRequest
from knapcache.keys.rules import Rules

__all__ = ["Key", "KeyedRequest", "Keyer", "ParsedBody", "RequestKeyer", "RequestKeys", "Rules"]
