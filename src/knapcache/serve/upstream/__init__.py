"""HTTP to providers: what the proxy asks with."""

from knapcache.serve.upstream.client import Client, encode_headers
from knapcache.serve.upstream.connection import Pairs, Response
from knapcache.serve.upstream.failures import ConnectionLost, ProtocolError, upstream_failed

__all__ = ["Client", "ConnectionLost", "Pairs", "ProtocolError", "Response", "encode_headers", "upstream_failed"]
