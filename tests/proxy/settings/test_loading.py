"""Settings from a file, the environment and flags: precedence and error messages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from knapcache import InvalidInput
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import LoadedSettings, from_text, load, rows


@pytest.fixture(autouse=True)
def environment_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KNAPCACHE_") or name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.delenv(name)


def write_config(folder: Path, text: str) -> Path:
    path = folder / "knapcache.toml"
    path.write_text(text, encoding="utf-8")
    return path


def load_error(*args: Any) -> str:
    with pytest.raises(InvalidInput) as error:
        load(*args)
    return str(error.value)


def test_flags_override_the_environment_and_the_environment_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, 'port = 1\nttl = "1h"\ncapacity = "1GB"\n')
    monkeypatch.setenv("KNAPCACHE_PORT", "2")
    monkeypatch.setenv("KNAPCACHE_TTL", "2h")
    settings, sources = load(config, {"port": 3})
    assert (settings.port, settings.ttl, settings.capacity, settings.wait) == (3, 7200, 10**9, 60)
    assert [sources[name] for name in ("port", "ttl", "capacity", "wait")] == ["flag", "environment", "file", "default"]
    assert list(sources) == list(Settings.model_fields)


def test_the_environment_can_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNAPCACHE_CONFIG", str(write_config(tmp_path, "port = 7\n")))
    assert load().settings.port == 7


def test_a_file_can_have_tables_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", "sk-1")
    config = write_config(
        tmp_path,
        f"""
        host = "0.0.0.0"
        shadows = ["lru"]
        fallback_price = {{ input = 1, output = 2 }}
        [prices."my-model"]
        input = 2.5
        output = 10
        [[upstreams]]
        name = "ours"
        url = "https://llm.example.com/v1"
        key_env = "TEAM_KEY"
        headers = {{ X-Team = "cache" }}
        timeout = "2m"
        [[upstreams]]
        url = "local"
        [[tenants]]
        name = "team-a"
        keys = ["sha256:{"0" * 64}"]
        quota = "50MB"
        """,
    )
    settings = load(config).settings
    assert [u.name for u in settings.upstreams] == ["ours", "local"]
    assert settings.upstreams[0].headers == {"x-team": "cache"}
    assert settings.upstreams[0].timeout == 120
    assert settings.tenants[0].quota == 50_000_000
    assert settings.prices == {"my-model": {"input": 2.5, "output": 10}}


def test_the_environment_can_have_lists_and_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNAPCACHE_SHADOWS", "lru, gdsf-cost")
    monkeypatch.setenv("KNAPCACHE_ALLOWED_HOSTS", '["a.example"]')
    monkeypatch.setenv("KNAPCACHE_UPSTREAMS", '[{"url": "http://h/v1"}]')
    monkeypatch.setenv("KNAPCACHE_FALLBACK_PRICE", "0.01")
    monkeypatch.setenv("KNAPCACHE_HOST", "[::1]")
    monkeypatch.setenv("KNAPCACHE_DASHBOARD", "false")
    monkeypatch.setenv("KNAPCACHE_GRACE", "")  # empty: ignored
    monkeypatch.setenv("knapcache_ttl", "none")
    settings = load().settings
    assert settings.shadows == ("lru", "gdsf-cost")
    assert settings.allowed_hosts == ("a.example", "[::1]")
    assert settings.upstreams[0].url == "http://h/v1"
    assert settings.fallback_price == 0.01
    assert (settings.host, settings.dashboard, settings.grace, settings.ttl) == ("[::1]", False, 30, None)


def test_each_problem_is_one_line_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_config(tmp_path, 'capacity = "lots"\ncolour = "red"\n[[tenants]]\nname = "a"\nkeys = []\n')
    monkeypatch.setenv("KNAPCACHE_PORT", "http")
    monkeypatch.setenv("KNAPCACHE_WORKRES", "2")
    monkeypatch.setenv("KNAPCACHE_UPSTREAMS", '[{"url": "http://h", "headers": {"x": "s3cret"}')
    lines = load_error(config, {"ttl": "0"}).splitlines()
    assert lines == [
        "unknown setting KNAPCACHE_WORKRES: did you mean workers?",
        "port: must be an integer, not 'http' (from KNAPCACHE_PORT)",
        "capacity: must be a number with an optional unit (kB, MB, GB, TB, KiB, MiB, GiB or TiB, in any case), at "
        f"least 1, not 'lots' (from {config})",
        "ttl: must be more than 0 seconds, not '0' (from the command line)",
        "upstreams: must be a list (from KNAPCACHE_UPSTREAMS)",
        "tenants[0].keys: must be one or more digests (sha256: and 64 hex digits), as printed by `knapcache serve "
        f"--hash-key` (from {config})",
        f"unknown setting colour: `knapcache serve --show-settings` lists them (from {config})",
    ]


@pytest.mark.parametrize("content", [b"port = \n", b"\xff\xfe", b"port = 1\nport = 2\n"])
def test_a_file_that_is_not_toml_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    assert load_error(path).startswith(f"cannot read settings from {path}: ")


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    assert "No such file" in load_error(tmp_path / "none.toml")
    assert "directory" in load_error(tmp_path)


def test_kubernetes_service_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNAPCACHE_PORT", "tcp://10.0.0.7:80")
    monkeypatch.setenv("KNAPCACHE_PORT_80_TCP_ADDR", "10.0.0.7")
    monkeypatch.setenv("KNAPCACHE_SERVICE_HOST", "10.0.0.7")
    monkeypatch.setenv("KNAPCACHE_SERVICE_PORT_HTTP", "80")
    assert load().settings.port == 8080


def test_set_arguments_are_parsed() -> None:
    assert from_text(["wait = 5", 'shadows=["lru"]', "ttl=none", "cost=a=b"]) == {
        "wait": "5",
        "shadows": ["lru"],
        "ttl": None,
        "cost": "a=b",
    }
    for pair in ("wait", "=5", ""):
        with pytest.raises(InvalidInput, match="--set takes name=value"):
            from_text([pair])


def test_rows_contain_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", "s3cret-1")
    flags = {
        "admin_token": "s3cret-admin-token",
        "upstreams": [{"url": "http://h", "key_env": "TEAM_KEY", "headers": {"x-pass": "s3cret-2"}}],
        "tenants": [{"name": "a", "keys": ["sha256:" + "5" * 64]}],
    }
    loaded = load(None, flags)
    assert isinstance(loaded, LoadedSettings)
    by_name = {row["name"]: row for row in rows(loaded)}
    assert list(by_name) == list(Settings.model_fields)
    assert all(row["description"] for row in by_name.values())
    assert "s3cret" not in str(by_name)
    assert "5" * 64 not in str(by_name)
    assert by_name["admin_token"]["value"] == "(not shown)"
    assert by_name["upstreams"]["value"][0]["headers"] == {"x-pass": "(not shown)"}
    assert by_name["upstreams"]["source"] == "flag"


def test_commands_that_serve_nothing_need_no_secrets(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        """local_model = "/none/model.gguf"
        [[upstreams]]
        url = "https://llm.example.com/v1"
        key_env = "PROVIDER_KEY"
        ca_file = "/none/ca.pem"
        client_cert = "/none/cert.pem"
        [[admin_tokens]]
        name = "grafana"
        token_env = "GRAFANA_TOKEN"
        """,
    )
    error = load_error(config)
    for name in ("PROVIDER_KEY", "ca_file", "client_cert", "GRAFANA_TOKEN", "local_model"):
        assert name in error
    assert load(config, secrets=False).settings.upstreams[0].key_env == "PROVIDER_KEY"
    assert load_error(config) == error, "only that call does without"
