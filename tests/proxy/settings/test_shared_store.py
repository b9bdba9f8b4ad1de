"""The settings `store` and `secret`, and the admin token that follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from knapcache.errors import InvalidInput
from knapcache.proxy.admin.tokens import AdminTokens
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.proxy.run import stored_admin_token, token_hint
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import load, rows
from knapcache.proxy.settings.secrets import server_secret
from knapcache.proxy.settings.tables import secret_fields
from knapcache.proxy.settings.value_types import store_address
from knapcache.store.redis.urls import shown_url

PASSWORD = "hunter2-of-the-engine"
URL = f"redis://:{PASSWORD}@engine:6400/1?prefix=team"
SECRET = "0123456789abcdef" * 4


def shared(path: Path, **values: Any) -> Settings:
    return Settings(path=path, store=URL, upstreams=[{"url": "http://127.0.0.1:9/v1"}], **values)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"redis://:{PASSWORD}@engine/x", "must be a number"),
        (f"redis://:1?{PASSWORD}@engine", "each of the options"),
        (f"postgres://:{PASSWORD}@engine", "must be redis://HOST"),
        ("cache.sqlite", "must be redis://HOST"),
        ("memory:", "must be redis://HOST"),
    ],
)
def test_a_url_that_cannot_be_parsed_is_one_error_without_the_password(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^store: .*{message}") as raised:
        Settings(store=url)
    assert PASSWORD not in str(raised.value)


def test_no_value_of_a_secret_setting_is_in_an_error() -> None:
    secret = {name for name, field in Settings.model_fields.items() if "SecretStr" in repr(field.annotation)}
    assert {"admin_token", "secret", "store"} <= secret <= secret_fields(Settings)


def test_url_and_secret_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNAPCACHE_STORE", URL)
    monkeypatch.setenv("KNAPCACHE_SECRET", SECRET)
    loaded = load()
    shown = {row["name"]: row["value"] for row in rows(loaded)}
    assert shown["store"] == shown["secret"] == "(not shown)"
    assert PASSWORD not in repr(loaded)
    assert SECRET not in repr(loaded)


def test_variables_of_the_engine_and_of_kubernetes_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE_USER", "STORE_PASSWORD", "SENTINEL_USER", "SENTINEL_PASSWORD", "VALKEY_SERVICE_HOST"):
        monkeypatch.setenv(f"KNAPCACHE_{name}", "text")
    monkeypatch.setenv("KNAPCACHE_VALKEY_PORT", "tcp://10.0.0.1:6379")
    monkeypatch.setenv("KNAPCACHE_VALKEY_PORT_6379_TCP_ADDR", "10.0.0.1")
    load()
    monkeypatch.setenv("KNAPCACHE_LISTEN_PORT", "9000")
    with pytest.raises(InvalidInput, match="unknown setting KNAPCACHE_LISTEN_PORT"):
        load()


def test_a_store_and_memory_only_cannot_be_combined() -> None:
    with pytest.raises(InvalidInput, match="memory_only: cannot be combined with store"):
        Settings(store=URL, memory_only=True)


@pytest.mark.parametrize("secret", ["", "0" * 63, "0" * 65, "g" * 64])
def test_a_secret_is_64_hex_digits(secret: str) -> None:
    with pytest.raises(InvalidInput, match="secret: must be 64 hex digits"):
        Settings(secret=secret)


def test_the_secret_of_the_settings_is_used_instead_of_that_in_the_data_directory(tmp_path: Path) -> None:
    settings = Settings(secret=SecretStr(SECRET.upper()))
    assert settings.secret is not None
    assert server_secret(tmp_path, settings.secret.get_secret_value()) == bytes.fromhex(SECRET)
    assert not list(tmp_path.iterdir())


def test_with_a_shared_store_and_a_secret_every_proxy_has_the_same_token(tmp_path: Path) -> None:
    first, second = (shared(tmp_path / name, secret=SECRET) for name in "ab")
    token = stored_admin_token(first)
    assert token is not None
    assert token == stored_admin_token(second) == (tmp_path / "b" / "admin-token").read_text().strip()
    assert str(tmp_path / "a" / "admin-token") in token_hint(first, token)
    assert stored_admin_token(shared(tmp_path / "a", secret="f" * 64)) != token
    assert stored_admin_token(shared(tmp_path / "c")) != stored_admin_token(shared(tmp_path / "d"))
    assert stored_admin_token(shared(tmp_path / "a", secret=SECRET, admin_token="x" * 20)) == "x" * 20


def test_a_derived_token_cannot_be_rotated_at_one_proxy(tmp_path: Path) -> None:
    settings = shared(tmp_path, secret=SECRET)
    tokens = AdminTokens(settings, tmp_path, "unused")
    assert tokens.find(stored_admin_token(settings) or "") is not None
    with pytest.raises(RequestRejected, match="change secret, or set admin_token") as raised:
        tokens.rotate("admin")
    assert raised.value.status == 409


@pytest.mark.parametrize(
    ("url", "place"),
    [
        (URL, "redis://engine:6400/1"),
        ("rediss://[::1]", "rediss://[::1]:6379"),
        ("unix:///run/valkey.sock", "redis+unix:///run/valkey.sock"),
        ("VALKEY+cluster://a,b:7000", "redis+cluster://a:6379,b:7000"),
        ("redis+sentinel://:pw@a/main", "redis+sentinel://a:26379/main"),
    ],
)
def test_the_place_of_a_store_has_no_password(url: str, place: str) -> None:
    assert shown_url(store_address(url)) == place
