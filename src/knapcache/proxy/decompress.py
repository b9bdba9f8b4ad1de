"""Incremental decompression of request and response bodies, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

ENCODINGS = ("gzip", "x-gzip", "deflate")
"""Content-encodings that are understood. zlib tells gzip and deflate apart by their first bytes."""
MAX_MEMBERS = 10_000
"""Members of one body. One takes microseconds even if it is empty, and 20 bytes; bgzip makes one of every 64 KB."""
MAX_OUTPUT = 1 << 18
"""Bytes that are produced at a time."""
INPUT_SLICE = 1 << 15
"""Bytes of input at a time. zlib copies the rest of its input at the end of every member, and a body may have many."""


class DecompressionError(ValueError):
    """The body is not valid gzip or deflate, or it is truncated."""


class Decompressor:
    """Decompresses one body: gzip or deflate, of one or more members."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._begun, self._members = False, 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield decompressed chunks of at most MAX_OUTPUT bytes. Raises DecompressionError."""
        for start in range(0, len(data), INPUT_SLICE):
            yield from self._feed(data[start : start + INPUT_SLICE])

    def _feed(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                if self._member.eof:
                    self._members += 1
                    if self._members > MAX_MEMBERS:
                        raise DecompressionError(f"The compressed body has more than {MAX_MEMBERS} members.")
                    self._member = zlib.decompressobj(zlib.MAX_WBITS | 32)
                self._begun = True
                chunk = self._member.decompress(data, MAX_OUTPUT)
                if chunk:
                    yield chunk
                data = self._member.unconsumed_tail or self._member.unused_data
        except zlib.error:
            raise DecompressionError("The body cannot be decompressed.") from None

    def end(self) -> None:
        """Raise DecompressionError if the body was truncated. An empty body is valid."""
        if self._begun and not self._member.eof:
            raise DecompressionError("The compressed body is truncated.")
