"""Settings of an upstream: URLs, TLS files and proxies are validated, and secrets are not shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import LoadedSettings, load, rows
from tests.support.certificates import Certificate, make_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls") / "client", "DNS:client.test")


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls") / "encrypted", "DNS:client.test", password="hunter2")


def settings(**fields: Any) -> Settings:
    return Settings(upstreams=[{"url": "https://api.example.com/v1", **fields}])


def settings_error(**fields: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        settings(**fields)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_tls_files_are_accepted(certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = tmp_path / "both.pem"
    both.write_text(certificate.cert.read_text() + certificate.key.read_text())
    (upstream,) = settings(ca_file=certificate.cert, client_cert=certificate.cert, client_key=certificate.key).upstreams
    assert (upstream.ca_file, upstream.client_key) == (certificate.cert, certificate.key)
    monkeypatch.setenv("HOME", str(tmp_path))
    (upstream,) = settings(client_cert="~/both.pem").upstreams
    assert (upstream.client_cert, upstream.client_key) == (both, None)


def test_unusable_tls_files_are_rejected(certificate: Certificate, encrypted: Certificate, tmp_path: Path) -> None:
    text, missing = tmp_path / "text.pem", tmp_path / "missing.pem"
    text.write_text("no certificate")
    start = "upstreams[0].ca_file: must be a readable PEM file with certificates: "
    assert settings_error(ca_file=missing).startswith(f"{start}No such file or directory")
    assert settings_error(ca_file=tmp_path).startswith(start)
    assert settings_error(ca_file=text).startswith(start)
    pair = "upstreams[0].client_key: client_cert and client_key must be readable PEM files of one key pair"
    assert settings_error(client_cert=missing).startswith(pair)
    assert settings_error(client_cert=certificate.cert, client_key=missing).startswith(pair)
    assert settings_error(client_cert=certificate.cert).startswith(pair)  # without a key
    assert settings_error(client_cert=certificate.cert, client_key=encrypted.key).startswith(pair)
    assert settings_error(client_cert=encrypted.cert, client_key=encrypted.key).startswith(
        pair
    )  # never asks for the password
    assert settings_error(client_key=certificate.key).startswith("upstreams[0].client_key: needs client_cert")


@pytest.mark.parametrize("url", ["socks5://user:hunter2@p:1", "http://user:hunter2@", "http://user:hunter2@p:99999"])
def test_the_error_of_an_invalid_proxy_does_not_show_it(url: str) -> None:
    line = settings_error(proxy=url)
    assert line.startswith("upstreams[0].proxy: must be the URL of a proxy")
    assert "hunter2" not in line


def test_listed_settings_do_not_show_the_proxy(tmp_path: Path) -> None:
    config = tmp_path / "proxy.toml"
    config.write_text('[[upstreams]]\nurl = "https://api.example.com"\nproxy = "http://user:hunter2@p:1"\n')
    loaded = load(config)
    assert isinstance(loaded, LoadedSettings)
    assert "hunter2" not in json.dumps(rows(loaded)) + repr(loaded) + str(loaded.settings.upstreams[0])
    secret = loaded.settings.upstreams[0].proxy
    assert secret is not None
    assert secret.get_secret_value() == "http://user:hunter2@p:1"


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example", "ü..de", "[::1", "a b"])
def test_invalid_host_names_are_rejected(host: str) -> None:
    assert settings_error(name="n", url=f"https://{host}/v1").startswith("upstreams[0].url: must be a URL")
    assert settings_error(proxy=f"http://{host}:1").startswith("upstreams[0].proxy: must be the URL of a proxy")


@pytest.mark.parametrize(
    "host", ["api.example.com", "api.example.com.", "10.0.0.1", "[::1]", "my_host", "bücher.example"]
)
def test_valid_host_names_are_accepted(host: str) -> None:
    assert settings(url=f"https://{host}:8443/v1").upstreams[0].url == f"https://{host}:8443/v1"


def test_the_total_timeout_defaults_to_one_hour() -> None:
    assert settings().upstreams[0].total_timeout == 3600.0
    assert settings(total_timeout="2h").upstreams[0].total_timeout == 7200.0
    assert "total_timeout: must be more than 0 seconds" in settings_error(total_timeout=0)
