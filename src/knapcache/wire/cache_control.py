"""Directives for the cache in a request, and the request for the usage of a stream.

Directives come in the standard `Cache-Control` header

    no-store           do not store the answer; a stored one may be served
    no-cache           fetch a fresh answer and store it
    only-if-cached     a stored answer, or status 504
    max-age=N          a stored answer only if it is at most N seconds old
    no-transform       not the answer to a question in another wording; also `x-knapcache-semantic: off`

in `x-knapcache-tags: a, b` (names by which the answer can be purged, `tags.py`), or in the forms of other caches:
LiteLLM's `cache` in the body, and headers of Cloudflare's gateway, Portkey and Helicone. Unknown directives are
ignored, as the standard demands. So are numbers that do not parse or are negative. Tags that are not allowed raise
InvalidInput: if they were ignored, a later purge would silently miss the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from knapcache.tags import checked_tags, parse_tags

TAGS_HEADER = "x-knapcache-tags"
CONTROL_HEADERS = frozenset(
    ("cache-control", "cf-aig-skip-cache", "cf-aig-cache-ttl", "x-portkey-cache-force-refresh",
     "helicone-cache-enabled", "x-knapcache-semantic", TAGS_HEADER)
)  # fmt: skip
"""Headers that hold directives for the cache."""


MAX_SECONDS = 100 * 365.25 * 86400.0
"""The longest `ttl` and `max-age`: a hundred years."""


@dataclass(frozen=True, slots=True)
class CacheControl:
    """A caller's directives for the cache."""

    refresh: bool = False
    """Fetch a fresh answer."""
    store: bool = True
    only_cached: bool = False
    max_age: float | None = None
    ttl: float | None = None
    """Seconds until the answer expires."""
    namespace: str | None = None
    """LiteLLM's namespace: a part of the caller's own cache. It never gives access to another caller's entries."""
    similar: bool = True
    """The answer to a question in another wording may be served."""
    tags: tuple[str, ...] = ()
    """Stored with the answer if it is fetched."""

    @property
    def serves_any_hit(self) -> bool:
        """Whether a stored answer is served as without directives. Tags concern answers that are fetched."""
        return self == NO_DIRECTIVES or replace(self, tags=()) == NO_DIRECTIVES

    @property
    def asked(self) -> str:
        """The directives that keep a stored answer from being served or a new one from being stored, in words."""
        words = [("no-cache", self.refresh), ("no-store", not self.store), ("only-if-cached", self.only_cached)]
        found = [word for word, asked in words if asked]
        return ", ".join(found if self.max_age is None else [*found, f"max-age={self.max_age:g}"])


NO_DIRECTIVES = CacheControl()
EMPTY: Mapping[str, Any] = {}


def parse_cache_control(headers: Mapping[str, str], body: Mapping[str, Any] | None = None) -> CacheControl:
    """Return the directives of a request. `headers` has lower-case names. Raises InvalidInput for bad tags."""
    litellm = (body or EMPTY).get("cache")
    control = NO_DIRECTIVES
    for directive in headers.get("cache-control", "").lower().split(","):
        name, _, value = directive.strip().partition("=")
        if name == "no-cache":
            control = replace(control, refresh=True)
        elif name == "no-store":
            control = replace(control, store=False)
        elif name == "only-if-cached":
            control = replace(control, only_cached=True)
        elif name == "no-transform":
            control = replace(control, similar=False)
        elif name == "max-age" and (seconds := parse_seconds(value.strip('"'))) is not None:
            control = replace(control, max_age=seconds)
    if headers.get("x-knapcache-semantic", "").strip().lower() == "off":
        control = replace(control, similar=False)
    if is_true(headers, "cf-aig-skip-cache") or headers.get("helicone-cache-enabled", "").strip().lower() == "false":
        control = replace(control, refresh=True, store=False)
    if is_true(headers, "x-portkey-cache-force-refresh"):
        control = replace(control, refresh=True)
    if (seconds := parse_seconds(headers.get("cf-aig-cache-ttl"))) is not None:
        control = replace(control, ttl=seconds)
    if TAGS_HEADER in headers:
        control = replace(control, tags=parse_tags(headers[TAGS_HEADER]))
    return litellm_control(control, litellm) if isinstance(litellm, Mapping) else control


def litellm_control(control: CacheControl, cache: Mapping[str, Any]) -> CacheControl:
    """Apply LiteLLM's `cache: {ttl, s-maxage, no-cache, no-store, namespace}`, and add its `tags` to the header's."""
    ttl = parse_seconds(cache.get("ttl"))
    age = parse_seconds(cache.get("s-maxage", cache.get("s-max-age")))
    namespace, tags = cache.get("namespace"), cache.get("tags")
    return replace(
        control,
        refresh=control.refresh or cache.get("no-cache") is True,
        store=control.store and cache.get("no-store") is not True,
        ttl=control.ttl if ttl is None else ttl,
        max_age=control.max_age if age is None else age,
        namespace=namespace if isinstance(namespace, str) and namespace else control.namespace,
        tags=control.tags if tags is None else checked_tags([*control.tags, *checked_tags(tags)]),
    )


def is_true(headers: Mapping[str, str], name: str) -> bool:
    """Return whether a header's value is "true"."""
    return headers.get(name, "").strip().lower() == "true"


def parse_seconds(value: Any) -> float | None:
    """Return a number of seconds from 0 to MAX_SECONDS, or None. More than MAX_SECONDS, but not infinity, is
    MAX_SECONDS.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return min(seconds, MAX_SECONDS) if 0 <= seconds < float("inf") else None


def with_usage(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with usage asked for. Without it the cost of a stream is unknown."""
    options = body.get("stream_options")
    options = dict(options) if isinstance(options, Mapping) else {}
    return {**body, "stream_options": {**options, "include_usage": True}}
