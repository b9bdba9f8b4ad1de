"""The features that are on, at the start and after settings are read again."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from knapcache.proxy import features as subject
from knapcache.proxy.features import Feature, Features, ProxyContext


class AtStart(Feature):
    name = "at_start"


class OnReload(Feature):
    name, starts_on_reload = "on_reload", True


@pytest.mark.parametrize(("on_before", "expected"), [(False, ["on_reload"]), (True, ["at_start", "on_reload"])])
def test_only_some_features_start_when_settings_are_read_again(
    monkeypatch: pytest.MonkeyPatch, on_before: bool, expected: list[str]
) -> None:
    def spec(feature: type[Feature]) -> Any:
        return SimpleNamespace(name=feature.name, is_on=lambda settings: settings.on, load=lambda: feature)

    monkeypatch.setattr(subject, "feature_specs", lambda: [spec(AtStart), spec(OnReload)])
    features = Features()
    values: dict[str, Any] = {each.name: Mock() for each in fields(ProxyContext)}
    features.open(ProxyContext(**values | {"settings": Mock(on=on_before)}))
    features.configure(Mock(on=True))
    assert [feature.name for feature in features.active] == expected
