"""The core's routes of the admin API, and the OpenAPI document that is generated from all routes and their models.

The cached endpoints are the providers' to describe. The document lists them with the request and response headers that
control the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Literal

import orjson
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from knapcache.model import Endpoint
from knapcache.proxy.admin import admin_request, models, pages, summary_models
from knapcache.proxy.admin.auth import COOKIE
from knapcache.proxy.admin_routes import Access, RequestModel, ResponseModel, Route

ROOT = "/admin/v1"
ERRORS = {
    400: "Invalid request.",
    401: "No token, or a wrong one.",
    403: "A page of another origin, a session without its CSRF token, or a token whose role does not allow this.",
    404: "Not found.",
    405: "Method not allowed.",
    409: "Not possible now, or not in this process.",
    413: "The body is too large.",
    421: "The Host header is not in allowed_hosts.",
    429: "Too many wrong tokens.",
    503: "The store does not answer, or the audit log or a token cannot be written.",
}
REFERENCE = "#/components/schemas/{model}"


ROUTES: tuple[Route, ...] = (
    Route(method="GET", path="/summary", name="summary", summary="Savings, sizes and health",
          response=summary_models.Summary, errors=(503,)),
    Route(method="GET", path="/history", name="history", summary="Usage over time",
          response=summary_models.UsageHistory, parameters=models.HistoryQuery, errors=(503,)),
    Route(method="GET", path="/entries", name="entries", summary="List entries", response=models.EntryPage,
          parameters=models.EntriesQuery, errors=(409, 503)),
    Route(method="GET", path="/entries/{key}", name="entry",
          summary="One entry; for operators with content if show_content is on",
          response=models.EntryWithContent, parameters=models.KeyPath, errors=(404, 409, 503)),
    Route(method="DELETE", path="/entries/{key}", name="forget", summary="Remove one entry", response=models.Purged,
          parameters=models.KeyPath, errors=(404, 409, 503)),
    Route(method="POST", path="/purge", name="purge", summary="Remove entries", response=models.Purged,
          body=models.Purge, errors=(409, 503)),
    Route(method="GET", path="/proxies", name="proxies", summary="The proxies of a shared store, and its server",
          response=summary_models.ProxyPage, errors=(503,)),
    Route(method="GET", path="/requests", name="requests", summary="Recent requests of all processes",
          response=models.RequestPage, parameters=models.RequestsQuery, errors=(503,)),
    Route(method="POST", path="/snapshot", name="snapshot", summary="Write the policy's state and the history now",
          response=models.Saved, errors=(409, 503)),
    Route(method="POST", path="/plan", name="start_plan", summary="Start a capacity plan from the request log",
          response=summary_models.PlanStatus, status=202, errors=(409,)),
    Route(method="GET", path="/plan", name="plan", summary="State and result of the capacity plan",
          response=summary_models.PlanStatus),
    Route(method="GET", path="/openapi.json", name="openapi", summary="This document", response=None,
          access="public"),
    Route(method="GET", path="/audit", name="audit", summary="The audit log, newest first",
          response=admin_request.AuditPage, parameters=admin_request.AuditQuery, operator=True, errors=(503,)),
    Route(method="GET", path="/panels", name="panels", summary="The features on the dashboard, on or off",
          response=pages.PanelPage),
    Route(method="GET", path="/tokens", name="list_tokens", summary="Names and roles of the admin tokens",
          response=admin_request.TokenPage, operator=True),
    Route(method="POST", path="/token/rotate", name="rotate_token", summary="Replace a token that is in a file",
          response=admin_request.RotatedToken, body=admin_request.RotateToken, errors=(409,)),
    Route(method="POST", path="/login", name="login", summary="Start a session with an admin token",
          response=admin_request.SessionInfo, access="public", body=admin_request.Login, errors=(401, 429, 503)),
    Route(method="GET", path="/session", name="session", summary="Name and role of the session",
          response=admin_request.SessionInfo, access="session"),
    Route(method="POST", path="/logout", name="logout", summary="End the session", response=admin_request.Done,
          access="session"),
)  # fmt: skip

CACHE_RESPONSE_HEADERS = {
    "x-knapcache": "Outcome: hit, similar, miss, coalesced, stale, bypass, passthrough.",
    "x-knapcache-key": "Digest of the key of the request.",
    "x-knapcache-similarity": "With the outcome similar: cosine of the two questions.",
    "x-knapcache-matched-key": "With the outcome similar: digest of the key of the entry that answered.",
    "x-knapcache-bound": "With the outcome similar: certified bound on the share of wrong answers.",
    "x-knapcache-match": "With the outcome similar: id of the match, for POST /admin/v1/semantic/feedback.",
    "x-knapcache-route": "Name of the route of the settings that applies, if one does.",
    "x-knapcache-saved-usd": "US dollars not spent because the answer came from the cache, if its price is known.",
    "x-knapcache-prices": "simulated: the dollars are of the embedded model, which is free.",
    "x-knapcache-saved-seconds": "If the price is not known: model time not needed because of the cache.",
    "x-knapcache-saved-tokens": "If the price is not known: tokens not needed because of the cache.",
    "cache-status": "The outcome in the terms of RFC 9211.",
    "age": "Seconds since the answer was fetched.",
}
SECURITY: dict[Access, list[dict[str, list[str]]]] = {
    "token": [{"token": []}, {"session": []}],
    "session": [{"session": []}],
    "public": [],
}


def schemas(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the JSON schemas of all bodies by model name."""
    used: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [(models.Error, "serialization")]
    used += [(route.response, "serialization") for route in routes if route.response is not None]
    used += [(route.body, "validation") for route in routes if route.body is not None]
    _, document = models_json_schema(used, ref_template=REFERENCE)
    found: dict[str, Any] = document["$defs"]
    return found


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(ROOT + route.path, {})[route.method.lower()] = _operation(route)
    for endpoint in Endpoint:
        paths[f"/v1/{endpoint.value}"] = {"post": _cached_operation(endpoint)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "knapcache",
            "version": version("knapcache"),
            "description": "The admin API of the proxy, and the endpoints that it caches.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(routes),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "An admin token."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE,
                    "description": "From /login. Every request also needs the header x-csrf-token.",
                },
            },
        },
    }


