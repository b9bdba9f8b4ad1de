"""Which requests are the same: from a request to the key of its answer."""

from knapcache.keys.canonical import Key, Keyed, Keyer
from knapcache.keys.parse import ParsedBody
from knapcache.keys.rules import Rules

__all__ = ["Key", "Keyed", "Keyer", "ParsedBody", "Rules"]
