"""Metrics of limits: requests that they refused, and their use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from knapcache.features.limits import feature as subject
from knapcache.features.limits.core import LimitValues, Refusal, ScopeUsage
from knapcache.features.limits.feature import LimitsFeature
from knapcache.features.limits.limits import LimitUse
from knapcache.features.limits.refusal import LimitReached
from knapcache.proxy.events.labels import MAX_LABELS
from tests.support.events import event
from tests.support.metric_docs import documented, labels_of

USE = LimitUse(
    scope="tenant", name="team", limit="usd_per_day", allowed=5.0, used=1.0, reserved=0.0, ratio=0.2, resets_at=None
)


async def test_refused_requests_and_use(monkeypatch: pytest.MonkeyPatch) -> None:
    async def report() -> list[LimitUse]:
        return [USE]

    limits = SimpleNamespace(report=report, on_warning=lambda _: None)
    monkeypatch.setattr(subject, "open_limits", lambda *_, **__: limits)
    nothing = SimpleNamespace(settings=None, meter=None, folder=None, secret=b"", shared_store=None)
    context: Any = nothing
    feature = LimitsFeature(context)
    refused = LimitReached(Refusal("team", "usd_per_day", ScopeUsage()), LimitValues(usd_per_day=5.0), 0.0)
    limited = event("rejected", reason=refused.event_reason)
    feature.consume([limited, limited, event("rejected", reason="no key"), event("hit")])
    await feature.before_metrics()
    families = list(feature.metrics())
    assert labels_of(families) == documented("knapcache_limit")
    assert [(sample.labels, sample.value) for family in families for sample in family.samples] == [
        ({"tenant": "team", "limit": "usd_per_day"}, 2),
        ({"tenant": "team", "limit": "usd_per_day"}, 0.2),
    ]


def test_limits_beyond_a_bound_have_no_metric() -> None:
    _, used = subject.collect_limits({}, [USE] * (5 * MAX_LABELS + 1))
    assert len(used.samples) == 5 * MAX_LABELS, "the five limits of as many tenants as have labels elsewhere"
