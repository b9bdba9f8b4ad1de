"""Routes: which rules of the settings apply to a request, and why.

A request meets a condition if one of its alternatives holds, and a route if it meets all of its conditions. The first
route in the order of the settings applies. A request that meets none is served by the proxy's own settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import orjson

from knapcache.proxy.settings.routes import RouteSettings
from knapcache.wire.cache_control import CacheControl

MISSING = object()
BLANKS = " \t"
"""Characters around the value of a header that are not part of it."""
MAX_MATCHED = 1024
"""Characters of a text that a pattern with `?` or `[abc]` can match."""
MAX_SHOWN = 80
"""Characters of a value in an explanation."""


class RoutedRequest(NamedTuple):
    """The parts of a request that conditions can name."""

    endpoint: str
    tenant: str
    model: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: Mapping[str, Any] | None
    """None: the body is not parsed, and meets no condition on its fields."""


class Condition(NamedTuple):
    """One condition of a route, applied to a request."""

    text: str
    """The condition, as people write it."""
    found: str
    """What the request has there."""
    holds: bool


class RouteCheck(NamedTuple):
    """A route, applied to a request."""

    route: RouteSettings
    conditions: tuple[Condition, ...]

    @property
    def applies(self) -> bool:
        """Whether all conditions hold. A route without conditions always applies."""
        return all(condition.holds for condition in self.conditions)


class Router:
    """The routes of the settings, in their order."""

    def __init__(self, routes: Sequence[RouteSettings]) -> None:
        self.routes = tuple(routes)
        self.headers = frozenset(name for route in routes for name in route.header)
        """Names of the headers in conditions."""
        self.by_tenant = any(route.tenant for route in routes)
        """Whether a condition names tenants."""

    def find(self, request: RoutedRequest) -> RouteSettings | None:
        """Return the route that applies; None: none does."""
        for route in self.routes:
            if applies(route, request):
                return route
        return None

    def explain(self, request: RoutedRequest) -> list[RouteCheck]:
        """Return every route with its conditions, up to the one that applies."""
        found = []
        for route in self.routes:
            found.append(RouteCheck(route, tuple(conditions(route, request))))
            if found[-1].applies:
                break
        return found


NO_ROUTES = Router(())


def checks(route: RouteSettings, request: RoutedRequest) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield for each condition of a route what it is about, what it wants, what the request has, and if it holds."""
    if route.endpoint:
        yield "endpoint", route.endpoint, request.endpoint, request.endpoint in route.endpoint
    if route.tenant:
        yield "tenant", route.tenant, request.tenant, matches(route.tenant, request.tenant)
    if route.model:
        yield "model", route.model, request.model, matches(route.model, request.model)
    for name, pattern in route.header.items():
        value: Any = request.headers.get(name, MISSING)
        yield f"header {name}", pattern, value, value is not MISSING and glob_match(value.strip(BLANKS), pattern)
    for path, wanted in route.field.items():
        given = field_at(request.body, path)
        yield f"field {path}", wanted, given, meets(given, wanted)


def applies(route: RouteSettings, request: RoutedRequest) -> bool:
    """Return whether a request meets all conditions of a route. Makes no texts of long values, as `conditions` does."""
    return all(holds for _, _, _, holds in checks(route, request))


def conditions(route: RouteSettings, request: RoutedRequest) -> Iterator[Condition]:
    """Yield the conditions of a route, applied to a request."""
    for what, wanted, given, holds in checks(route, request):
        text = " or ".join(wanted) if isinstance(wanted, tuple) else shown(wanted)
        missing = "not sent" if what.startswith("header ") else "not there"
        yield Condition(f"{what} {text}", missing if given is MISSING else shown(given), holds)


def matches(patterns: Sequence[str], value: str) -> bool:
    return any(glob_match(value, pattern) for pattern in patterns)


def glob_match(value: str, pattern: str) -> bool:
    """Return whether a text matches a pattern with `*`, `?` and `[abc]`.

    A text of more than MAX_MATCHED characters meets no pattern with `?` or `[`: a regular expression takes 50 ns for
    each of its characters, and blocks all threads meanwhile. Patterns with `*` only are looked for piece by piece.
    """
    if pattern == "*":
        return True
    if len(value) <= MAX_MATCHED:
        return fnmatchcase(value, pattern)
    first, *pieces = pattern.split("*")
    if not pieces:
        return value == pattern
    if "?" in pattern or "[" in pattern or not value.startswith(first):
        return False
    last, at = pieces.pop(), len(first)
    end = len(value) - len(last)
    if end < at or not value.endswith(last):
        return False
    for piece in pieces:
        at = value.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def field_at(body: Mapping[str, Any] | None, path: str) -> Any:
    """Return the JSON value at a path of names and indexes, separated by dots; MISSING if there is none."""
    value: Any = MISSING if body is None else body
    for step in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return MISSING
    return value


def meets(given: Any, wanted: Any) -> bool:
    """Return whether a JSON value is the wanted one. A wanted text may be a pattern, and * means any value."""
    if given is MISSING:
        return False
    if isinstance(wanted, str):
        return wanted == "*" or (isinstance(given, str) and glob_match(given, wanted))
    if isinstance(wanted, bool) or isinstance(given, bool):
        return given is wanted
    number = number_of(given)
    return number is not None and number == wanted


def number_of(value: Any) -> float | None:
    """Return a number of a parsed body as providers read it, which is as a double; None for another value."""
    if isinstance(value, orjson.Fragment):  # more digits than a double has, or a large power (`keys/numbers.py`)
        return float(orjson.dumps(value))
    return value if isinstance(value, (int, float)) else None


def shown(value: Any) -> str:
    """Return a value for people, cut off if it is long."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def bypass_reason(route: RouteSettings, body: Mapping[str, Any]) -> str:
    """Return why a route sends a request without the cache; empty: it does not."""
    if route.cache == "off":
        return f"the route {route.name} has cache = off"
    temperature = number_of(body.get("temperature"))
    limit = route.max_temperature
    if limit is not None and temperature is not None and temperature > limit:
        return f"the route {route.name} has max_temperature = {limit:g}"
    return ""


def routed_control(route: RouteSettings, control: CacheControl) -> CacheControl:
    """Return a caller's directives with those of a route. The shorter time to live counts, and tags are added."""
    ttls = [ttl for ttl in (route.ttl, control.ttl) if ttl is not None]
    return replace(
        control,
        store=control.store and route.cache != "read-only",
        refresh=control.refresh or route.cache == "refresh",
        ttl=min(ttls, default=None),
        tags=tuple(sorted({*control.tags, *route.tags})),
    )
