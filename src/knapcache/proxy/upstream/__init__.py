"""Upstreams: the HTTP client, its errors, retries, and the embedded model."""

from knapcache.proxy.upstream.client import Client, encode_headers
from knapcache.proxy.upstream.connection import Pairs
from knapcache.proxy.upstream.failures import ConnectionLost, ProtocolError, upstream_failed
from knapcache.proxy.upstream.response import Response

__all__ = ["Client", "ConnectionLost", "Pairs", "ProtocolError", "Response", "encode_headers", "upstream_failed"]
