"""Groups of upstreams: who gets a request, who is next, and which upstreams fit together."""

from __future__ import annotations

import asyncio
import re
import time
import tomllib
from collections import Counter
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.model import Endpoint
from knapcache.proxy.settings import Settings, UpstreamSettings
from knapcache.proxy.settings.routes import RouteUpstreamSettings
from knapcache.proxy.upstream.upstream import MAX_FAILURES, Upstream
from knapcache.proxy.upstream.upstreams import Balance, GroupMember, UpstreamGroup, Upstreams, route_groups
from tests.support import ROOT


def upstream(name: str, **fields: Any) -> Upstream:
    headers = {"authorization": f"Bearer key-of-{name}"}
    given = {"name": name, "url": f"https://{name}.test/v1", "headers": headers, "proxy": "", **fields}
    return Upstream(UpstreamSettings.model_validate(given))


def group_of(balance: Balance, **weights: float) -> UpstreamGroup:
    return UpstreamGroup([GroupMember(upstream(name), weight) for name, weight in weights.items()], balance)


def open_for(member: GroupMember, seconds: float = 100.0) -> None:
    now = time.monotonic()
    member.upstream.health.fail(member.upstream.health.begin(now), now, seconds)


def chosen(group: UpstreamGroup, count: int) -> str:
    names = []
    for _ in range(count):
        member = group.choose()
        assert member is not None
        names.append(member.upstream.name)
    return "".join(names)


def test_order_takes_the_first_available_member() -> None:
    group = group_of("order", a=1, b=1, c=1)
    assert chosen(group, 5) == "aaaaa"
    open_for(group.members[0])
    assert chosen(group, 5) == "bbbbb"


def test_weights_are_exact_and_spread() -> None:
    group = group_of("weights", a=5, b=1, c=1)
    assert chosen(group, 14) == "aabacaa" * 2, "as nginx does it"
    assert Counter(chosen(group, 700)) == {"a": 500, "b": 100, "c": 100}


def test_weights_of_available_members_only() -> None:
    group = group_of("weights", a=2, b=1, c=1)
    open_for(group.members[0])
    assert Counter(chosen(group, 100)) == {"b": 50, "c": 50}


def test_the_least_busy_member_by_weight() -> None:
    group = group_of("least-busy", a=2, b=1)
    a, b = (member.upstream.client for member in group.members)
    for in_flight, expected in (((3, 1), "b"), ((1, 1), "a"), ((4, 3), "a"), ((5, 2), "b")):
        a.in_flight, b.in_flight = in_flight
        assert chosen(group, 3) == expected * 3, in_flight
    a.in_flight = b.in_flight = 0
    assert Counter(chosen(group, 30)) == {"a": 20, "b": 10}, "idle members share by weight"


@pytest.mark.parametrize("balance", ["order", "weights", "least-busy"])
def test_each_member_is_chosen_once_and_open_ones_last(balance: Balance) -> None:
    group = group_of(balance, a=1, b=1, c=1)
    a, b, c = group.members
    open_for(b)
    open_for(a)
    tried: list[GroupMember] = []
    while (member := group.choose(tried)) is not None:
        tried.append(member)
    assert tried == [c, b, a], "the least recently failed one first"
    assert group.has_available([])
    assert not group.has_available([c])


def test_a_half_open_member_gets_one_probe() -> None:
    group = group_of("order", a=1, b=1)
    first = group.members[0]
    health = first.upstream.health
    for _ in range(MAX_FAILURES):
        health.fail(health.begin(0.0), time.monotonic() - 1000.0)
    assert group.choose() is first
    probe = health.begin(time.monotonic())
    assert chosen(group, 3) == "bbb"
    health.succeed(probe)
    assert chosen(group, 3) == "aaa"


def test_a_group_of_one_is_tried_also_if_it_is_open() -> None:
    group = group_of("order", a=1)
    open_for(group.members[0])
    assert group.choose() is group.members[0]
    assert group.choose([group.members[0]]) is None


def test_the_model_of_a_fallback_and_the_part_of_the_key() -> None:
    members = [GroupMember(upstream("a")), GroupMember(upstream("b"), model="small"), GroupMember(upstream("c"))]
    group = UpstreamGroup(members)
    assert [group.replaced_model(member, "large") for member in members] == ["", "small", ""]
    assert group.replaced_model(members[1], "small") == ""
    assert group.context == {"upstream": "https://a.test/v1"}
    fixed = UpstreamGroup([GroupMember(upstream("a"), model="large-2"), GroupMember(upstream("b"), model="large-2")])
    assert fixed.replaced_model(fixed.members[1], "large") == ""
    assert fixed.context == {"upstream": "https://a.test/v1", "model": "large-2"}


