"""Which proxy applies: the environment's variables, NO_PROXY, and the setting of an upstream."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.proxy.settings import UpstreamSettings
from knapcache.proxy.upstream.connection import Origin
from knapcache.proxy.upstream.proxies import HttpProxy, bypasses_proxy, environment_proxy
from knapcache.proxy.upstream.upstream import Upstream, proxy_of
from tests.support.programs import find_module

HTTPS, HTTP = Origin("api.example.com", 443, True), Origin("api.example.com", 80, False)
NAMES = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("variables", "https", "http"),
    [
        ({}, None, None),
        ({"HTTPS_PROXY": "http://p:1"}, "http://p:1", None),
        ({"https_proxy": "http://p:1"}, "http://p:1", None),
        ({"HTTPS_PROXY": "http://p:1", "https_proxy": "http://q:2"}, "http://q:2", None),
        ({"HTTP_PROXY": "http://p:1"}, None, "http://p:1"),
        ({"http_proxy": "http://p:1"}, None, "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, None, None),
        ({"http_proxy": "http://p:1", "REQUEST_METHOD": "GET"}, None, "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, "http://p:1", None),
        ({"ALL_PROXY": "http://p:1"}, "http://p:1", "http://p:1"),
        ({"all_proxy": "https://p:1", "http_proxy": "http://q:2"}, "https://p:1", "http://q:2"),
        ({"ALL_PROXY": "http://p:1", "https_proxy": ""}, "http://p:1", "http://p:1"),
        ({"HTTPS_PROXY": "p.example:3128"}, "http://p.example:3128", None),
        ({"HTTPS_PROXY": "http://p.example"}, "http://p.example:80", None),
        ({"HTTPS_PROXY": "https://p.example/"}, "https://p.example:443", None),
        ({"HTTPS_PROXY": "http://[::1]:3128"}, "http://[::1]:3128", None),
        ({"HTTPS_PROXY": "http://user:pass@p:1"}, "http://p:1", None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example.com"}, None, None),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": "other.com"}, "http://p:1", None),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": "other.com", "NO_PROXY": "*"}, "http://p:1", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "api.example.com:443"}, None, "http://p:1"),
    ],
)
def test_variables(
    variables: dict[str, str], https: str | None, http: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for origin, expected in ((HTTPS, https), (HTTP, http)):
        found = environment_proxy(origin)
        assert (None if found is None else str(found)) == expected


NO_PROXY = [
    # host, port, NO_PROXY, bypassed
    ("example.com", 443, "", False),
    ("example.com", 443, "*", True),
    ("example.com", 443, "other.com, *", True),
    ("example.com", 443, "example.com", True),
    ("Example.COM", 443, "eXample.com", True),
    ("example.com.", 443, "example.com", True),
    ("example.com", 443, "example.com.", True),
    ("api.example.com", 443, "example.com", True),
    ("api.example.com", 443, ".example.com", True),
    ("api.example.com", 443, "*.example.com", True),
    ("a.b.example.com", 443, "example.com", True),
    ("example.com", 443, ".example.com", True),
    ("notexample.com", 443, "example.com", False),
    ("notexample.com", 443, ".example.com", False),
    ("example.com", 443, "api.example.com", False),
    ("example.com.evil.net", 443, "example.com", False),
    ("example.com", 443, "example", False),
    ("com", 443, "example.com", False),
    ("example.com", 443, "a.com,example.com", True),
    ("example.com", 443, " a.com , example.com ", True),
    ("example.com", 443, "a.com example.com", True),
    ("example.com", 443, "a.com,,b.com", False),
    ("example.com", 443, ".", False),
    ("example.com", 443, "*.", False),
    ("example.com", 443, "example.com:443", True),
    ("api.example.com", 443, "example.com:443", True),
    ("example.com", 8443, "example.com:443", False),
    ("localhost", 80, "", False),
    ("localhost", 80, "localhost", True),
    ("127.0.0.1", 80, "localhost", False),
    ("127.0.0.1", 80, "", False),
    ("127.0.0.1", 80, "127.0.0.1", True),
    ("127.0.0.1", 80, "127.0.0.1:80", True),
    ("127.0.0.1", 81, "127.0.0.1:80", False),
    ("127.0.0.1", 80, "0.0.1", False),
    ("127.0.0.1", 80, "1", False),
    ("10.1.2.3", 80, "10.0.0.0/8", True),
    ("11.1.2.3", 80, "10.0.0.0/8", False),
    ("10.1.2.3", 80, "10.1.2.4/31", False),
    ("10.1.2.5", 80, "10.1.2.4/31", True),
    ("10.1.2.3", 80, "10.1.2.3/8", True),
    ("10.1.2.3", 80, "10.0.0.0/99", False),
    ("10.1.2.3", 80, "nonsense/8", False),
    ("ten.example.com", 80, "10.0.0.0/8", False),
    ("10.1.2.3", 80, "::/0", False),
    ("::1", 80, "::1", True),
    ("::1", 80, "[::1]", True),
    ("::1", 80, "[::1]:80", True),
    ("::1", 81, "[::1]:80", False),
    ("0:0:0:0:0:0:0:1", 80, "::1", True),
    ("2001:db8::7", 80, "2001:db8::/32", True),
    ("2001:db9::7", 80, "2001:db8::/32", False),
    ("::ffff:10.1.2.3", 80, "10.0.0.0/8", True),
]


@pytest.mark.parametrize(("host", "port", "no_proxy", "bypassed"), NO_PROXY)
def test_no_proxy(host: str, port: int, no_proxy: str, bypassed: bool) -> None:
    assert bypasses_proxy(host, port, no_proxy) == bypassed


DIFFERENT_IN_URLLIB = (" example.com", "*.example.com", "example.com.", "/", "0.0.1", "1", "::", "other.com, *")
"""Parts of entries that urllib treats otherwise: no spaces as separators, no networks, suffixes of addresses."""


@pytest.mark.parametrize(
    ("host", "port", "no_proxy", "bypassed"),
    [row for row in NO_PROXY if not any(part in row[2] for part in DIFFERENT_IN_URLLIB) and not row[0].endswith(".")],
)
def test_no_proxy_agrees_with_urllib(host: str, port: int, no_proxy: str, bypassed: bool) -> None:
    found = urllib.request.proxy_bypass_environment(f"{host}:{port}", {"no": no_proxy})  # type: ignore[attr-defined]
    assert bool(found) == bypassed


DIFFERENT_IN_REQUESTS = ("*", " ", "/99", "nonsense", "1", "::", "example.com.", ".example.com", "10.1.2.3/8")


@pytest.mark.parametrize(
    ("host", "port", "no_proxy", "bypassed"),
    [
        row
        for row in NO_PROXY
        if (not any(part in row[2] for part in DIFFERENT_IN_REQUESTS) or row[2].startswith("10.0.0.0/8"))
        and not row[0].startswith(("not", "Ex"))  # it matches suffixes of names, and capitals
        and ":" not in row[0]
        and not row[0].endswith(".")
        and not (":443" in row[2] and row[1] == 443 and row[0] != "example.com")
    ],
)
def test_no_proxy_agrees_with_requests(host: str, port: int, no_proxy: str, bypassed: bool) -> None:
    utils = find_module("requests.utils", "the package requests")
    assert utils.should_bypass_proxies(f"http://{host}:{port}/", no_proxy) == bypassed


@pytest.mark.parametrize(
    "url", ["socks5://p:1080", "ftp://p", "http://", "http://p:99999", "http://us er@p", "http://["]
)
def test_a_proxy_that_cannot_be_used_is_refused_without_showing_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = url.replace("://", "://user:hunter2@") if "@" not in url else url
    monkeypatch.setenv("ALL_PROXY", secret)
    with pytest.raises(InvalidInput, match="ALL_PROXY: must be the URL of a proxy") as caught:
        environment_proxy(HTTPS)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidInput):
        HttpProxy.parse(secret)


def upstream_settings(**fields: Any) -> UpstreamSettings:
    return UpstreamSettings.model_validate({"url": "https://api.example.com/v1", **fields})


def test_the_setting_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://environment:1")
    assert str(proxy_of(upstream_settings())) == "http://environment:1"
    assert str(proxy_of(upstream_settings(proxy="https://user:pass@setting:2"))) == "https://setting:2"
    assert proxy_of(upstream_settings(proxy="")) is None
    monkeypatch.setenv("NO_PROXY", "*")
    assert proxy_of(upstream_settings()) is None
    assert str(proxy_of(upstream_settings(proxy="setting:2"))) == "http://setting:2"


class Model:
    async def ready(self) -> str:
        raise AssertionError


def test_the_embedded_model_never_uses_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://environment:1")
    assert Upstream(upstream_settings()).client._proxy is not None
    assert Upstream(upstream_settings(url="local"), Model()).client._proxy is None


def test_the_log_names_the_proxy_without_credentials(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:hunter2@proxy.example:3128")
    caplog.set_level("INFO")
    Upstream(upstream_settings(name="openai"))
    assert "upstream openai is reached through the proxy http://proxy.example:3128" in caplog.text
    assert "hunter2" not in caplog.text


def test_the_socket_of_the_owner_never_uses_a_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from knapcache.proxy.workers.owner_link import OwnerClient

    monkeypatch.setenv("ALL_PROXY", "http://environment:1")
    assert OwnerClient(tmp_path)._client._proxy is None