def encoded_document(routes: Sequence[Route]) -> bytes:
    """Return the document as JSON. pydantic takes 0.1 s for the schemas."""
    return orjson.dumps(document(routes))


def _body(model: type[RequestModel | ResponseModel] | None) -> dict[str, Any]:
    schema = {"type": "object"} if model is None else {"$ref": REFERENCE.format(model=model.__name__)}
    return {"application/json": {"schema": schema}}


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": ["admin"],
        "security": SECURITY[route.access],
        **({} if route.access == "public" else {"description": f"Role: {route.role}.", "x-role": route.role}),
        "responses": {
            str(route.status): {"description": "Success.", "content": _body(route.response)},
            **{
                str(status): {"description": ERRORS[status], "content": _body(models.Error)}
                for status in route.all_errors
            },
        },
    }
    properties = route.parameters.model_json_schema().get("properties", {})
    if properties:
        operation["parameters"] = [_parameter(route, name, schema) for name, schema in properties.items()]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _body(route.body)}
    return operation


def _parameter(route: Route, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    place = "path" if f"{{{name}}}" in route.path else "query"
    parameter = {"name": name, "in": place, "required": place == "path"}
    if "description" in schema:
        parameter["description"] = schema["description"]
    return parameter | {"schema": {word: value for word, value in schema.items() if word != "description"}}


def _cached_operation(endpoint: Endpoint) -> dict[str, Any]:
    headers = {
        name: {"description": text, "schema": {"type": "string"}} for name, text in CACHE_RESPONSE_HEADERS.items()
    }
    return {
        "operationId": endpoint.value.replace("/", "_"),
        "summary": f"The provider's {endpoint.value}, answered from the cache if possible",
        "description": "Authenticate with the provider's key or a tenant's key. Cache-Control: no-store, no-cache, "
        'max-age=N, only-if-cached and no-transform are supported. With "stream": true the response is a stream of '
        "server-sent events.",
        "tags": ["cached"],
        "requestBody": {"required": True, "content": _body(None)},
        "responses": {
            "200": {
                "description": "The answer.",
                "headers": headers,
                "content": {**_body(None), "text/event-stream": {"schema": {"type": "string"}}},
            },
            "default": {"description": "An error of the proxy or the provider.", "content": _body(None)},
        },
    }
