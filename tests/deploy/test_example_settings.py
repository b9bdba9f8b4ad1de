"""`deploy/knapcache.example.toml` has every setting, and all of its lines are valid."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from knapcache.proxy.settings import AdminTokenSettings, Settings, TenantSettings, UpstreamSettings
from knapcache.proxy.settings.loading import default_text, load
from tests.support.certificates import make_certificate

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy" / "knapcache.example.toml"


def uncommented() -> str:
    """The example with every setting switched on. A comment's text starts with a space."""
    return re.sub(r"^#(?=[^ \n])", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_example_is_what_the_settings_model_says() -> None:
    generator: Any = runpy.run_path(str(ROOT / "deploy" / "example_settings.py"))
    assert EXAMPLE.read_text(encoding="utf-8") == generator["page"](), "run python deploy/example_settings.py"


def test_the_example_changes_nothing_as_it_is() -> None:
    assert tomllib.loads(EXAMPLE.read_text(encoding="utf-8")) == {}


def test_the_example_has_every_setting() -> None:
    values = tomllib.loads(uncommented())
    models: dict[str, type[BaseModel]] = {
        "upstreams": UpstreamSettings,
        "tenants": TenantSettings,
        "admin_tokens": AdminTokenSettings,
    }
    assert values.keys() == Settings.model_fields.keys()
    for name, model in models.items():
        assert {field for table in values[name] for field in table} == model.model_fields.keys()


def test_every_line_of_the_example_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path / "tls", "DNS:llm.example.com")
    files = {
        "/etc/knapcache/cert.pem": certificate.cert,
        "/etc/knapcache/key.pem": certificate.key,
        "/etc/knapcache/ca.pem": certificate.cert,
        "/etc/knapcache/client.pem": certificate.cert,
        "/etc/knapcache/client-key.pem": certificate.key,
        "/var/lib/knapcache/model.gguf": certificate.cert,  # only its existence is checked
    }
    text = re.sub(r'(?m)^secret = "replace-this.*"$', f'secret = "{"5e" * 32}"', uncommented())
    for name, file in files.items():
        assert f'"{name}"' in text
        text = text.replace(f'"{name}"', f'"{file}"')
    for variable in ("OPENAI_API_KEY", "CACHE_ENCRYPTION_KEY", "GRAFANA_TOKEN"):
        assert f'"{variable}"' in text
        monkeypatch.setenv(variable, "0123456789abcdef-secret")
    config = tmp_path / "knapcache.toml"
    config.write_text(text, encoding="utf-8")
    settings = load(config).settings
    for model, values in (
        (Settings, settings),
        (UpstreamSettings, settings.upstreams[0]),
        (TenantSettings, settings.tenants[0]),
        (AdminTokenSettings, settings.admin_tokens[0]),
    ):
        fixed = [name for name, field in model.model_fields.items() if default_text(field) not in ("", "none")]
        for name in fixed:
            assert getattr(values, name) == model.model_fields[name].get_default(), (
                f"{name} is not shown with its default"
            )
