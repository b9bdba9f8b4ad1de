"""The features that are on, at the start and after settings are read again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from knapcache.errors import InvalidInput
from knapcache.model import Endpoint
from knapcache.price.meter import Bill
from knapcache.proxy import feature_list
from knapcache.proxy import features as subject
from knapcache.proxy.features import Feature, Features, ProxyContext
from knapcache.proxy.hooks import CallHooks


class AtStart(Feature):
    name = "at_start"


class OnReload(Feature):
    name, starts_on_reload = "on_reload", True


def spec(feature: type[Feature]) -> Any:
    return SimpleNamespace(name=feature.name, is_on=lambda settings: settings.on, load=lambda: feature)


def opened(monkeypatch: pytest.MonkeyPatch, *kinds: type[Feature], on: bool = True) -> Features:
    monkeypatch.setattr(subject, "feature_specs", lambda: [spec(kind) for kind in kinds])
    features = Features()
    values: dict[str, Any] = {each.name: Mock() for each in fields(ProxyContext)}
    features.open(ProxyContext(**values | {"settings": Mock(on=on), "features": features}))
    return features


@pytest.mark.parametrize(("on_before", "expected"), [(False, ["on_reload"]), (True, ["at_start", "on_reload"])])
def test_only_some_features_start_when_settings_are_read_again(
    monkeypatch: pytest.MonkeyPatch, on_before: bool, expected: list[str]
) -> None:
    features = opened(monkeypatch, AtStart, OnReload, on=on_before)
    features.configure(Mock(on=True))
    assert [feature.name for feature in features.active] == expected


class Busy(Feature):
    """Takes part in all that a feature can."""

    name, sees_hits, needs_model = "busy", True, True
    part: Any = dict
    ended = False
    owned: object = None
    payments = 0

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        self.events: list[str] = []

    def become_owner(self, pipeline: Any) -> None:
        self.owned = pipeline

    def begin(self, call: Any) -> CallHooks | None:
        return CallHooks() if call else None

    def span_attributes(self, part: Any) -> dict[str, Any]:
        return {"busy": part}

    def not_ready(self) -> str:
        return "busy"

    def notice(self, event: str, fields: dict[str, Any]) -> None:
        self.events.append(f"{event} {fields}")

    def start(self) -> None:
        self.events.append("start")

    async def before_metrics(self) -> None:
        self.events.append("before metrics")

    def metrics(self) -> list[Any]:
        return [self.name]

    async def after_purge(self) -> None:
        self.events.append("after purge")

    def configure(self, settings: Any) -> None:
        assert self.context.settings is settings
        self.events.append("configure")

    async def close(self) -> None:
        assert self.ended, "its tasks end first"
        self.events.append("close")

    def paid(self, tenant: str, bill: Any) -> None:  # noqa: ARG002
        self.payments += 1

    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


async def test_a_feature_that_starts_later_becomes_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(Busy):
        starts_on_reload = True

    features, pipeline = opened(monkeypatch, Later, on=False), Mock()
    features.become_owner(pipeline)
    assert features.get("busy") is None
    features.configure(Mock(on=True))
    assert features.get("busy").owned is pipeline
    features.configure(Mock(on=True))
    assert len(features.active) == 1


async def test_all_features_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    features = opened(monkeypatch, AtStart, Busy)
    assert features.of_requests == (features.get("busy"),)
    assert len(features.begin(Mock())) == 1
    assert features.begin(None) == ()  # type: ignore[arg-type]
    assert features.classes("part") == {"busy": dict}
    assert features.span_attributes({"busy": 1, "at_start": 2, "off": 3}) == {"busy": 1}
    assert (features.not_ready(), features.sees_hits, features.needs_model) == ("busy", True, True)
    features.context.notify("down", upstream="a")
    features.start()
    features.configure(Mock())
    await features.before_metrics()
    await features.after_purge()
    assert list(features.metrics()) == ["busy"]
    features.context.count_payment(Endpoint.CHAT, "m", "team", Bill(1.0, 2.0, 3.0, "prices", 4))
    assert features.get("busy").payments == 1
    features.get("busy").run(features.get("busy").wait())
    await asyncio.sleep(0)
    await features.close()
    told = ["down {'upstream': 'a'}", "start", "configure", "before metrics", "after purge", "close"]
    assert features.get("busy").events == told


def test_without_features_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    features = opened(monkeypatch, AtStart)
    assert (features.of_requests, features.begin(Mock())) == ((), ())
    assert (features.not_ready(), features.sees_hits, features.needs_model) == ("", False, False)
    assert features.span_attributes({"at_start": 1}) == {}


def test_features_of_other_packages_come_last_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*points: tuple[str, Callable[[], Any]]) -> list[str]:
        made = [SimpleNamespace(name=name, value="package:SPEC", load=load) for name, load in points]
        monkeypatch.setattr(feature_list, "entry_points", lambda group: made)  # noqa: ARG005
        return [each.name for each in feature_list.feature_specs.__wrapped__()]

    own = found()
    a, b = (SimpleNamespace(name=name) for name in "ab")
    assert found(("b", lambda: b), ("a", lambda: a)) == [*own, "a", "b"]
    with pytest.raises(InvalidInput, match="two features are named a: uninstall"):
        found(("a", lambda: a), ("b", lambda: a))
    with pytest.raises(InvalidInput, match="feature a of package:SPEC cannot be imported: integer division"):
        found(("a", lambda: 1 // 0))
