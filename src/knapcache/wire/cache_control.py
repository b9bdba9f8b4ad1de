"""What is asked: which endpoint, in which form, and what the caller wants of the cache.

A caller speaks to the cache by the standard's `Cache-Control`

    no-store           the answer is not kept; one that is kept already may be given
    no-cache           a fresh answer, which is kept
    only-if-cached     a kept answer or none: 504
    max-age=N          a kept answer no older than N seconds

or by what other caches taught it: LiteLLM's `cache` in the body, and headers of Cloudflare's gateway, Portkey and
Helicone. Words that are not known are ignored, as the standard wants; a number that is none is as if it were not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from knapcache.model import Endpoint
from knapcache.wire.json_util import compact

SPEAKING = frozenset(
    ("cache-control", "cf-aig-skip-cache", "cf-aig-cache-ttl", "x-portkey-cache-force-refresh",
     "helicone-cache-enabled")
)  # fmt: skip
"""Headers that speak to the cache."""


@dataclass(frozen=True, slots=True)
class Control:
    """What a caller wants of the cache."""

    refresh: bool = False
    """A fresh answer."""
    store: bool = True
    only_cached: bool = False
    max_age: float | None = None
    ttl: float | None = None
    """Seconds that the answer may be kept."""
    namespace: str | None = None
    """LiteLLM's: a part of the caller's own cache. Never a way into another's."""


USUAL = Control()
NOTHING: Mapping[str, Any] = {}


def endpoint_of(path: str) -> Endpoint | None:
    """What is asked at a path; None where nothing is cached. Azure has words of its own before the end."""
    words = path.rstrip("/").split("/")
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "completions":
        if before == "chat":
            return Endpoint.CHAT
        return None if before == "fim" else Endpoint.COMPLETIONS  # Mistral's fill-in-the-middle answers as chat does
    if last == "messages":
        return Endpoint.MESSAGES if before == "v1" else None  # OpenAI's threads have messages as well
    return Endpoint(last) if last in ("responses", "embeddings") else None


def control_of(headers: Mapping[str, str], body: Mapping[str, Any] | None = None) -> Control:
    """What the caller wants. `headers` by lower-case names."""
    if not isinstance((body or NOTHING).get("cache"), Mapping) and SPEAKING.isdisjoint(headers):
        return USUAL
    found = USUAL
    for word in headers.get("cache-control", "").lower().split(","):
        name, _, value = word.strip().partition("=")
        if name == "no-cache":
            found = replace(found, refresh=True)
        elif name == "no-store":
            found = replace(found, store=False)
        elif name == "only-if-cached":
            found = replace(found, only_cached=True)
        elif name == "max-age" and (seconds := number(value.strip('"'))) is not None:
            found = replace(found, max_age=seconds)
    if yes(headers, "cf-aig-skip-cache") or headers.get("helicone-cache-enabled", "").strip().lower() == "false":
        found = replace(found, refresh=True, store=False)
    if yes(headers, "x-portkey-cache-force-refresh"):
        found = replace(found, refresh=True)
    if (seconds := number(headers.get("cf-aig-cache-ttl"))) is not None:
        found = replace(found, ttl=seconds)
    asked = (body or NOTHING).get("cache")
    return found if not isinstance(asked, Mapping) else litellm_control(found, asked)


def litellm_control(found: Control, asked: Mapping[str, Any]) -> Control:
    """LiteLLM's `cache: {ttl, s-maxage, no-cache, no-store, namespace}`."""
    ttl, age, namespace = asked.get("ttl"), asked.get("s-maxage", asked.get("s-max-age")), asked.get("namespace")
    return replace(
        found,
        refresh=found.refresh or asked.get("no-cache") is True,
        store=found.store and asked.get("no-store") is not True,
        ttl=found.ttl if number(ttl) is None else number(ttl),
        max_age=found.max_age if number(age) is None else number(age),
        namespace=namespace if isinstance(namespace, str) and namespace else found.namespace,
    )


def yes(headers: Mapping[str, str], name: str) -> bool:
    """Whether a header says true."""
    return headers.get(name, "").strip().lower() == "true"


def number(given: Any) -> float | None:
    """Seconds, or None."""
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        return None
    try:
        found = float(given)
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < float("inf") else None


def wants_stream(body: Mapping[str, Any]) -> bool:
    """Whether the answer is to come as a stream."""
    return body.get("stream") is True


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream of chat or completions is to end with its usage."""
    options = body.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def with_usage(body: Mapping[str, Any]) -> bytes:
    """The request, with usage asked for: what a stream cost is not known otherwise."""
    options = body.get("stream_options")
    options = dict(options) if isinstance(options, Mapping) else {}
    return compact({**body, "stream_options": {**options, "include_usage": True}})
