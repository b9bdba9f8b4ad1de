"""The fake admin API sends what the real one sends, by its response models."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from pydantic import create_model

from knapcache.features.limits.feature import LimitPage
from knapcache.features.prefix.feature import PrefixSummary
from knapcache.features.semantic.admin import SemanticStatus
from knapcache.features.swap.admin import SwapReport
from knapcache.features.webhooks.feature import WebhookStatus
from knapcache.proxy.admin import admin_request, models, pages, summary_models
from knapcache.proxy.admin_routes import SummaryField
from tests.support.fake_admin import TOKEN, FakeAdmin
from tests.support.semantic_control import LearnerControl

PATHS: dict[str, type[models.ResponseModel]] = {
    "/summary": summary_models.summary_with(
        [
            SummaryField("prefix", PrefixSummary, "", dict),
            SummaryField("semantic", bool, "", bool),
            SummaryField("content_log", bool, "", bool),
            SummaryField("webhooks", list[WebhookStatus], "", list, of_health=True),
        ]
    ),
    "/history?span=hour": summary_models.UsageHistory,
    "/entries": models.EntryPage,
    "/requests?after=0&limit=10": models.RequestPage,
    "/requests/1": create_model("RequestDetail", __base__=models.RequestDetail, semantic=(str, ...)),
    "/plan": summary_models.PlanStatus,
    "/session": admin_request.SessionInfo,
    "/audit?limit=10": admin_request.AuditPage,
    "/panels": pages.PanelPage,
    "/tokens": admin_request.TokenPage,
    "/proxies": summary_models.ProxyPage,
    "/limits": LimitPage,
    "/semantic": SemanticStatus,
    "/swap": SwapReport,
}


@pytest.fixture
def client(server: FakeAdmin) -> Iterator[httpx.Client]:
    server.reset()
    server.tier = LearnerControl()
    server.fill(5, days=0.01)
    for outcome in ("hit", "miss", "passthrough", "failed"):
        server.traffic(outcome)
    with httpx.Client(base_url=f"{server.url}/admin/v1") as client:
        client.headers["x-csrf-token"] = client.post("/login", json={"token": TOKEN}).json()["csrf"]
        yield client


def test_responses_fit_the_models_of_the_real_api(server: FakeAdmin, client: httpx.Client) -> None:
    for path, model in PATHS.items():
        model.model_validate(client.get(path).json())
    models.EntryWithContent.model_validate(client.get(f"/entries/{server.entries[0]['key']}").json())
    assert models.Purged.model_validate(client.post("/purge", json={"all": True}).json()).purged == 5
