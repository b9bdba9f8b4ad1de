"""Which route applies to a request, and why. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.proxy import routing
from knapcache.proxy.routing import RoutedRequest, Router, bypass_reason, routed_control
from knapcache.proxy.settings import RouteSettings, Settings
from knapcache.wire.cache_control import CacheControl

REQUEST = RoutedRequest(
    "chat/completions",
    "team-a",
    "gpt-4o-mini",
    {"x-feature": "search-box"},
    {
        "model": "gpt-4o-mini",
        "temperature": 0.5,
        "stream": False,
        "n": 1.0,
        "metadata": {"team": "web"},
        "messages": [{"role": "user"}],
    },
)


def route(**settings: Any) -> RouteSettings:
    return RouteSettings(**{"name": "r", **settings})


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({}, True),
        ({"model": "gpt-4o*"}, True),
        ({"model": ["claude-*", "gpt-4o-mini"]}, True),
        ({"model": "gpt-4"}, False),
        ({"model": "GPT-4o*"}, False),
        ({"endpoint": "chat/completions"}, True),
        ({"endpoint": "/v1/chat/completions"}, True),
        ({"endpoint": ["embeddings", "messages"]}, False),
        ({"tenant": "team-*"}, True),
        ({"tenant": "team-b"}, False),
        ({"header": {"X-Feature": "search*"}}, True),
        ({"header": {"x-feature": "*"}}, True),
        ({"header": {"x-feature": "chat"}}, False),
        ({"header": {"x-other": "*"}}, False),
        ({"field": {"metadata.team": "web"}}, True),
        ({"field": {"metadata.team": "w*"}}, True),
        ({"field": {"metadata.team": "*", "temperature": 0.5}}, True),
        ({"field": {"metadata.team": "*", "temperature": 0.7}}, False),
        ({"field": {"stream": False}}, True),
        ({"field": {"stream": 0}}, False),
        ({"field": {"n": 1}}, True),
        ({"field": {"n": True}}, False),
        ({"field": {"messages.0.role": "user"}}, True),
        ({"field": {"messages.1.role": "user"}}, False),
        ({"field": {"messages.x": "*"}}, False),
        ({"field": {"metadata.team.x": "*"}}, False),
        ({"model": "gpt-4o*", "tenant": "team-a", "header": {"x-feature": "*"}, "field": {"metadata": "*"}}, True),
        ({"model": "gpt-4o*", "tenant": "team-b"}, False),
    ],
)
def test_a_route_applies_if_all_its_conditions_hold(conditions: dict[str, Any], holds: bool) -> None:
    found = route(**conditions)
    assert Router([found]).find(REQUEST) == (found if holds else None)
    (check,) = Router([found]).explain(REQUEST)
    assert check.applies is holds


def test_the_first_route_that_applies_counts() -> None:
    router = Router([route(name="a", model="claude-*"), route(name="b", tenant="team-a"), route(name="c")])
    found = router.find(REQUEST)
    assert found is not None
    assert found.name == "b"
    checks = router.explain(REQUEST)
    assert [(check.route.name, check.applies) for check in checks] == [("a", False), ("b", True)]
    assert checks[0].conditions[0] == ("model claude-*", "gpt-4o-mini", False)


def test_a_body_that_is_not_parsed_meets_no_condition_on_its_fields() -> None:
    router = Router([route(field={"model": "*"}), route(name="rest")])
    found = router.find(REQUEST._replace(body=None))
    assert found is not None
    assert found.name == "rest"


def test_a_router_knows_which_headers_and_tenants_matter() -> None:
    assert Router([route(header={"X-A": "*"}), route(header={"x-b": "1"})]).headers == {"x-a", "x-b"}
    assert Router([route(tenant="a")]).by_tenant
    assert not Router([route()]).by_tenant


@pytest.mark.parametrize(
    ("settings", "body", "reason"),
    [
        ({"cache": "off"}, {}, "the route r has cache = off"),
        ({"max_temperature": 0.3}, {"temperature": 0.5}, "the route r has max_temperature = 0.3"),
        ({"max_temperature": 0.5}, {"temperature": 0.5}, ""),
        ({"max_temperature": 0.5}, {}, ""),
        ({"max_temperature": 0.5}, {"temperature": "hot"}, ""),
        ({}, {"temperature": 2}, ""),
    ],
)
def test_a_route_can_send_requests_without_the_cache(settings: dict[str, Any], body: Any, reason: str) -> None:
    assert bypass_reason(route(**settings), body) == reason


def test_a_route_changes_directives_and_the_shorter_time_counts() -> None:
    asked = CacheControl(ttl=60.0, max_age=5.0)
    assert routed_control(route(ttl="1h"), asked) == asked
    assert routed_control(route(ttl=10), asked).ttl == 10.0
    assert not routed_control(route(cache="read-only"), CacheControl()).store
    assert routed_control(route(cache="refresh"), CacheControl()).refresh
    assert routed_control(route(), asked) == asked


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"endpoint": "chat"}, "must be of chat/completions"),
        ({"header": {"bad name": "*"}}, "names of headers"),
        ({"field": {"a..b": 1}}, "paths of JSON fields"),
        ({"cache": "maybe"}, "cache"),
        ({"upstreams": ["nowhere"]}, "no upstream is named 'nowhere'; there are one"),
        ({"upstreams": ["one", "one"]}, "an upstream is named twice"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_routes_are_refused_with_the_reason(settings: dict[str, Any], problem: str) -> None:
    upstreams = [{"name": "one", "url": "http://127.0.0.1:9/v1"}]
    with pytest.raises(InvalidInput, match=problem):
        Settings(upstreams=upstreams, route=[{"name": "r", **settings}])


def test_names_of_routes_are_unique() -> None:
    with pytest.raises(InvalidInput, match="'r' occurs more than once"):
        Settings(route=[{"name": "r"}, {"name": "r"}])


@given(
    value=st.text("ab", max_size=12),
    pattern=st.text("ab*", max_size=8),
)
def test_long_texts_are_matched_as_short_ones(value: str, pattern: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "MAX_MATCHED", -1)
        assert routing.glob_match(value, pattern) is fnmatchcase(value, pattern)
        assert not routing.glob_match(value, f"?{pattern}")


def test_a_search_makes_no_text_of_a_value() -> None:
    class Untold(list[Any]):
        def __str__(self) -> str:
            raise AssertionError("a long value was written out")

    rule = route(field={"messages": "*", "user": "x"})
    request = RoutedRequest("chat/completions", "t", "m", {}, {"messages": Untold([1])})
    assert Router([rule]).find(request) is None
