"""The OpenAPI document matches the routes, and no request that it describes makes the API fail."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from knapcache.model import Endpoint
from knapcache.proxy.admin import models, summary_models
from knapcache.proxy.admin.admin_request import AdminRequest
from knapcache.proxy.admin.app import admin_app
from knapcache.proxy.admin.openapi import ROOT, document, schemas
from knapcache.proxy.admin_routes import AdminServices, Route, SummaryField
from knapcache.proxy.events.history_reader import SPANS
from knapcache.proxy.feature_list import feature_specs
from knapcache.proxy.features import Feature
from tests import support
from tests.support.admin_context import ALL_FEATURES, BASE, BEARER, AdminHarness
from tests.support.examples import examples

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    allow_header_conformance,
]


def all_routes() -> tuple[Route, ...]:
    with tempfile.TemporaryDirectory() as folder, AdminHarness(Path(folder), **ALL_FEATURES) as made:
        return made.routes()


ROUTES = all_routes()
DOCUMENT = document(ROUTES)
schema = schemathesis.openapi.from_dict(DOCUMENT).include(path_regex=f"^{ROOT}/")


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminHarness]:
    made = AdminHarness(tmp_path_factory.mktemp("data"), **ALL_FEATURES)
    for name in (1, 1, 2):
        made.request(name)
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(harness: AdminHarness) -> Iterator[TestClient]:
    with harness.client() as found:
        yield found


def test_the_document_lists_exactly_the_routes(harness: AdminHarness) -> None:
    app = admin_app(harness.context)
    served = {
        (method, route.path)  # type: ignore[attr-defined]
        for route in app.routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
        if route.path.startswith(ROOT)  # type: ignore[attr-defined]
    }
    documented = {
        (method.upper(), path)
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
        if path.startswith(ROOT)
    }
    assert served == documented == {(route.method, ROOT + route.path) for route in ROUTES}
    assert {f"/v1/{endpoint.value}" for endpoint in Endpoint} <= DOCUMENT["paths"].keys()


def test_the_document_is_public_and_its_schemas_are_valid(harness: AdminHarness) -> None:
    with harness.client(headers={}) as public:
        assert public.get(f"{ROOT}/openapi.json").json() == DOCUMENT
    for schema_ in schemas(ROUTES).values():
        Draft202012Validator.check_schema(schema_)
    assert DOCUMENT["openapi"] == "3.1.0"


def test_the_document_names_the_role_of_each_operation() -> None:
    paths = DOCUMENT["paths"]
    for route in ROUTES:
        operation = paths[ROOT + route.path][route.method.lower()]
        assert operation.get("x-role") == (None if route.access == "public" else route.role)


def test_every_route_and_field_is_documented() -> None:
    page = (support.ROOT / "docs" / "reference" / "admin-api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", page, re.MULTILINE)
    assert {f"{route.method} {route.path}" for route in ROUTES} <= set(documented)
    fields = [name for route in ROUTES for name in route.parameters.model_fields]
    fields += [*summary_models.Usage.model_fields, *models.Purge.model_fields, *SPANS]
    for name in fields:
        assert re.search(rf"[`\"{{]{name}[`\"}}]", page), f"docs/reference/admin-api.md does not mention {name}"


def test_other_statuses_than_200_are_documented() -> None:
    page = (support.ROOT / "docs" / "reference" / "admin-api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|.*; (2\d\d) \|$", page, re.MULTILINE)
    others = [route for route in ROUTES if route.status != 200]
    assert [(f"{route.method} {route.path}", str(route.status)) for route in others] == documented


# Collecting these tests takes seconds. So there is no second set of them, marked `long`.
@schema.parametrize()
@settings(max_examples=examples(4, 300), suppress_health_check=list(HealthCheck))
def test_responses_conform_to_the_document(client: TestClient, harness: AdminHarness, case: Any) -> None:
    if case.operation.path.endswith("/purge"):
        harness.request(1)
    sent = case.as_transport_kwargs(base_url=BASE, headers=BEARER)
    response = client.request(
        sent["method"],
        sent["url"],
        params=sent.get("params"),
        headers=dict(sent["headers"]),
        cookies=None,
        **({"json": sent["json"]} if "json" in sent else {"content": sent.get("data")}),
    )
    case.validate_response(response, checks=CHECKS)


@pytest.mark.features
def test_a_feature_that_is_off_has_no_routes_and_no_fields() -> None:
    off = {spec.name for spec in feature_specs() if spec.turn_on}
    with AdminHarness() as made:
        on = {feature.name for feature in made.features.active}
        assert off & on <= {"prefix"}, "by default"
        served = {f"{route.method} {route.path}" for route in made.routes()}
        fields = made.client().get(f"{ROOT}/summary").raise_for_status().json()
    assert served < {f"{route.method} {route.path}" for route in ROUTES}
    assert not (off - on) & {*fields, *fields["health"]}


@pytest.mark.features
def test_a_feature_that_starts_later_adds_its_routes() -> None:
    class Later(Feature):
        name = "later"

        def admin_routes(self, admin: AdminServices) -> list[Route]:
            async def serve(_: AdminRequest) -> models.Saved:
                return models.Saved(saved=await admin.in_thread(lambda: True))

            return [Route(method="GET", path="/later", name="later", summary="", response=models.Saved, serve=serve)]

        def summary_fields(self, admin: AdminServices) -> list[SummaryField]:  # noqa: ARG002
            return [SummaryField("later", int, "A number.", lambda: 7)]

    with AdminHarness() as made:
        client = made.client()
        assert client.get(f"{ROOT}/later").status_code == 404
        active = made.features.active
        made.features.active = (*active, Later(active[0].context))
        assert client.get(f"{ROOT}/later").json() == {"saved": True}
        assert client.get(f"{ROOT}/summary").json()["later"] == 7
        described = client.get(f"{ROOT}/openapi.json").json()
        assert described["components"]["schemas"]["Summary"]["properties"]["later"]["description"] == "A number."
        assert f"{ROOT}/later" in described["paths"]
        made.features.active = active
        assert client.get(f"{ROOT}/later").status_code == 404
        assert "later" not in client.get(f"{ROOT}/summary").json()
