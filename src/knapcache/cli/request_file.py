"""The body of a request in a file, for commands that say something about it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from knapcache.errors import InvalidInput, reason_text

ENDPOINTS = {
    "messages": ("chat/completions", "messages"),
    "input": ("responses", "embeddings"),
    "prompt": ("completions",),
}
"""Endpoints that a request may be for, by a field that it has."""


def read_body(source: str) -> dict[str, Any]:
    """Return the body of a request: a JSON object, or the `body` of a line of a batch file."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read the request from {source}: {reason_text(error)}") from None
    body = found.get("body", found) if isinstance(found, dict) else found
    if not isinstance(body, dict):
        raise InvalidInput(f'a request must be a JSON object, such as {{"model": …}}; {source} has none')
    return body
