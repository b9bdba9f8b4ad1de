"""Settings of routes: rules for a part of the requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from knapcache.errors import InvalidInput
from knapcache.model import Endpoint
from knapcache.proxy.settings.composition import with_features
from knapcache.proxy.settings.endpoints import UpstreamSettings, has_own_credential
from knapcache.proxy.settings.tables import Table
from knapcache.proxy.settings.value_types import HEADER, Label, ModelName, NameList, PositiveSeconds, name_list
from knapcache.tags import checked_tags

ROUTED_ENDPOINTS = tuple(endpoint.value for endpoint in Endpoint)
PORTS = {"http": 80, "https": 443}
Scalar = str | int | float | bool
MAX_PATH = 200
"""Characters of the path of a JSON field."""


def endpoint_names(names: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip("/").removeprefix("v1/") for name in names)
    if not set(names) <= set(ROUTED_ENDPOINTS):
        raise InvalidInput(f"must be of {', '.join(ROUTED_ENDPOINTS)}")
    return names


def header_conditions(headers: dict[str, str]) -> dict[str, str]:
    """Check and lower-case the names of headers."""
    if not all(HEADER.fullmatch(name) for name in headers):
        raise InvalidInput("must have names of headers, and patterns of their values")
    return {name.lower(): pattern for name, pattern in headers.items()}


def field_conditions(fields: dict[str, Scalar]) -> dict[str, Scalar]:
    if not all(0 < len(path) <= MAX_PATH and all(path.split(".")) for path in fields):
        raise InvalidInput("must have paths of JSON fields such as metadata.team, and a value or a pattern for each")
    return fields


def member_tables(value: Any) -> Any:
    """Return names of upstreams as tables."""
    values = name_list(value) if isinstance(value, str) else value
    return [{"name": each} if isinstance(each, str) else each for each in values]


class RouteUpstreamSettings(Table):
    """An upstream of a route."""

    name: str = Field(description="name of the upstream")
    model: ModelName | None = Field(None, description="model to request instead of the caller's; none: the caller's")
    weight: float = Field(1.0, gt=0.0, le=1000.0, description="share of the requests, for balance")


@with_features("route_settings")
class RouteSettings(Table):
    """Rules for the requests that meet all conditions of the route. The first route that a request meets applies."""

    name: Label = Field(description="name in logs, headers and the dashboard")
    model: NameList = Field((), description="condition: one of these patterns of models, with * and ?; none: any model")
    endpoint: Annotated[NameList, AfterValidator(endpoint_names)] = Field(
        (), description="condition: one of these endpoints, such as chat/completions; none: any"
    )
    tenant: NameList = Field((), description="condition: one of these tenants, or patterns of their names; none: any")
    header: Annotated[dict[str, str], AfterValidator(header_conditions)] = Field(
        {}, description="condition: request headers and patterns of their values; * means that it is sent"
    )
    field: Annotated[dict[str, Scalar], AfterValidator(field_conditions)] = Field(
        {},
        description="condition: JSON fields of the request, such as metadata.team, and their values; texts may be "
        "patterns, and * means that it is there",
    )
    cache: Literal["on", "off", "read-only", "refresh"] = Field(
        "on",
        description="off: send requests without the cache; read-only: serve entries, store none; refresh: fetch and "
        "store new answers",
    )
    ttl: PositiveSeconds | None = Field(None, description="time to live of its entries; none: as the proxy's setting")
    max_temperature: float | None = Field(
        None,
        ge=0.0,
        le=2.0,
        description="requests that set a higher temperature are sent without the cache; none: they are cached, too",
    )
    tags: Annotated[NameList, AfterValidator(checked_tags)] = Field((), description="tags of its entries, for purges")
    namespace: Label | None = Field(
        None, description="entries of this route are separate from those of other requests; none: they are not"
    )
    upstreams: Annotated[tuple[RouteUpstreamSettings, ...], BeforeValidator(member_tables)] = Field(
        (), description="names of upstreams, or tables with name, model and weight; none: the one that serves the model"
    )
    balance: Literal["order", "weights", "least-busy"] = Field(
        "order",
        description="which of several upstreams is asked first; the others are asked if it fails",
    )
    fallback_cache: bool = Field(False, description="store answers of another model than the caller asked for")

    def shown(self) -> dict[str, Any]:
        """Return the conditions and rules that there are."""
        return self.model_dump(mode="json", exclude_defaults=True)


def check_upstreams(routes: Iterable[RouteSettings], upstreams: Iterable[UpstreamSettings]) -> None:
    """Raise InvalidInput if the upstreams of a route do not exist, or cannot stand in for one another."""
    known = {upstream.name: upstream for upstream in upstreams}
    for route in routes:
        names = [member.name for member in route.upstreams]
        if not known or not names:  # without `known`, the upstreams have a problem of their own
            continue
        try:
            if unknown := [name for name in names if name not in known]:
                raise InvalidInput(f"no upstream is named {unknown[0]!r}; there are {', '.join(sorted(known))}")
            check_members([known[name] for name in names], route.endpoint)
        except InvalidInput as error:
            raise InvalidInput(f"{route.name}: {error}") from None


def check_members(upstreams: Sequence[UpstreamSettings], endpoints: Iterable[str] = ()) -> None:
    """Raise InvalidInput if upstreams cannot stand in for one another, or do not serve one of these endpoints.

    Credentials. A caller's key must not be sent to a second provider. And the proxy's key must not pay for a caller
    whose own key was not verified, because the provider that would refuse it is down.
    """
    names = [upstream.name for upstream in upstreams]
    if len(set(names)) < len(names):
        raise InvalidInput(f"an upstream is named twice: {', '.join(names)}")
    if len({upstream.kind for upstream in upstreams}) > 1:
        kinds = ", ".join(f"{upstream.name} is {upstream.kind}" for upstream in upstreams)
        raise InvalidInput(f"upstreams of one route must be of one kind, but {kinds}")
    remote = [upstream for upstream in upstreams if not upstream.local]
    without = [upstream for upstream in remote if not has_own_credential(upstream)]
    if without and (len(without) < len(remote) or len({origin_of(upstream.url) for upstream in remote}) > 1):
        raise InvalidInput(
            f"upstream {without[0].name} has no key of its own (key_env, or a credential in headers): upstreams of one "
            "route must all have one, or all be at one address and get the callers' keys"
        )
    if upstreams[0].kind == "anthropic":
        for endpoint in endpoints:
            if endpoint != Endpoint.MESSAGES.value:
                raise InvalidInput(f"upstream {names[0]} has kind anthropic: it answers messages, and not {endpoint}")


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL that the settings have checked."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme, host if host.isascii() else host.encode("idna").decode(), parts.port or PORTS[parts.scheme]
