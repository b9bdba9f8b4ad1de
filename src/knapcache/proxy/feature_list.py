"""The list of features, and what the proxy knows of a feature before it is imported.

A feature is a part of the proxy that can be left out: limits, content log, prompt caches of providers, swap, semantic
tier, webhooks, explanations. Each has a folder below `knapcache/features/`, and one line in FEATURES. A package of
someone else adds a feature by an entry point in the group `knapcache.features`, whose name is that of the feature and
whose value is a `FeatureSpec`.

Importing a spec imports nothing else, because the command line needs its flags and commands for `knapcache --help`.
The settings of all features are imported with those of the proxy, of which they become a part
(settings/composition.py). The rest of a feature is imported only if the settings turn it on (features.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from pydantic import BaseModel

FEATURES = (
    "knapcache.features.limits.spec",
    "knapcache.features.content_log.spec",
    "knapcache.features.prefix.spec",
    "knapcache.features.swap.spec",
    "knapcache.features.semantic.spec",
    "knapcache.features.webhooks.spec",
    "knapcache.features.explain.spec",
)
"""Modules with a `SPEC`, in the order in which features are asked."""
ENTRY_POINTS = "knapcache.features"


class Flag(NamedTuple):
    """A setting that has a flag of its own in `knapcache serve`."""

    setting: str
    metavar: str
    help: str


class Command(NamedTuple):
    """A command of `knapcache`."""

    name: str
    help: str
    """Its line in `knapcache --help`, which imports no command of a feature."""
    module: str
    """A module with `add_options(parser)`, which also sets the description and the default `execute`."""


class FeatureSpec(NamedTuple):
    """What is known of a feature before it is imported."""

    name: str
    """Names its part of events, its sums in the history and its files of the page."""
    title: str
    """Of its view on the dashboard."""
    feature: str
    """Where its `Feature` is: "module:class"."""
    is_on: Callable[[Any], bool]
    """Return whether settings turn it on."""
    turn_on: str = ""
    """Lines of the settings file that turn it on; empty: it is always on."""
    about: str = ""
    """What it does, in one line."""
    settings: str | type[BaseModel] | None = None
    """Its settings: a model, or "module:class", whose fields become fields of `Settings`. None: it has none."""
    route_settings: str | type[BaseModel] | None = None
    """Its settings for routes."""
    tenant_settings: str | type[BaseModel] | None = None
    """Its settings for tenants."""
    upstream_settings: str | type[BaseModel] | None = None
    """Its settings for upstreams."""
    reloaded: tuple[str, ...] = ()
    """Settings that SIGHUP applies. Those of tenants are always applied."""
    flags: tuple[Flag, ...] = ()
    """Of its settings, those with a flag."""
    commands: tuple[Command, ...] = ()
    """Its commands of `knapcache`."""
    files: tuple[tuple[str, str], ...] = ()
    """Its SQLite files in the data directory: name, and "module:name" of the `FileKind`."""
    check: str = ""
    """For `knapcache doctor`, a function of settings that raises KnapcacheError if the feature could not start:
    "module:name"."""
    compare: str = ""
    """For `knapcache why`, a function of canonical requests and of a stored one from which they differ: "module:name".
    It returns whether the feature may give the stored answer to one of them, in words."""

    def load(self) -> Any:
        """Import the feature, and return its class."""
        return imported(self.feature)


def imported(place: Any) -> Any:
    """Return the object at "module:name"; an object that is not a string is returned unchanged."""
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@functools.cache
def feature_specs() -> tuple[FeatureSpec, ...]:
    """Return all features: those of FEATURES, then those of other packages by name."""
    found = [import_module(module).SPEC for module in FEATURES]
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name):
        try:
            found.append(point.load())
        except Exception as error:
            raise InvalidInput(f"feature {point.name} of {point.value} cannot be imported: {error}") from error
    names = [spec.name for spec in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInput(f"two features are named {min(twice)}: uninstall one of their packages")
    return tuple(found)
