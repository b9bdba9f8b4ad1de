"""Settings from where people put them: flags beat the environment, which beats the file, which beats the defaults.

A setting is taken whole from the first of these that has it; lists and tables of two places are not mixed. Text, of the
environment and of `--set`, is JSON where it begins like a list or a table, `none` for nothing, and itself otherwise.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from knapcache.errors import InvalidInput
from knapcache.serve.settings import Settings, TenantSettings, UpstreamSettings
from knapcache.serve.settings.forms import room, seconds
from knapcache.serve.settings.problems import near

PREFIX = "KNAPCACHE_"
CONFIG = PREFIX + "CONFIG"
NOT_SETTINGS = {"CONFIG", "COMPILE", "KERNEL_CACHE", "TRACES"}
"""Variables with our prefix that others read."""
KUBERNETES = re.compile(r"SERVICE_(HOST|PORT)(_\w+)?|PORT_[0-9]+_\w+")
"""Variables that Kubernetes sets in every container beside a service called knapcache; KNAPCACHE_PORT is one, too."""


class Loaded(NamedTuple):
    """Settings, and where each came from."""

    settings: Settings
    sources: dict[str, str]
    """default, file, environment or flag."""


def load(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Loaded:
    """Read all of them. InvalidInput has a line for each problem."""
    if config is None and os.environ.get(CONFIG):
        config = Path(os.environ[CONFIG])
    layers = {"file": from_file(config), "environment": from_environment(), "flag": dict(flags or {})}
    given = {name: value for layer in layers.values() for name, value in layer.items()}
    sources = dict.fromkeys(Settings.model_fields, "default")
    sources |= {name: layer for layer, values in layers.items() for name in values}
    lines = unknown_variables()
    try:
        settings = Settings(**given)
    except InvalidInput as error:
        lines += [_with_source(line, sources, config) for line in str(error).splitlines()]
    if lines:
        raise InvalidInput("\n".join(lines))
    return Loaded(settings, sources)


def from_file(path: Path | None) -> dict[str, Any]:
    """What a TOML file says."""
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:  # not there, not TOML, not text
        raise InvalidInput(f"the settings cannot be read from {path}: {error}") from None


def from_environment() -> dict[str, Any]:
    """What the environment says."""
    found = _Environment(Settings, env_prefix=PREFIX, env_ignore_empty=True, env_parse_none_str="none")()
    if str(found.get("port", "")).startswith(("tcp://", "udp://")):  # Kubernetes' word for another's address
        del found["port"]
    return found


def from_text(pairs: list[str]) -> dict[str, Any]:
    """What `--set name=value` says, of any setting."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidInput(f"--set takes name=value, not {name[:40]!r}")  # of a value only what cannot be one
        found[name.strip()] = read_text(value.strip())
    return found


def read_text(text: str) -> Any:
    """A value, from text."""
    if text.startswith(("[", "{")):
        try:
            return json.loads(text)
        except ValueError:
            return text  # an address such as [::1]; or the setting says what it wants instead
    return None if text == "none" else text


def unknown_variables() -> list[str]:
    """A line for each variable with our prefix that is no setting."""
    lines = []
    for variable in sorted(os.environ):
        name = variable.upper().removeprefix(PREFIX)
        if variable.upper() == name or name in NOT_SETTINGS or KUBERNETES.fullmatch(name):
            continue
        if name.lower() not in Settings.model_fields:
            lines.append(f"{variable} is no setting{near(name.lower(), list(Settings.model_fields))}")
    return lines


def rows(loaded: Loaded) -> list[dict[str, Any]]:
    """name, value, source, description of every setting, secrets left out."""
    return [
        {
            "name": name,
            "value": shown(getattr(loaded.settings, name)),
            "source": loaded.sources[name],
            "description": field.description,
        }
        for name, field in Settings.model_fields.items()
    ]


def shown(value: Any) -> Any:
    """A value as JSON has it, and as anybody may see it."""
    if isinstance(value, SecretStr):
        return "(not shown)"
    if isinstance(value, UpstreamSettings):
        return {**_fields(value), "headers": dict.fromkeys(value.headers, "(not shown)")}
    if isinstance(value, TenantSettings):
        return {**_fields(value), "keys": f"{len(value.keys)} (not shown)"}
    if isinstance(value, tuple):
        return [shown(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _fields(value: BaseModel) -> dict[str, Any]:
    return {name: shown(getattr(value, name)) for name in type(value).model_fields}


def _with_source(line: str, sources: Mapping[str, str], config: Path | None) -> str:
    match = re.match(r"\w+", line)
    name = match[0] if match else ""
    where = {"file": str(config), "environment": PREFIX + name.upper(), "flag": "the command line"}
    source = sources.get(name, "default")
    return line if source == "default" else f"{line} (from {where[source]})"


def markdown(model: type[BaseModel] = Settings) -> str:
    """The table of docs/guides/operations.md, which a test compares with this one."""
    lines = ["| setting | default | what it is for |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        lines.append(f"| `{name}` | {_default(field)} | {field.description} |")
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    """A default, the same on every machine."""
    value = field.get_default()
    may_be_none = type(None) in getattr(field.annotation, "__args__", ())
    if field.is_required() or field.default_factory is not None or (value is None and not may_be_none):
        return ""  # there is none, or the right column says what it depends on
    if value is None or value in ((), {}):
        return "none"
    form = next((outcome.func for outcome in field.metadata if isinstance(outcome, BeforeValidator)), None)
    if form is room:
        text = f"{value // 10**6}MB" if value % 10**6 == 0 else f"{value >> 10}KiB"
    elif form is seconds:
        text = f"{value:g}s"
    elif isinstance(value, tuple):
        text = ", ".join(value)
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"


class _Environment(EnvSettingsSource):
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ARG002
        """Lists may also be written as "a, b": what is no JSON is left to the setting."""
        return read_text(value)
