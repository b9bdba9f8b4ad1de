"""Bodies unpacked as they come, in pieces that are not too large, however much is in them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from knapcache.serve.upstream.failures import ProtocolError

UNPACKED = 1 << 18
"""Bytes that are unpacked at once."""
SLICE = 1 << 15
"""Packed bytes at once: what is left of them is copied with every end, and some bodies have many."""


class Decompressor:
    """gzip, or deflate, or several of them in a row."""

    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)  # finds out by itself which of the two it is
        self._begun = False

    def feed(self, packed: bytes) -> Iterable[bytes]:
        """What is in it, in pieces that are not too large, however much it is."""
        for k in range(0, len(packed), SLICE):
            yield from self._feed(packed[k : k + SLICE])

    def _feed(self, packed: bytes) -> Iterable[bytes]:
        try:
            while packed:
                if self._unpack.eof:
                    self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
                self._begun = True
                unpacked = self._unpack.decompress(packed, UNPACKED)
                if unpacked:
                    yield unpacked
                packed = self._unpack.unconsumed_tail or self._unpack.unused_data
        except zlib.error as error:
            raise ProtocolError("the body cannot be unpacked") from error

    def end(self) -> None:
        """That was all."""
        if self._begun and not self._unpack.eof:
            raise ProtocolError("the body ends before it is unpacked")
