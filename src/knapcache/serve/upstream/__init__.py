"""HTTP to providers: what the proxy asks with."""

from knapcache.serve.upstream.client import Client, lines
from knapcache.serve.upstream.connection import Pairs, Response
from knapcache.serve.upstream.failures import BadAnswer, BrokenOff, failed

__all__ = ["BadAnswer", "BrokenOff", "Client", "Pairs", "Response", "failed", "lines"]
