"""What goes in and out of the admin API, as JSON Schema: the words of openapi.py.

`fitting` reads what comes in by the same schemas that the document shows, so the two cannot differ. It knows the few
words of JSON Schema that are used here for parameters and bodies, and no others.
"""

from __future__ import annotations

import math
import re
from typing import Any

from knapcache.serve.http.asgi_request import RequestRejected
from knapcache.serve.observe.usage import COUNTS, NUMBERS

Schema = dict[str, Any]

NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXT: Schema = {"type": "string"}
TRUTH: Schema = {"type": "boolean"}
KEY: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
NAME: Schema = {"type": "string", "maxLength": 200}


def maybe(schema: Schema) -> Schema:
    """Or null."""
    return {**schema, "type": [schema["type"], "null"]}


def ref(name: str) -> Schema:
    """One of SCHEMAS."""
    return {"$ref": f"#/components/schemas/{name}"}


def thing(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """An object with these and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def many(schema: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": schema}


def described(schema: Schema, text: str) -> Schema:
    """With a word on what it is."""
    return {**schema, "description": text}


ROW_FIELDS: dict[str, Schema] = {
    **{name: COUNT if name in COUNTS else {"type": "number", "minimum": 0} for name in NUMBERS},
    "would": {
        "type": "object",
        "additionalProperties": NUMBER,
        "description": "what others would have spent on the same requests: no cache, other policies, more room",
    },
}
ENTRY_FIELDS: dict[str, Schema] = {
    "key": KEY,
    "model": TEXT,
    "tenant": described(TEXT, "the caller's name"),
    "size": COUNT,
    "cost": NUMBER,
    "usd": maybe(NUMBER),
    "seconds": NUMBER,
    "requests": NUMBER,
    "per_day": NUMBER,
    "value": described(NUMBER, "requests · cost"),
    "density": described(NUMBER, "value / size"),
    "age": NUMBER,
    "expires_in": maybe(NUMBER),
}
REQUEST_FIELDS: dict[str, Schema] = {
    "serial": COUNT,
    "time": NUMBER,
    "endpoint": TEXT,
    "model": TEXT,
    "tenant": TEXT,
    "outcome": TEXT,
    "status": {"type": "integer"},
    "seconds": NUMBER,
    "ttfb": NUMBER,
    "stream": TRUTH,
    "key": TEXT,
    "size": COUNT,
    "cost": NUMBER,
    "usd": maybe(NUMBER),
    "upstream_seconds": NUMBER,
    "upstream": TEXT,
    "saved": TRUTH,
}
HEALTH = thing(
    {
        "store": {"type": "string", "enum": ["ok", "open", "half-open", "memory"]},
        "owner": described(TRUTH, "whether this process decides and writes"),
        "workers": COUNT,
        "upstreams": many(thing({"name": TEXT, "state": TEXT, "calls": COUNT, "errors": COUNT})),
        "breaker": {"type": "object"},
    }
)

SCHEMAS: dict[str, Schema] = {
    "Error": thing({"error": thing({"message": TEXT, "type": TEXT})}),
    "UsageRow": thing(ROW_FIELDS),
    "Summary": thing(
        {
            "now": NUMBER,
            "started": NUMBER,
            "since": described(NUMBER, "when history began"),
            "version": TEXT,
            "unit": described(TEXT, "of every cost: usd, seconds, or a blend"),
            "policy": thing({"name": TEXT, "oracle_calls": COUNT, "oracle_seconds": NUMBER, "ids": COUNT}),
            "storage": thing(
                {
                    "capacity": COUNT,
                    "bytes": COUNT,
                    "entries": COUNT,
                    "disk_bytes": maybe(COUNT),
                    "size_limit": maybe(COUNT),
                }
            ),
            "today": ref("UsageRow"),
            "all": ref("UsageRow"),
            "models": many(thing({"name": TEXT, **ROW_FIELDS})),
            "tenants": many(
                thing({"name": TEXT, "namespace": maybe(TEXT), "bytes": COUNT, "quota": maybe(COUNT), **ROW_FIELDS})
            ),
            "price_per_mb": described(NUMBER, "what the last megabyte of room is worth"),
            "doubling": described(
                maybe(thing({"saves": NUMBER, "per_day": NUMBER})), "what twice the room would have saved more"
            ),
            "health": HEALTH,
        }
    ),
    "History": thing({"step": COUNT, "points": many(thing({"time": NUMBER, **ROW_FIELDS}))}),
    "Entries": thing({"total": COUNT, "rows": many(ref("Entry")), "price_per_mb": NUMBER}),
    "Entry": thing(ENTRY_FIELDS),
    "EntryWithContent": thing({**ENTRY_FIELDS, "request": TEXT, "answer": TEXT}, optional=("request", "answer")),
    "Purge": {
        **thing(
            {
                "key": KEY,
                "model": NAME,
                "tenant": described(NAME, "a caller's name, or a namespace"),
                "older_than": {"type": "number", "minimum": 0, "maximum": 1e12, "description": "seconds"},
                "all": {"type": "boolean", "const": True},
            },
            optional=("key", "model", "tenant", "older_than", "all"),
        ),
        "oneOf": [
            {"required": ["all"], "maxProperties": 1},
            {"not": {"required": ["all"]}, "minProperties": 1},
        ],
        "description": "what meets every condition given; everything only by saying so",
    },
    "Purged": thing({"purged": COUNT}),
    "Requests": thing({"serial": COUNT, "rows": many(thing(REQUEST_FIELDS))}),
    "Plan": thing(
        {
            "state": {"type": "string", "enum": ["idle", "running", "done", "failed"]},
            "started": maybe(NUMBER),
            "seconds": maybe(NUMBER),
            "result": described({"type": ["object", "null"]}, "as `knapcache plan --json` writes it; or a message"),
        }
    ),
    "Saved": thing({"saved": TRUTH}),
    "Login": thing({"token": {"type": "string", "maxLength": 4096}}),
    "Session": thing({"csrf": described(TEXT, "for the header x-csrf-token")}),
    "Done": thing({"done": TRUTH}),
}


def fitting(schema: Schema, value: Any, name: str) -> Any:
    """The value, if it fits; else RequestRejected, in one line."""
    kind = schema["type"]
    if not _is(kind, value):
        raise bad(f"{name} must be {ARTICLES[kind]}")
    if "enum" in schema and value not in schema["enum"]:
        raise bad(f"{name} must be one of {', '.join(schema['enum'])}")
    if "const" in schema and value != schema["const"]:
        raise bad(f"{name} must be {str(schema['const']).lower()}")
    if kind == "string":
        if len(value) > schema.get("maxLength", math.inf):
            raise bad(f"{name} must have at most {schema['maxLength']} characters")
        if "pattern" in schema and not re.fullmatch(schema["pattern"].strip("^$"), value):
            raise bad(f"{name} must be of the form {schema['pattern']}")
    elif kind in ("integer", "number"):
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if not low <= value <= high:
            raise bad(f"{name} must be from {low} to {high}")
    elif kind == "object":
        _fitting_parts(schema, value)
    return value


def _fitting_parts(schema: Schema, value: dict[str, Any]) -> None:
    known = schema["properties"]
    for name in schema["required"]:
        if name not in value:
            raise bad(f"{name} is missing")
    for name, part in value.items():
        if name not in known:
            raise bad(f"{name[:40]!r} is not known; known are {', '.join(known)}")
        fitting(known[name], part, name)


ARTICLES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
}


def _is(kind: str, value: Any) -> bool:
    if kind == "number":
        return type(value) in (int, float) and math.isfinite(value)
    if kind == "integer":  # 5.0 is one in JSON Schema
        return type(value) is int or (type(value) is float and value.is_integer())
    return type(value) is {"string": str, "boolean": bool, "object": dict}[kind]


def from_query(schema: Schema, text: str, name: str) -> Any:
    """A parameter, from its text in an address."""
    kind = schema["type"]
    value: Any = text
    if kind == "integer":
        value = int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else text
    elif kind == "boolean":
        value = {"true": True, "false": False}.get(text, text)
    return fitting(schema, value, name)


def bad(message: str) -> RequestRejected:
    """400."""
    return RequestRejected(400, message, "invalid_request")
