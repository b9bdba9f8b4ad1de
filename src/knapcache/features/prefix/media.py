"""Images, documents and sounds in request bodies: what they count, and a sample of them that is hashed quickly."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import orjson

MEDIA_SIZE = 6400
"""Bytes that an image, a document or a sound counts: about 1,600 tokens. Its base64 says nothing about its tokens."""
SAMPLE = 4096
"""Characters at the start, in the middle and at the end of encoded media that are hashed."""

MEDIA = frozenset({
    "image", "document", "image_url", "input_audio", "file", "input_image", "input_file", "computer_call_output",
})  # fmt: skip
IMAGES = frozenset({"image", "image_url", "input_image"})


def sample(value: Any) -> Hashable:
    """Return a value that is hashed quickly, and is equal for equal media.

    Of long strings three parts are taken. Two images that differ nowhere there have nearly always different lengths.
    """
    if type(value) is str:
        if len(value) <= 3 * SAMPLE:
            return value
        middle = len(value) // 2
        return len(value), value[:SAMPLE], value[middle : middle + SAMPLE], value[-SAMPLE:]
    if type(value) is dict:
        return tuple((name, sample(inner)) for name, inner in value.items())
    return tuple(map(sample, value)) if type(value) is list else orjson.dumps(value)
