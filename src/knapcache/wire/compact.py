"""Compact form of a stored stream.

    compact = layout (1 byte), CRC-32 and length of the stream (4 bytes each, little-endian), the stream deflated

The events of a stream repeat id, model, time and field names, so each costs little more than its text after the first.
The bytes come back exactly. Damage of any kind raises Incomplete, so the answer is fetched again.

`bench/streams.py` compares this with alternatives. The common starts and ends of events with what differs, deflated,
are as small, and take ten times as long in Python. A preset dictionary saves about 200 bytes a stream, which no longer
changes the number of pages, and would have to be kept for as long as files with it exist.
"""

from __future__ import annotations

import struct
import zlib

from knapcache.errors import Incomplete

LAYOUT = 1
MAX_SIZE = 1 << 28
"""Bytes of a stream that can be compacted. A few bytes could expand to any number, so there is a bound."""
LEVEL = 6
"""zlib's default. Level 1 takes half of its time; long streams would be twice as long."""
_HEADER = struct.Struct("<BII")


def compact_stream(stream: bytes) -> bytes | None:
    """Return the compact form of a stream; None if it is not shorter."""
    if len(stream) > MAX_SIZE:
        return None
    deflater = zlib.compressobj(LEVEL, wbits=-zlib.MAX_WBITS)
    found = b"".join(
        (_HEADER.pack(LAYOUT, zlib.crc32(stream), len(stream)), deflater.compress(stream), deflater.flush())
    )
    return found if len(found) < len(stream) else None


def expand_stream(compact: bytes) -> bytes:
    """Return the stream of a compact form, or raise Incomplete. Never takes more memory than the stated length."""
    if len(compact) < _HEADER.size:
        raise Incomplete("a stored stream is damaged")
    layout, check, size = _HEADER.unpack_from(compact)
    if layout != LAYOUT:
        raise Incomplete(f"a stored stream has layout {layout}; this version reads layout {LAYOUT}")
    if size > MAX_SIZE:
        raise Incomplete(f"a stored stream has {size} bytes, more than {MAX_SIZE}")
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        stream = inflater.decompress(compact[_HEADER.size :], size + 1)
    except zlib.error as error:
        raise Incomplete(f"a stored stream is damaged: {error}") from None
    if len(stream) != size or not inflater.eof or inflater.unused_data or zlib.crc32(stream) != check:
        raise Incomplete("a stored stream is damaged")
    return stream


def expanded_size(compact: bytes) -> int:
    """Return the length that a compact form states for its stream."""
    return int(_HEADER.unpack_from(compact)[2]) if len(compact) >= _HEADER.size else len(compact)
