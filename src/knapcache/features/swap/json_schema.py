"""Whether a JSON value has the form that a request's JSON schema prescribes, as far as it is checked.

Checked: type, enum, const, required, properties, additionalProperties, items, anyOf, and $ref to a definition of the
same schema. Other keywords, such as pattern or minimum, are not. An answer that differs in one of them is accepted.

Schemas come from callers, so the work is bounded: at most MAX_STEPS schemas and values are compared, and MAX_DEPTH are
nested. What is beyond that is accepted. No expression of a schema is compiled, and nothing is fetched. Rejected: the
package jsonschema. It runs the regular expressions of a schema without a limit, and brings four more packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")
MAX_STEPS, MAX_DEPTH = 4000, 64
DEFINITIONS = ("$defs", "definitions")
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: is_number(value),
    "integer": lambda value: is_number(value) and value % 1 == 0,
}


def fits(value: Any, schema: Any) -> bool:
    """Return whether a JSON value fits a JSON schema."""
    return SchemaCheck(schema).fits(value, schema)


class SchemaCheck:
    """One comparison. root: the schema that has the definitions."""

    def __init__(self, root: Any) -> None:
        self._root, self._steps = root, MAX_STEPS

    def fits(self, value: Any, schema: Any, depth: int = 0) -> bool:
        """Return whether a value fits a part of the schema."""
        self._steps -= 1
        if self._steps < 0 or depth > MAX_DEPTH or not isinstance(schema, Mapping):
            return schema is not False
        if "$ref" in schema and not self.fits(value, self._definition(schema["$ref"]), depth + 1):
            return False
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if isinstance(kinds, list) and not any(TYPES[kind](value) for kind in kinds if kind in TYPES):
            return all(kind not in TYPES for kind in kinds)
        if not self._is_one_of(value, schema):
            return False
        anything = schema.get("anyOf")
        if isinstance(anything, list) and not any(self.fits(value, each, depth + 1) for each in anything):
            return False
        if isinstance(value, dict):
            return self._object_fits(value, schema, depth)
        items = schema.get("items")
        return not isinstance(value, list) or all(self.fits(each, items, depth + 1) for each in self._some(value))

    def _is_one_of(self, value: Any, schema: Mapping[str, Any]) -> bool:
        allowed = schema.get("enum")
        if isinstance(allowed, list):
            self._steps -= len(allowed)
            if self._steps >= 0 and not any(is_same(value, each) for each in allowed):
                return False
        return "const" not in schema or is_same(value, schema["const"])

    def _object_fits(self, value: dict[str, Any], schema: Mapping[str, Any], depth: int) -> bool:
        required, properties = schema.get("required"), schema.get("properties")
        if isinstance(required, list) and not all(name in value for name in required if isinstance(name, str)):
            return False
        known = properties if isinstance(properties, Mapping) else {}
        others = schema.get("additionalProperties")
        if "patternProperties" in schema:
            others = None
        return all(self.fits(value[name], known.get(name, others), depth + 1) for name in self._some(value))

    def _some(self, values: Iterable[T]) -> Iterator[T]:
        """Return the values that there are steps for."""
        return islice(values, max(0, self._steps))

    def _definition(self, reference: Any) -> Any:
        """Return what a reference names; None if it is not a definition of this schema."""
        if reference == "#":
            return self._root
        for group in DEFINITIONS:
            found = self._root.get(group)
            prefix = f"#/{group}/"
            if isinstance(reference, str) and reference.startswith(prefix) and isinstance(found, Mapping):
                return found.get(reference.removeprefix(prefix))
        return None


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal. True is not 1."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
