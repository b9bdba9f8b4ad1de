"""Writes `knapcache.example.toml` from the settings model: `python deploy/example_settings.py`. A test compares them.

Text starts with "# ", a setting with "#", so that removing "#" at the start of a line switches a setting on.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from knapcache.features.webhooks.settings import WebhookSettings
from knapcache.proxy.feature_list import feature_specs
from knapcache.proxy.settings import AdminTokenSettings, RouteSettings, Settings, TenantSettings, UpstreamSettings
from knapcache.proxy.settings.composition import feature_models
from knapcache.proxy.settings.loading import default_text

FILE = Path(__file__).resolve().parent / "knapcache.example.toml"
WIDTH = 100
DIGEST = "sha256:5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5"

HEAD = """\
# Settings of `knapcache serve`, all of them. Every setting is commented out.
# To use one, remove the # at the start of its line, then:
#
#     knapcache serve --config knapcache.toml --show-settings     # checks the file, shows every value and its source
#     knapcache serve --config knapcache.toml
#
# Where a default is a fixed value, the line shows it. Other lines show an example.
# Sizes are written 4096, 64k, 256MB, 1.5GiB; durations 90 (seconds), 15m, 12h, 30d.
# A flag or an environment variable (KNAPCACHE_PORT=9000) overrides this file.
# Written by `python deploy/example_settings.py` from the settings model.
"""
GROUPS = {
    "host": "Server",
    "capacity": "Cache",
    "share_all": "Requests",
    "max_body": "Limits of requests and connections",
    "admin_token": "Administration",
    "local_model": "The embedded model",
}
"""Headings, each before the setting with which its group begins. Features have groups of their own."""
TABLES: dict[str, tuple[type[BaseModel], str, str]] = {
    "upstreams": (UpstreamSettings, "Upstreams", "One [[upstreams]] for each of them."),
    "tenants": (
        TenantSettings,
        "Tenants",
        "One [[tenants]] for each of them. `knapcache serve --new-key NAME` makes a key.",
    ),
    "route": (RouteSettings, "Routes", "One [[route]] for each of them. The first that a request meets applies."),
    "webhook": (
        WebhookSettings,
        "Webhooks",
        "One [[webhook]] for each. `knapcache webhook test` sends an event.",
    ),
    "admin_tokens": (
        AdminTokenSettings,
        "Admin tokens",
        "One [[admin_tokens]] for each of them. `knapcache serve --new-token NAME` makes a token.",
    ),
}
"""Settings that are lists of tables: the model of a table, a heading, and how to add one."""
ALTERNATIVES = ("digest", "token_env", "token_file")
"""Of these fields, a table has exactly one."""
PRICES = {"gpt-4o": {"input": 2.5, "cache_read": 1.25, "output": 10.0}}
EXAMPLES: dict[str, Any] = {
    "path": "/var/lib/knapcache",
    "tls_cert": "/etc/knapcache/cert.pem",
    "tls_key": "/etc/knapcache/key.pem",
    "ttl": "30d",
    "encryption_key_env": "CACHE_ENCRYPTION_KEY",
    "encryption_key_file": "/etc/knapcache/encryption.key",
    "secret": "replace-this-with-the-output-of-openssl-rand-hex-32",
    "store": "redis://valkey.internal:6379",
    "fallback_price": {"input": 2.5, "output": 10.0},
    "allow_anonymous": False,
    "passthrough": ["GET /v1/models", "GET /v1/models/*"],
    "ignored_headers": ["x-request-id", "x-trace-*"],
    "semantic_judge": "gpt-4o-mini",
    "semantic_embeddings": "https://api.openai.com/v1",
    "semantic_embeddings_model": "text-embedding-3-small",
    "semantic_embeddings_key_env": "OPENAI_API_KEY",
    "limits": {
        "usd_per_day": 50.0,
        "usd_per_month": 1000.0,
        "requests_per_minute": 1000,
        "tokens_per_minute": 2_000_000,
        "concurrent": 200,
    },
    "max_connections_per_address": 1024,
    "admin_token": "replace-this-with-a-long-random-text",
    "allowed_hosts": ["llm.example.com", "localhost"],
    "allowed_origins": ["https://app.example.com"],
    "trusted_proxies": ["127.0.0.1", "10.0.0.0/8"],
    "metrics_public": False,
    "otlp_endpoint": "http://localhost:4318",
    "local_model": "/var/lib/knapcache/model.gguf",
    "upstreams.name": "openai",
    "upstreams.url": "https://api.openai.com/v1",
    "upstreams.key_env": "OPENAI_API_KEY",
    "upstreams.headers": {"openai-organization": "org-example"},
    "upstreams.proxy": "http://proxy.example.com:3128",
    "upstreams.ca_file": "/etc/knapcache/ca.pem",
    "upstreams.client_cert": "/etc/knapcache/client.pem",
    "upstreams.client_key": "/etc/knapcache/client-key.pem",
    "tenants.name": "team-a",
    "tenants.keys": [DIGEST],
    "tenants.group": "research",
    "tenants.quota": "50MB",
    "tenants.limits": {"usd_per_day": 5.0, "requests_per_minute": 60, "tokens_per_minute": 100_000},
    "tenants.semantic": "shadow",
    "tenants.semantic_error": 0.02,
    "webhook.name": "ops",
    "webhook.url": "https://hooks.example.com/knapcache",
    "webhook.events": ["limit_reached", "upstream_down", "upstream_recovered"],
    "webhook.secret_env": "WEBHOOK_SECRET",
    "route.name": "experiments",
    "route.model": ["gpt-4o*"],
    "route.endpoint": ["chat/completions"],
    "route.tenant": ["team-a"],
    "route.header": {"x-feature": "search*"},
    "route.field": {"metadata.purpose": "eval"},
    "route.ttl": "1h",
    "route.max_temperature": 0.5,
    "route.tags": ["experiments"],
    "route.namespace": "experiments",
    "route.upstreams": ["openai"],
    "route.prefix": "off",
    "route.swap_model": "gpt-4o-mini",
    "route.swap_judge": "gpt-4.1",
    "route.swap_escalate": ["empty", "length", "refusal"],
    "route.semantic": "off",
    "route.semantic_error": 0.02,
    "admin_tokens.name": "grafana",
    "admin_tokens.digest": DIGEST,
    "admin_tokens.token_env": "GRAFANA_TOKEN",
    "admin_tokens.token_file": "/run/secrets/grafana-token",
}
"""Values of settings whose default is no value or depends on the machine."""


def toml(value: Any) -> str:
    """Return a value in TOML. Texts and lists of texts are written as in JSON."""
    if isinstance(value, dict):
        names = (name if re.fullmatch(r"[\w-]+", name) else json.dumps(name) for name in value)
        return (
            "{ " + ", ".join(f"{name} = {toml(item)}" for name, item in zip(names, value.values(), strict=True)) + " }"
        )
    return json.dumps(value, ensure_ascii=False)


def comment(text: str) -> list[str]:
    """Return a text as comment lines. A default stays on one line with its label."""
    text = re.sub(r"Default: \S+( Example:)?", lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def sentence(text: str) -> str:
    """Return a description as a sentence. A value at its beginning, such as "read-only:", keeps its case."""
    return (text if text.split()[0].endswith(":") else text[0].upper() + text[1:]) + "."


def setting(name: str, field: FieldInfo, table: str = "") -> list[str]:
    """Return the description of a setting, its default, and the line that sets it."""
    shown = default_text(field).strip("`")
    description = sentence(str(field.description))
    if "default:" in description:  # the description says how it is derived
        default = ""
    else:
        default = f" Default: {shown}." if shown else " Required."
    example = EXAMPLES.get(f"{table}.{name}" if table else name)
    if example is not None:
        return [*comment(f"{description}{default} Example:"), f"#{name} = {toml(example)}"]
    if shown in ("", "none"):
        raise SystemExit(f"deploy/example_settings.py: EXAMPLES needs a value for {name}: it has no default to show")
    value = field.get_default()
    fixed = value if isinstance(value, (bool, int, tuple)) and not shown.endswith("B") else shown
    return [*comment(f"{description}{default}"), f"#{name} = {toml(fixed)}"]


def heading(title: str) -> list[str]:
    """Return the line above a group of settings."""
    return ["", f"# ---- {title} ".ljust(WIDTH, "-")]


def tables(name: str, model: type[BaseModel], how: str) -> Iterable[str]:
    """Yield the lines of a list of tables: one table, or one for each of the alternatives."""
    yield from ("", *comment(f"{sentence(str(Settings.model_fields[name].description))} {how} Default: none. Example:"))
    fields = model.model_fields
    alternatives = [field for field in ALTERNATIVES if field in fields]
    yield f"#[[{name}]]"
    for field, info in fields.items():
        if field not in alternatives[1:]:
            yield from setting(field, info, name)
    for k, field in enumerate(alternatives[1:], 2):
        yield from ("", f"#[[{name}]]", f"#name = {toml(EXAMPLES[f'{name}.name'] + f'-{k}')}")
        yield from setting(field, fields[field], name)


def page() -> str:
    """Return the whole file."""
    lines = [HEAD.rstrip("\n")]
    models = feature_models("settings")
    first = {next(iter(models[spec.name].model_fields)): spec.title for spec in feature_specs() if spec.name in models}
    groups = GROUPS | first
    for name, field in Settings.model_fields.items():
        if name in TABLES or name == "prices":
            continue
        if name in groups:
            lines += heading(groups[name])
        lines += ["", *setting(name, field)]
    lines += [*heading("Prices"), ""]
    lines += comment(f"{sentence(str(Settings.model_fields['prices'].description))} Default: none. Example:")
    for model, price in PRICES.items():
        lines += [f"#[prices.{toml(model)}]", *(f"#{kind} = {toml(amount)}" for kind, amount in price.items())]
    for name, (kind, title, how) in TABLES.items():
        lines += [*heading(title), *tables(name, kind, how)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
