"""The public surfaces as lists of lines: `python -m tests.support.surfaces` writes them to tests/surfaces.

docs/reference/stability.md says what is public. `tests/test_surfaces.py` compares the code with the lists.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

import knapcache
from knapcache.cli.main import build_parser
from knapcache.policy import registry
from knapcache.policy.base import Policy
from knapcache.policy.registry import Spec
from knapcache.proxy.admin.openapi import document
from knapcache.proxy.feature_list import Command, FeatureSpec, Flag
from knapcache.proxy.features import Feature
from knapcache.proxy.hooks import CallContext, CallHooks, PaidCall, Substitute
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import default_text
from knapcache.testing import prefix_provider
from tests.support import ROOT
from tests.support.admin_context import ALL_FEATURES, AdminHarness
from tests.support.json_fields import json_fields
from tests.support.metric_docs import documented

FOLDER = ROOT / "tests" / "surfaces"
SOURCES = (
    "integrations.openai.client",
    "integrations.openai.async_client",
    "integrations.anthropic.client",
    "integrations.anthropic.async_client",
    "integrations.transport.CacheTransport",
    "integrations.transport_async.AsyncCacheTransport",
    "integrations.langchain.KnapcacheLangChain",
    "integrations.litellm.KnapcacheLiteLLM",
    "integrations.vllm.AdaptivePolicy",
)
"""Public names of modules that `knapcache` does not import, because they need another library."""
BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length")
"""Names of the limits that pydantic keeps for a field."""
INTERNAL_HEADERS = {"x-knapcache-client", "x-knapcache-scheme"}
"""Headers between the processes of one proxy."""


def library() -> Iterator[str]:
    """Yield the exported names, and the public members of exported classes with their signatures; the policies."""
    for name in sorted(knapcache.__all__):
        value = getattr(knapcache, name)
        if isinstance(value, types.ModuleType):
            for inner in value.__all__:
                yield from lines_of(f"{name}.{inner}", getattr(value, inner))
        else:
            yield from lines_of(name, value)
    for name in prefix_provider.__all__:
        yield from lines_of(f"testing.prefix_provider.{name}", getattr(prefix_provider, name))
    for name in SOURCES:
        yield from in_source(name)
    yield from (f"policy {name}" for name in (*registry.SPECS, *registry.BOUNDS))


def lines_of(name: str, value: Any) -> Iterator[str]:
    """Yield a class with its public members, a function with its signature, or the name of something else."""
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__bases__] if issubclass(value, Exception) else []
        yield name + (f"({', '.join(bases)})" if bases else "")
        yield from (f"{name}.{line}" for line in members(value))
    else:
        yield name + (signature_of(value) if inspect.isfunction(value) else "")


def in_source(name: str) -> Iterator[str]:
    """Yield the lines of a class or function that is not imported, from its source."""
    module, _, inner = name.rpartition(".")
    tree = ast.parse((ROOT / "src" / "knapcache" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == inner)
    if isinstance(found, ast.FunctionDef):
        yield f"{name}({ast.unparse(found.args)})"
        return
    yield name
    for node in found.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match("__init__|[a-z]", node.name):
            yield f"{name}.{node.name}({ast.unparse(node.args)})"


def signature_of(function: Any) -> str:
    """Return the signature of a function, without addresses of default values."""
    return re.sub(r"<function (\w+) at \w+>", r"\1", str(inspect.signature(function)).replace("'", ""))


def members(kind: type) -> Iterator[str]:
    """Yield fields, methods with signatures, and properties that a class defines itself."""
    fields = inspect.get_annotations(kind)
    hints = ((name, getattr(hint, "__forward_arg__", hint)) for name, hint in fields.items())  # of named tuples
    yield from (f"{name}: {hint}" for name, hint in hints if not name.startswith("_"))
    for name, member in vars(kind).items():
        shown = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if name.startswith("_") and name != "__init__":
            continue
        if inspect.isfunction(shown) and (name != "__init__" or not fields):
            yield name + signature_of(shown)
        elif isinstance(member, property):
            yield f"{name} (property)"
        elif isinstance(member, str) and name not in fields and not issubclass(kind, Exception):
            yield f"{name} = {member}"


def plug_ins() -> Iterator[str]:
    """Yield what a package with a policy or a feature of its own uses."""
    for kind in (Spec, Policy, FeatureSpec, Flag, Command, Feature, CallHooks, CallContext, PaidCall, Substitute):
        yield from lines_of(kind.__name__, kind)


def settings() -> Iterator[str]:
    """Yield every setting with its default and bounds, those of tables in lists included."""
    yield from fields_of(Settings, "")


def fields_of(model: type[BaseModel], path: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        bounds = (
            f"{kind}={getattr(limit, kind)}" for limit in field.metadata for kind in BOUNDS if hasattr(limit, kind)
        )
        yield " ".join(filter(None, (f"{path}{name}", default_text(field), *bounds)))
        for inner in models_in(field.annotation):
            yield from fields_of(inner, f"{path}{name}.")


def models_in(hint: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation."""
    if inspect.isclass(hint) and issubclass(hint, BaseModel):
        yield hint
    for part in get_args(hint):
        yield from models_in(part)


