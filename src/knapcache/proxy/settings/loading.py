"""Loads settings from flags, the environment and a TOML file, in this order of precedence, and from defaults.

A setting comes from one source: lists and tables of several sources are not merged. Text from the environment and from
`--set` is parsed as JSON if it starts with [ or {, and `none` is None.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from knapcache.errors import InvalidInput, reason_text
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.tables import known_names, redacted, unknown_setting
from knapcache.proxy.settings.value_types import SECRETS_NEEDED, byte_size, byte_size_or_zero, duration

PREFIX = "KNAPCACHE_"
CONFIG = PREFIX + "CONFIG"
NOT_SETTINGS = {
    *("CONFIG", "COMPILE", "KERNEL_CACHE", "TRACES"),
    *("STORE_USER", "STORE_PASSWORD", "SENTINEL_USER", "SENTINEL_PASSWORD"),
}
"""Variables with the prefix that are not settings. Other modules read them."""
KUBERNETES = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_[0-9]+_\w+)")
"""Variables that Kubernetes sets for services with names such as knapcache and knapcache-valkey. Others are PORTS."""
PORTS = ("tcp://", "udp://")
"""How Kubernetes begins the values of KNAPCACHE_PORT and KNAPCACHE_VALKEY_PORT."""


class LoadedSettings(NamedTuple):
    """Settings and the source of each."""

    settings: Settings
    sources: dict[str, str]
    """default, file, environment or flag."""


def load(config: Path | None = None, flags: Mapping[str, Any] | None = None, *, secrets: bool = True) -> LoadedSettings:
    """Load all settings. Raises InvalidInput with one line per problem.

    secrets   whether keys of providers, tokens and certificates must be there, as they must to serve requests
    """
    if config is None and os.environ.get(CONFIG):
        config = Path(os.environ[CONFIG])
    layers = {"file": from_file(config), "environment": from_environment(), "flag": dict(flags or {})}
    values = {name: value for layer in layers.values() for name, value in layer.items()}
    sources = dict.fromkeys(Settings.model_fields, "default")
    sources |= {name: layer for layer, found in layers.items() for name in found}
    lines = unknown_variables()
    needed = SECRETS_NEEDED.set(secrets)
    try:
        settings = Settings(**values)
    except InvalidInput as error:
        lines += [_with_source(line, sources, config) for line in str(error).splitlines()]
    finally:
        SECRETS_NEEDED.reset(needed)
    if lines:
        raise InvalidInput("\n".join(lines))
    return LoadedSettings(settings, sources)


def from_file(path: Path | None) -> dict[str, Any]:
    """Read a TOML file. Raises InvalidInput."""
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read settings from {path}: {reason_text(error)}") from None


def from_environment() -> dict[str, Any]:
    model: Any = Settings  # a plain model: only this function reads the environment
    found = _Environment(model, env_prefix=PREFIX, env_ignore_empty=True, env_parse_none_str="none")()
    if str(found.get("port", "")).startswith(PORTS):
        del found["port"]
    return found


def from_text(pairs: list[str]) -> dict[str, Any]:
    """Parse the arguments of `--set name=value`."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidInput(f"--set takes name=value, not {name[:40]!r}")  # never the value: it may be a secret
        table, _, inner = name.strip().partition(".")
        if inner and (names := known_names(Settings, [table, inner])):
            raise InvalidInput(f'unknown setting {name.strip()}: a table is given as JSON, {table}={{"{names[0]}": …}}')
        found[name.strip()] = read_text(value.strip())
    return found


def read_text(text: str) -> Any:
    """Convert text to a setting value."""
    if text.startswith(("[", "{")):
        try:
            return json.loads(text)
        except ValueError:
            return text  # an address such as [::1]; the validator rejects other text
    return None if text == "none" else text


def unknown_variables() -> list[str]:
    """Return one line for each variable with the prefix that is not a setting."""
    lines = []
    for variable in sorted(os.environ):
        name = variable.upper().removeprefix(PREFIX)
        if variable.upper() == name or name in NOT_SETTINGS or KUBERNETES.fullmatch(name):
            continue
        if name.endswith("_PORT") and os.environ[variable].startswith(PORTS):
            continue
        if name.lower() not in Settings.model_fields:
            lines.append(unknown_setting([name.lower()], Settings, shown=variable))
    return lines


def rows(loaded: LoadedSettings) -> list[dict[str, Any]]:
    """Return name, value, source and description of every setting, without secrets."""
    return [
        {
            "name": name,
            "value": redacted(getattr(loaded.settings, name)),
            "source": loaded.sources[name],
            "description": field.description,
        }
        for name, field in Settings.model_fields.items()
    ]


def _with_source(line: str, sources: Mapping[str, str], config: Path | None) -> str:
    match = re.match(r"(?:unknown setting )?(\w+)", line)
    name = match[1] if match else ""
    where = {"file": str(config), "environment": PREFIX + name.upper(), "flag": "the command line"}
    source = sources.get(name, "default")
    return line if source == "default" else f"{line} (from {where[source]})"


def markdown(model: type[BaseModel] = Settings) -> str:
    """Return the table of a model in docs/reference/settings.md. A test compares the two."""
    lines = ["| setting | default | description |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        lines.append(f"| `{name}` | {default_text(field)} | {field.description} |")
    return "\n".join(lines)


def default_text(field: FieldInfo) -> str:
    """Return a default as Markdown: `none`, a value in backticks, or nothing if it depends on the machine."""
    value = field.get_default()
    may_be_none = type(None) in getattr(field.annotation, "__args__", ())
    if field.is_required() or field.default_factory is not None or (value is None and not may_be_none):
        return ""  # required, or derived as the description says
    if value is None or value in ((), {}):
        return "none"
    validator = next((item.func for item in field.metadata if isinstance(item, BeforeValidator)), None)
    if validator in (byte_size, byte_size_or_zero):
        text = f"{value // 10**6}MB" if value % 10**6 == 0 else f"{value >> 10}KiB"
    elif validator is duration:
        text = f"{value:g}s"
    elif isinstance(value, tuple):
        text = ", ".join(value)
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"


class _Environment(EnvSettingsSource):
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ARG002
        """Parse JSON; other text is left to the validator, because a list may also be "a, b"."""
        return read_text(value)
