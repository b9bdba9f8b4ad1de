"""The fake admin API sends what the real one sends, by its response models."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import create_model

from knapcache.features.limits.feature import LimitPage
from knapcache.features.prefix.feature import PrefixSummary
from knapcache.features.semantic.admin import SemanticStatus
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
}


@pytest.mark.parametrize("path", PATHS)
def test_responses_fit_the_models_of_the_real_api(path: str) -> None:
    with FakeAdmin() as admin, httpx.Client(base_url=f"{admin.url}/admin/v1") as client:
        admin.tier = LearnerControl()
        admin.fill(5, days=0.01)
        for outcome in ("hit", "miss", "passthrough", "failed"):
            admin.traffic(outcome)
        client.headers["x-csrf-token"] = client.post("/login", json={"token": TOKEN}).json()["csrf"]
        body: dict[str, Any] = client.get(path).json()
    PATHS[path].model_validate(body)


def test_an_entry_fits_the_model_of_the_real_api() -> None:
    with FakeAdmin() as admin, httpx.Client(base_url=f"{admin.url}/admin/v1") as client:
        admin.fill(1, days=0.01)
        client.headers["x-csrf-token"] = client.post("/login", json={"token": TOKEN}).json()["csrf"]
        body = client.get(f"/entries/{admin.entries[0]['key']}").json()
        purged = client.post("/purge", json={"all": True}, headers={"x-csrf-token": admin.csrf}).json()
    models.EntryWithContent.model_validate(body)
    assert models.Purged.model_validate(purged).purged == 1