def command_line() -> Iterator[str]:
    """Yield the arguments and options of every command."""
    top = build_parser([])
    for name in subcommands(top):
        yield from arguments(subcommands(build_parser([name]))[name])


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    command = parser.prog.removeprefix("knapcache ")
    yield command
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
        yield f"{command} {', '.join(action.option_strings)}{value}".replace("  ", " ")
    for inner in subcommands(parser).values():
        yield from arguments(inner)


def headers() -> Iterator[str]:
    """Yield the headers of requests, responses and webhooks that the source names."""
    pattern = re.compile(r"\"(x-knapcache[\w-]*)[\":]|b\"(x-knapcache[\w-]*)")
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py"))]
    found = {name for text in texts for pair in pattern.findall(text) for name in pair if name}
    yield from sorted(name for name in found - INTERNAL_HEADERS if not name.endswith("-"))


def webhooks() -> Iterator[str]:
    """Yield the events of webhooks with their fields, from the calls that report them."""
    from knapcache.features.limits.limits import LimitWarning

    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "src").rglob("*.py"))]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    for call in calls:
        if not isinstance(call.func, ast.Attribute) or not call.func.attr.endswith("notify"):
            continue
        events = [part.value for part in ast.walk(call.args[0]) if isinstance(part, ast.Constant)]
        passed = [given.arg for given in call.keywords]
        fields = LimitWarning._fields if None in passed else passed  # None: **, which only this event has
        yield from (f"{event} {field}" for event in events if isinstance(event, str) for field in fields)


def metrics() -> Iterator[str]:
    """Yield the metrics with their labels. Other tests compare the page with the code."""
    for name, labels in documented().items():
        yield f"{name}{{{','.join(sorted(labels))}}}" if labels else name


def admin_api() -> Iterator[str]:
    """Yield routes with their parameters, and the fields of responses, with every feature on."""
    with tempfile.TemporaryDirectory() as folder, AdminHarness(Path(folder), **ALL_FEATURES) as harness:
        found = document(harness.routes())
    for path, operations in sorted(found["paths"].items()):
        for method, operation in operations.items():
            parameters = ", ".join(parameter["name"] for parameter in operation.get("parameters", ()))
            yield f"{method.upper()} {path}" + (f" ({parameters})" if parameters else "")
    for name, schema in sorted(found["components"]["schemas"].items()):
        yield from (f"{name}.{field}" for field in schema.get("properties", ()))


SURFACES: dict[str, Callable[[], Iterator[str]]] = {
    "library": library,
    "settings": settings,
    "command-line": command_line,
    "json": json_fields,
    "headers": headers,
    "webhooks": webhooks,
    "metrics": metrics,
    "admin-api": admin_api,
    "plug-ins": plug_ins,
}


def path_of(surface: str) -> Path:
    """Return the file with the list of a surface."""
    return FOLDER / f"{surface}.txt"


if __name__ == "__main__":
    for surface, lines in SURFACES.items():
        path_of(surface).write_text("\n".join(lines()) + "\n", encoding="utf-8")
