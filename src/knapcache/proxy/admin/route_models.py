"""The routes of the settings, for the admin API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from knapcache.proxy.admin.models import Count, ResponseModel
from knapcache.proxy.events.events import Event
from knapcache.proxy.routing import RoutedRequest, conditions
from knapcache.proxy.settings.routes import RouteSettings

CONDITIONS = frozenset(("name", "model", "endpoint", "tenant", "header", "field"))
NO_REQUEST = RoutedRequest("", "", "", {}, None)


class RouteStatus(ResponseModel):
    """A route, in the order of the settings."""

    name: str
    conditions: Annotated[list[str], Field(description="All of them must hold; none: every request meets it.")]
    rules: Annotated[dict[str, Any], Field(description="Its settings that are not the default.")]
    recent: Annotated[dict[str, Count], Field(description="Of the recent requests, how many had which outcome.")]


def route_statuses(routes: Iterable[RouteSettings], recent: Iterable[Event]) -> list[RouteStatus]:
    """Return the routes with the outcomes of recent requests."""
    outcomes: dict[str, Counter[str]] = {}
    for event in recent:
        if event.route:
            outcomes.setdefault(event.route, Counter())[event.outcome] += 1
    return [
        RouteStatus(
            name=route.name,
            conditions=[condition.text for condition in conditions(route, NO_REQUEST)],
            rules={
                name: value
                for name, value in route.model_dump(mode="json", exclude_defaults=True).items()
                if name not in CONDITIONS
            },
            recent=dict(outcomes.get(route.name, {})),
        )
        for route in routes
    ]
