"""Which requests are the same: from a request to the key of its answer."""

from knapcache.match.canonical import Key, Keyed, Keyer
from knapcache.match.reading import Body
from knapcache.match.rules import Rules

__all__ = ["Body", "Key", "Keyed", "Keyer", "Rules"]