def named(name: str, weight: float = 1.0, model: str | None = None) -> RouteUpstreamSettings:
    return RouteUpstreamSettings(name=name, weight=weight, model=model)


def test_a_group_from_names() -> None:
    known = [upstream("a"), upstream("b"), upstream("c")]
    group = UpstreamGroup.from_names(known, [named("c"), named("a", 2.0, "small")], balance="weights")
    assert [(member.upstream.name, member.weight, member.model) for member in group.members] == [
        ("c", 1.0, None),
        ("a", 2.0, "small"),
    ]
    with pytest.raises(InvalidInput, match="no upstream is named 'd'; there are a, b, c"):
        UpstreamGroup.from_names(known, [named("a"), named("d")])


CALLER: dict[str, Any] = {"headers": {}}
"""An upstream that gets the caller's key."""


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "at least one upstream"),
        ([upstream("a"), upstream("a")], "named twice: a, a"),
        ([upstream("a"), upstream("b", kind="anthropic")], "one kind, but a is openai, b is anthropic"),
        ([upstream("a"), upstream("b", **CALLER)], "upstream b has no key of its own"),
        ([upstream("a", **CALLER), upstream("b")], "upstream a has no key of its own"),
        ([upstream("a", **CALLER), upstream("b", **CALLER)], "upstream a has no key of its own"),
    ],
)
def test_upstreams_that_do_not_fit_together(members: list[Upstream], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        UpstreamGroup([GroupMember(each) for each in members])


def test_upstreams_that_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEY", "sk-1")
    for members in (
        [upstream("a", **CALLER)],
        [upstream("a", **CALLER), upstream("b", **CALLER, url="https://a.test/v2")],
        [upstream("a", headers={"Api-Key": "x"}), upstream("b", headers={}, key_env="FAKE_KEY")],
        [upstream("a"), upstream("b", **CALLER, url="local")],
    ):
        UpstreamGroup([GroupMember(each) for each in members])


def test_values_that_are_not_allowed() -> None:
    with pytest.raises(InvalidInput, match="balance must be one of order, weights, least-busy, not 'random'"):
        UpstreamGroup([GroupMember(upstream("a"))], "random")  # type: ignore[arg-type]
    for weight in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidInput, match="weight of a must be greater than 0"):
            GroupMember(upstream("a"), weight)
    with pytest.raises(InvalidInput, match="model of a must have 1 to 256 printable ASCII characters"):
        GroupMember(upstream("a"), model="a\r\nb: c")
    claude = upstream("a", kind="anthropic")
    UpstreamGroup.from_names([claude], [named("a")], endpoints=[Endpoint.MESSAGES])
    with pytest.raises(InvalidInput, match="kind anthropic: it answers messages, and not chat/completions"):
        UpstreamGroup.from_names([claude], [named("a")], endpoints=[Endpoint.MESSAGES, Endpoint.CHAT])


def test_the_recipes_of_the_guide_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_API_KEY_B", "AZURE_OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-1")
    page = (ROOT / "docs" / "guides" / "upstreams.md").read_text(encoding="utf-8")
    recipes = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(recipes) >= 5
    for recipe in recipes:
        settings = Settings(**tomllib.loads(recipe))
        upstreams = Upstreams(settings)
        (group,) = route_groups(upstreams.all, settings.route).values()
        assert [member.upstream.name for member in group.members] == [each.name for each in settings.upstreams]
        asyncio.run(upstreams.close())


def test_an_invalid_route_is_named_when_settings_are_read() -> None:
    fields = [{"name": "a", "url": "https://a.test"}, {"name": "b", "url": "https://b.test"}]
    claude = {"name": "c", "url": "https://c.test", "kind": "anthropic"}
    for route, message in (
        ({"upstreams": ["a", "b"]}, "both: upstream a has no key of its own"),
        ({"upstreams": ["a", "c"]}, "both: upstreams of one route must be of one kind"),
        ({"upstreams": ["c"], "endpoint": ["embeddings"]}, "both: upstream c has kind anthropic"),
        ({"upstreams": ["a", "a"]}, "both: an upstream is named twice"),
        ({"upstreams": [{"name": "a", "model": "a b"}]}, "1 to 256 printable ASCII characters"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Settings(upstreams=[*fields, claude], route=[{"name": "both", **route}])
