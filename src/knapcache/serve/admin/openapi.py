"""The admin API in one table: its routes are made from it, its document is made from it, and so the two agree.

A route says who may use it, what comes in and what goes out. Parameters and bodies are read by the schemas given here
(`schemas.fitting`). The endpoints whose answers are kept are the provider's to describe: the document names them,
with the headers by which callers and the cache speak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Literal

from knapcache.model import Endpoint
from knapcache.serve.admin.models import KEY, NAME, SCHEMAS, Schema, ref
from knapcache.serve.observe.history import SPANS

ROOT = "/admin/v1"
NOTHING: Mapping[str, Schema] = MappingProxyType({})
ERRORS = {
    400: "what was asked cannot be",
    401: "no token, or a wrong one",
    403: "asked by a page of another site, or without the session's csrf token",
    404: "there is no such thing",
    405: "another method is needed",
    409: "not now, or not by this process",
    413: "too much was sent",
    421: "asked by a name that is not of this host",
    429: "too many wrong tokens",
    503: "the store does not answer",
}
ALWAYS = (421,)


@dataclass(frozen=True)
class Route:
    """One method of one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    name: str
    """Of the function that serves it."""
    summary: str
    answer: str
    """A name of SCHEMAS, or "object"."""
    access: Literal["token", "session", "anyone"] = "token"
    """anyone: no token needed; session: only the cookie will do."""
    parameters: Mapping[str, Schema] = field(default_factory=dict)
    body: str | None = None
    status: int = 200
    errors: tuple[int, ...] = ()

    @property
    def all_errors(self) -> tuple[int, ...]:
        """Every status that is no success."""
        found = {*ALWAYS, *self.errors}
        if self.access != "anyone":
            found |= {401, 429}
        if self.method != "GET":
            found |= {400, 403, 413}
        if self.parameters:
            found.add(400)
        return tuple(sorted(found))


ENTRIES: dict[str, Schema] = {
    "search": {"type": "string", "maxLength": 200, "default": "", "description": "in keys, models and tenants"},
    "model": {**NAME, "default": "", "description": "only this model's; empty: all"},
    "tenant": {**NAME, "default": "", "description": "only this caller's, by name or namespace; empty: all"},
    "sort": {
        "type": "string",
        "enum": ["value", "size", "cost", "requests", "per_day", "age"],
        "default": "value",
    },
    "descending": {"type": "boolean", "default": True},
    "offset": {"type": "integer", "minimum": 0, "maximum": 10**9, "default": 0},
    "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
}
SPAN: dict[str, Schema] = {"span": {"type": "string", "enum": [*SPANS, "all"], "default": "day"}}
AFTER: dict[str, Schema] = {
    "after": {"type": "integer", "minimum": 0, "maximum": 10**15 - 1, "default": 0, "description": "a serial"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 200},
}
ONE: dict[str, Schema] = {"key": {**KEY, "description": "the digest of a request, as in x-knapcache-key"}}

ROUTES: tuple[Route, ...] = (
    Route("GET", "/summary", "summary", "Money, room and health, now", "Summary", errors=(503,)),
    Route("GET", "/history", "history", "Money over time", "History", parameters=SPAN, errors=(503,)),
    Route("GET", "/entries", "entries", "Kept answers", "Entries", parameters=ENTRIES, errors=(409, 503)),
    Route(
        "GET", "/entries/{key}", "entry", "One kept answer; its content where settings allow", "EntryWithContent",
        parameters=ONE, errors=(404, 409, 503),
    ),
    Route(
        "DELETE", "/entries/{key}", "forget", "Remove one answer", "Purged", parameters=ONE, errors=(404, 409, 503)
    ),
    Route("POST", "/purge", "purge", "Remove answers", "Purged", body="Purge", errors=(409, 503)),
    Route("GET", "/requests", "requests", "The last requests, in their order", "Requests", parameters=AFTER),
    Route("POST", "/snapshot", "snapshot", "Keep the policy's state and history now", "Saved", errors=(409, 503)),
    Route("POST", "/plan", "start_plan", "Find out how much room pays, from the request log", "Plan", status=202,
          errors=(409,)),
    Route("GET", "/plan", "plan", "What came of it", "Plan"),
    Route("GET", "/openapi.json", "openapi", "This document", "object", access="anyone"),
    Route("POST", "/login", "login", "A session for the admin token", "Session", access="anyone", body="Login",
          errors=(401, 429)),
    Route("GET", "/session", "session", "The csrf token of the session", "Session", access="session"),
    Route("POST", "/logout", "logout", "End the session", "Done", access="session"),
)  # fmt: skip

CACHED_HEADERS = {
    "x-knapcache": "hit, miss, coalesced, stale, bypass: how the answer came; pass: not ours to keep",
    "x-knapcache-key": "the digest under which the answer is kept",
    "x-knapcache-saved-usd": "dollars not spent because the answer was there",
    "cache-status": "the same by RFC 9211",
    "age": "seconds since the answer was paid for",
}
SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "token": [{"token": []}, {"session": []}],
    "session": [{"session": []}],
    "anyone": [],
}


def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(ROOT + route.path, {})[route.method.lower()] = _operation(route)
    for endpoint in Endpoint:
        paths[f"/v1/{endpoint.value}"] = {"post": _cached(endpoint)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "knapcache",
            "version": version("knapcache"),
            "description": "The admin API of the proxy, and the endpoints whose answers it keeps.",
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "the admin token"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "knapcache-session",
                    "description": "from /login; what changes something also needs the header x-csrf-token",
                },
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    answer: Schema = {"type": "object"} if route.answer == "object" else ref(route.answer)
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": ["admin"],
        "security": SECURITY[route.access],
        "responses": {
            str(route.status): {"description": "as asked", "content": {"application/json": {"schema": answer}}},
            **{
                str(status): {
                    "description": ERRORS[status],
                    "content": {"application/json": {"schema": ref("Error")}},
                }
                for status in route.all_errors
            },
        },
    }
    if route.parameters:
        operation["parameters"] = [_parameter(route, name, schema) for name, schema in route.parameters.items()]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": ref(route.body)}}}
    return operation


def _parameter(route: Route, name: str, schema: Schema) -> dict[str, Any]:
    place = "path" if f"{{{name}}}" in route.path else "query"
    plain = {word: value for word, value in schema.items() if word != "description"}
    found = {"name": name, "in": place, "required": place == "path", "schema": plain}
    return found | ({"description": schema["description"]} if "description" in schema else {})


def _cached(endpoint: Endpoint) -> dict[str, Any]:
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in CACHED_HEADERS.items()}
    anything = {"application/json": {"schema": {"type": "object"}}}
    return {
        "operationId": endpoint.value.replace("/", "_"),
        "summary": f"As the provider's {endpoint.value}, from the cache where there is an answer",
        "description": "The caller's own credential, or a tenant's key. Cache-Control: no-store, no-cache, max-age=N "
        'and only-if-cached are obeyed. With "stream": true the answer is a stream of server-sent events.',
        "tags": ["cached"],
        "requestBody": {"required": True, "content": anything},
        "responses": {
            "200": {
                "description": "the answer",
                "headers": headers,
                "content": {**anything, "text/event-stream": {"schema": {"type": "string"}}},
            },
            "default": {"description": "an error, ours or the provider's", "content": anything},
        },
    }
