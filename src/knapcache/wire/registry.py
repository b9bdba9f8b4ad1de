"""The formats, and the paths at which they are served."""

from __future__ import annotations

from knapcache.model import Endpoint
from knapcache.wire import chat, completions, embeddings, messages, responses
from knapcache.wire.base import Format

FORMATS: dict[Endpoint, Format] = {
    each.endpoint: each
    for each in (
        chat.FORMAT,
        completions.FORMAT,
        responses.FORMAT,
        messages.FORMAT,
        embeddings.FORMAT,
    )
}
SUFFIXES: dict[str, Endpoint | None] = {
    **{suffix: each.endpoint for each in FORMATS.values() for suffix in each.suffixes},
    **{suffix: None for each in FORMATS.values() for suffix in each.other_suffixes},
}
PROXY_PATHS: dict[str, Endpoint] = {f"{root}/{at.value}": at for root in ("/v1", "") for at in FORMATS}
"""The proxy's own paths. With and without the version: clients differ in what they take as base URL."""


def endpoint_of(path: str) -> Endpoint | None:
    """Return the endpoint that a provider serves at a path; None if its answers are not cached.

    Only the end of a path counts: Azure and gateways have segments of their own before it.
    """
    segments = path.rstrip("/").split("/")
    two = "/".join(segments[-2:])
    return SUFFIXES[two] if two in SUFFIXES else SUFFIXES.get(segments[-1])
