"""HTTP to providers: what the proxy asks with."""

from knapcache.serve.client.client import Client, lines
from knapcache.serve.client.connection import Pairs, Response
from knapcache.serve.client.trouble import BadAnswer, BrokenOff, failed

__all__ = ["BadAnswer", "BrokenOff", "Client", "Pairs", "Response", "failed", "lines"]
