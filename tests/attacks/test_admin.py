"""Attacks on the admin API: addresses, tokens, roles, sessions, origins, paths and labels, against the whole proxy."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from knapcache.proxy.admin.auth import MAX_WRONG_TOKENS
from knapcache.proxy.admin.openapi import ROUTES
from knapcache.proxy.admin_routes import Route
from knapcache.proxy.settings.secrets import digest_of
from tests.attacks.conftest import Connect
from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import chat, exchange, message
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

KEY = "kc-a-tenant-of-these-tests"
VALID_KEY = KEY
TOKEN = "an-operator-token-of-these-tests-0123456789"
READ_ONLY = "a-read-only-token-of-these-tests-0123456789"
ROOT = "/admin/v1"
ROUTES_OF_OPERATORS = [route for route in ROUTES if route.access != "public" and route.role == "operator"]


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {
        "admin_token": TOKEN,
        "admin_tokens": [{"name": "viewer", "digest": digest_of(READ_ONLY)}],
        "tenants": [{"name": "search", "keys": [digest_of(KEY)]}],
        "show_content": True,
    }


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def client(proxy: RunningProxy) -> Iterator[httpx.Client]:
    """A client without credentials."""
    with httpx.Client(base_url=proxy.url) as found:
        yield found


def records(client: httpx.Client, limit: int = 500) -> list[dict[str, Any]]:
    """Return the audit log, newest first."""
    rows: list[dict[str, Any]] = client.get(f"{ROOT}/audit?limit={limit}", headers=bearer(TOKEN)).json()["rows"]
    return rows


def store(proxy: RunningProxy, text: str) -> str:
    """Store an answer, and return its key."""
    (response,) = exchange(proxy.url, chat(text, key=KEY))
    key = response.header("x-knapcache-key")
    assert key is not None
    return key


# Addresses.


def guess(client: httpx.Client, number: int, address: str) -> int:
    """Send a wrong token with a forged address, and return the status."""
    headers = {"x-forwarded-for": address, "forwarded": f"for={address}", "x-real-ip": address}
    return client.post(f"{ROOT}/login", json={"token": f"wrong {number}"}, headers=headers).status_code


def test_a_forged_address_does_not_lift_the_limit_on_wrong_tokens(upstream: RecordingUpstream, tmp_path: Path) -> None:
    with RunningProxy(tmp_path, upstream.openai_url) as proxy, httpx.Client(base_url=proxy.url) as client:
        found = [guess(client, k, f"10.0.0.{k}") for k in range(MAX_WRONG_TOKENS + 1)]
        assert found == [401] * MAX_WRONG_TOKENS + [429]


def test_behind_a_trusted_proxy_one_client_does_not_lock_out_another(
    upstream: RecordingUpstream, tmp_path: Path
) -> None:
    settings = {"trusted_proxies": "127.0.0.0/8"}
    with RunningProxy(tmp_path, upstream.openai_url, **settings) as proxy, httpx.Client(base_url=proxy.url) as client:
        # The part that the client itself sent is on the left; the trusted proxy appended the address on the right.
        found = [guess(client, k, f"10.9.9.{k}, 10.0.0.1") for k in range(MAX_WRONG_TOKENS + 1)]
        assert found == [401] * MAX_WRONG_TOKENS + [429]
        assert guess(client, 0, "10.0.0.2") == 401


def test_wrong_guesses_do_not_lock_out_the_holder_of_a_generated_token(
    upstream: RecordingUpstream, tmp_path: Path
) -> None:
    with RunningProxy(tmp_path, upstream.openai_url) as proxy, httpx.Client(base_url=proxy.url) as client:
        assert guess(client, 0, "") == 401
        for k in range(1, 30):
            guess(client, k, "")
        assert guess(client, 30, "") == 429
        token = proxy.proxy.admin_token
        assert client.post(f"{ROOT}/login", json={"token": token}).status_code == 200
        assert client.get(f"{ROOT}/summary", headers=bearer(token)).status_code == 200


# Tokens and roles.


def test_with_tenants_metrics_need_an_admin_token(client: httpx.Client) -> None:
    for headers in ({}, bearer(KEY), {"x-api-key": KEY}):
        assert client.get("/metrics", headers=headers).status_code == 401
    for token in (TOKEN, READ_ONLY):
        assert "knapcache_requests_total" in client.get("/metrics", headers=bearer(token)).text
    client.post(f"{ROOT}/login", json={"token": TOKEN})
    cookie = {"cookie": f"knapcache-session={client.cookies['knapcache-session']}"}
    assert client.get("/metrics", headers=cookie).status_code == 403, "a session needs its token, too"


@pytest.mark.parametrize(
    "headers",
    [
        {}, bearer(KEY), bearer(TOKEN[:-1]), bearer(TOKEN + "x"), bearer(TOKEN.upper()),
        bearer(digest_of(TOKEN)), bearer(digest_of(READ_ONLY)), {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"}, {"x-api-key": TOKEN}, {"x-admin-token": TOKEN},
        {"cookie": f"knapcache-session={TOKEN}"},
    ],
)  # fmt: skip
def test_a_wrong_token_opens_nothing(client: httpx.Client, headers: dict[str, str]) -> None:
    for route in ROUTES:
        if route.access != "public":
            path = ROOT + route.path.replace("{key}", "0" * 64)
            assert client.request(route.method, path, headers=headers).status_code in (401, 429), route.name
    assert client.get(f"{ROOT}/summary?token={TOKEN}").status_code == 401


@pytest.mark.parametrize("route", ROUTES_OF_OPERATORS, ids=lambda route: route.name)
def test_a_read_only_token_changes_nothing(proxy: RunningProxy, client: httpx.Client, route: Route) -> None:
    key = store(proxy, "kept")
    csrf = client.post(f"{ROOT}/login", json={"token": READ_ONLY}).json()
    assert csrf["role"] == "read-only"
    path = ROOT + route.path.replace("{key}", key)
    for headers in (bearer(READ_ONLY), {"x-csrf-token": csrf["csrf"]}):
        sent = {"json": {"all": True}} if route.name == "purge" else {}
        found = client.request(route.method, path, headers=headers, **sent)  # type: ignore[arg-type]
        assert (found.status_code, found.json()["error"]["type"]) == (403, "role_too_weak")
    assert client.get(f"{ROOT}/entries/{key}", headers=bearer(TOKEN)).status_code == 200


def test_the_routes_that_need_an_operator_are_these() -> None:
    names = {route.name for route in ROUTES_OF_OPERATORS}
    assert names == {"forget", "purge", "snapshot", "start_plan", "rotate_token", "audit", "list_tokens"}


def test_a_read_only_token_sees_no_content(proxy: RunningProxy, client: httpx.Client) -> None:
    key = store(proxy, "a secret question")
    shown = client.get(f"{ROOT}/entries/{key}", headers=bearer(TOKEN)).json()
    assert "a secret question" in shown["request"]
    for path in (f"/entries/{key}", "/entries", "/requests", "/summary"):
        found = client.get(ROOT + path, headers=bearer(READ_ONLY))
        assert found.status_code == 200
        assert "secret question" not in found.text


# The audit log.


def test_every_action_is_recorded_with_who_what_and_when(proxy: RunningProxy, client: httpx.Client) -> None:
    key = store(proxy, "to be purged")
    session = client.post(f"{ROOT}/login", json={"token": TOKEN}).json()
    client.get(f"{ROOT}/entries/{key}", headers={"x-csrf-token": session["csrf"]})
    client.delete(f"{ROOT}/entries/{key}", headers={"x-csrf-token": session["csrf"]})
    client.post(f"{ROOT}/purge", json={"model": "m", "older_than": 1e6}, headers=bearer(TOKEN))
    client.post(f"{ROOT}/snapshot", headers=bearer(TOKEN))
    client.post(f"{ROOT}/logout", headers={"x-csrf-token": session["csrf"]})
    found = {row["action"]: row for row in records(client, 6)}
    assert list(found) == ["logout", "snapshot", "purge", "forget", "entry", "login"]
    for row in found.values():
        assert (row["name"], row["role"], row["address"]) == ("admin", "operator", "127.0.0.1")
        assert re.fullmatch(r"20[0-9-]{8}T[0-9:.]{12}Z", row["time"])
        assert row["status"] == 200
    assert found["forget"]["parameters"] == {"key": key}
    assert found["forget"]["result"] == {"purged": 1}
    assert found["snapshot"]["result"] == {"saved": True}
    assert found["purge"]["parameters"] == {"model": "m", "older_than": 1e6}
    assert found["entry"]["parameters"] == {"key": key, "content": True}
    sessions = {found[action]["session"] for action in ("login", "entry", "forget", "logout")}
    assert len(sessions) == 1
    assert len(sessions.pop()) == 8
    assert found["purge"]["session"] == ""


def test_the_audit_log_has_no_secrets_and_no_content(proxy: RunningProxy, client: httpx.Client) -> None:
    key = store(proxy, "a very private question")
    session = client.post(f"{ROOT}/login", json={"token": TOKEN}).json()
    client.post(f"{ROOT}/login", json={"token": "a-wrong-token-of-these-tests"})
    client.get(f"{ROOT}/entries/{key}", headers=bearer(TOKEN))
    assert proxy.proxy.storage.folder is not None
    files = [path for path in proxy.proxy.storage.folder.iterdir() if path.name.startswith("audit")]
    text = "".join(path.read_text() for path in files)
    assert len(text) > 100
    for secret in (
        TOKEN,
        READ_ONLY,
        KEY,
        session["csrf"],
        client.cookies["knapcache-session"],
        "wrong-token",
        "private",
    ):
        assert secret not in text
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_refused_tokens_and_roles_are_recorded(
    upstream: RecordingUpstream, proxy_settings: dict[str, Any], tmp_path: Path
) -> None:
    with RunningProxy(tmp_path, upstream.openai_url, **proxy_settings) as proxy, httpx.Client() as client:
        client.base_url = httpx.URL(proxy.url)
        client.post(f"{ROOT}/snapshot", headers=bearer(READ_ONLY))
        client.get(f"{ROOT}/summary", headers=bearer("wrong"))
        client.get("/metrics", headers=bearer("wrong"))
        for _ in range(100):
            client.post(f"{ROOT}/login", json={"token": "wrong"})
        found = records(client)
    assert [(row["action"], row["name"], row["role"], row["status"]) for row in found] == [
        *[("login", "", "", 401)] * 7,
        ("metrics", "", "", 401),
        ("summary", "", "", 401),
        ("snapshot", "viewer", "read-only", 403),
    ]


def test_a_change_that_cannot_be_recorded_is_refused(upstream: RecordingUpstream, tmp_path: Path) -> None:
    settings = {"admin_token": TOKEN, "show_content": True}
    with RunningProxy(tmp_path, upstream.openai_url, **settings) as proxy, httpx.Client(base_url=proxy.url) as client:
        (response,) = exchange(proxy.url, chat("kept"))
        key = response.header("x-knapcache-key")
        session = client.post(f"{ROOT}/login", json={"token": TOKEN}).json()
        (tmp_path / "audit.jsonl").unlink()
        (tmp_path / "audit.jsonl").mkdir()  # an attacker with other rights, or a fault
        for method, path in (("POST", "/purge"), ("DELETE", f"/entries/{key}"), ("GET", f"/entries/{key}")):
            sent = {"json": {"all": True}} if path == "/purge" else {}
            found = client.request(method, ROOT + path, headers=bearer(TOKEN), **sent)  # type: ignore[arg-type]
            assert (found.status_code, found.json()["error"]["type"]) == (503, "audit_failed")
        listed = client.get(f"{ROOT}/entries", headers=bearer(TOKEN)).json()
        assert (listed["total"], listed["content"]) == (1, False), "without a record the list has no words"
        assert client.post(f"{ROOT}/login", json={"token": TOKEN}).status_code == 503
        assert proxy.proxy.cache.entries()["total"] == 1
        assert client.get(f"{ROOT}/summary", headers=bearer(TOKEN)).status_code == 200
        logout = client.post(f"{ROOT}/logout", headers={"x-csrf-token": session["csrf"]})
        assert logout.status_code == 200, "logging out always works"


# Rotation.


def test_a_rotated_token_and_its_sessions_are_refused_at_once(upstream: RecordingUpstream, tmp_path: Path) -> None:
    with RunningProxy(tmp_path, upstream.openai_url) as proxy, httpx.Client(base_url=proxy.url) as client:
        old = proxy.proxy.admin_token
        session = {"x-csrf-token": client.post(f"{ROOT}/login", json={"token": old}).json()["csrf"]}
        assert client.get(f"{ROOT}/session", headers=session).status_code == 200
        new = client.post(f"{ROOT}/token/rotate", json={}, headers=bearer(old)).json()
        assert new["name"] == "admin"
        assert (tmp_path / "admin-token").read_text().strip() == new["token"]
        assert client.get(f"{ROOT}/summary", headers=bearer(old)).status_code == 401
        assert client.post(f"{ROOT}/login", json={"token": old}).status_code == 401
        assert client.get(f"{ROOT}/session", headers=session).status_code == 401
        assert client.get(f"{ROOT}/summary", headers=bearer(new["token"])).status_code == 200
        text = (tmp_path / "audit.jsonl").read_text()
        rotated = [row for row in map(json.loads, text.splitlines()) if row["action"] == "rotate_token"]
        assert [(row["status"], row.get("result")) for row in rotated] == [(None, None), (200, None)]
        assert new["token"] not in text
        assert old not in text


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_tokens_and_keys_change_without_a_restart(upstream: RecordingUpstream, tmp_path: Path, workers: int) -> None:
    config, data = tmp_path / "proxy.toml", tmp_path / "data"

    def configure(key: str, token: str) -> None:
        config.write_text(
            f'[[tenants]]\nname = "search"\nkeys = ["{digest_of(key)}"]\n'
            f'[[admin_tokens]]\nname = "viewer"\ndigest = "{digest_of(token)}"\n'
        )

    def statuses(key: str, token: str) -> set[tuple[int, int]]:
        """Return the statuses of several new connections: each worker gets some."""
        found = set()
        for _ in range(1 if workers == 1 else 8):
            (answer,) = exchange(process.url, chat("hello", key=key))
            summary = httpx.get(f"{process.url}{ROOT}/summary", headers=bearer(token), timeout=60)
            found.add((answer.status, summary.status_code))
        return found

    configure(KEY, READ_ONLY)
    environment = {"KNAPCACHE_CONFIG": str(config), "KNAPCACHE_ADMIN_TOKEN": ""}
    with ProxyProcess(data, upstream.openai_url, environment=environment, workers=workers) as process:
        assert statuses(KEY, READ_ONLY) == {(200, 200)}
        configure("kc-another-key-of-the-tenant", "another-" + READ_ONLY)
        process.process.send_signal(signal.SIGHUP)
        wait_until(lambda: statuses(KEY, READ_ONLY) == {(401, 401)})
        assert statuses("kc-another-key-of-the-tenant", "another-" + READ_ONLY) == {(200, 200)}
        config.write_text("this is not TOML")
        process.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("Settings not reloaded" in line for line in process.log))
        assert statuses("kc-another-key-of-the-tenant", "another-" + READ_ONLY) == {(200, 200)}
        configure("kc-another-key-of-the-tenant", "another-" + READ_ONLY)
        old = (data / "admin-token").read_text().strip()
        command = [sys.executable, "-m", "knapcache", "serve", "--rotate-token", "--path", str(data)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        new = (data / "admin-token").read_text().strip()
        assert printed == f"the new token is in {data}/admin-token\n"
        assert new != old
        wait_until(lambda: statuses("kc-another-key-of-the-tenant", old) == {(200, 401)})
        assert statuses("kc-another-key-of-the-tenant", new) == {(200, 200)}
        assert '"name":"uid ' in (data / "audit.jsonl").read_text()
        refused = [json.loads(line) for line in (data / "audit-refused.jsonl").read_text().splitlines()]
    assert {row["address"] for row in refused} == {"127.0.0.1"}, "workers pass the client's address on"


# Sessions, origins, paths and labels.


def test_login_gives_a_new_session_whatever_cookie_was_sent(client: httpx.Client) -> None:
    fixed = "a-session-that-the-attacker-knows-1234567890"
    cookie = {"cookie": f"knapcache-session={fixed}"}
    found = client.post(f"{ROOT}/login", json={"token": TOKEN}, headers=cookie)
    assert fixed not in found.headers["set-cookie"]
    client.cookies.clear()
    for headers in (cookie, cookie | {"x-csrf-token": found.json()["csrf"]}):
        assert client.get(f"{ROOT}/session", headers=headers).status_code == 401


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "header",
    [
        "Origin: http://evil.example", "Origin: null", "Origin: http://localhost:9", "Origin: http://127.0.0.1:9",
        "Origin: http://evil127.0.0.1", "Origin: http://127.0.0.1.evil.example", "Origin: ",
        "Sec-Fetch-Site: same-site", "Sec-Fetch-Site: cross-site",
    ],
)  # fmt: skip
def test_pages_of_other_origins_are_refused_with_any_method(connect: Connect, method: str, header: str) -> None:
    for path in (f"{ROOT}/purge", f"{ROOT}/summary", f"{ROOT}/login", "/metrics", "/dashboard"):
        sent = message(f"{method} {path} HTTP/1.1", f"Authorization: Bearer {TOKEN}", header, body=b'{"all":true}')
        response = connect().send(sent).response(method)
        assert response.status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/dashboard/../../secret", "/dashboard/%2e%2e/%2e%2e/secret", "/dashboard//etc/passwd",
        "/dashboard/..%2f..%2fsecret", "/dashboard/app.js%00.html", "/dashboard/....//....//secret",
        "/dashboard\\..\\secret", "/admin/v1/../v1/summary", "/admin/v1//summary", "//admin/v1/summary",
        "/admin/v1/summary/", "/admin/v1/summary;a=b", "/ADMIN/v1/summary", "/admin/v1/%73ummary/",
        "/admin/v1/entries/..%2f..%2fsecret", "/./metrics", "/metrics/", "/admin/v1/openapi.json/../summary",
    ],
)  # fmt: skip
def test_no_path_reaches_a_file_or_skips_authentication(proxy: RunningProxy, connect: Connect, path: str) -> None:
    assert proxy.proxy.storage.folder is not None
    secret = (proxy.proxy.storage.folder / "secret").read_bytes().strip()
    sent = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    response = connect().send(sent.encode("latin-1")).response("GET")
    assert response.status in (400, 401, 404)
    assert secret not in response.body
    assert b"knapcache_requests" not in response.body


def test_no_label_breaks_the_metrics(proxy: RunningProxy, client: httpx.Client) -> None:
    names = ['m"} 1\nforged_total{a="b', "m\nforged_total 1", "m\\", "m\r\nforged_total 1", "\u2028forged_total 1"]
    for name in names:
        (response,) = exchange(proxy.url, chat("label", key=KEY, model=name))
        assert response.status < 500
    text = client.get("/metrics", headers=bearer(TOKEN)).text
    samples = list(text_string_to_metric_families(text))
    assert not any("forged" in family.name for family in samples)
    for line in text.splitlines():
        assert line.startswith(("#", "knapcache_", "process_", "python_")), line


def test_the_pages_cannot_be_framed_or_shared(client: httpx.Client) -> None:
    for path in ("/dashboard", "/dashboard/app.js", f"{ROOT}/openapi.json", "/metrics", "/nothing"):
        headers = client.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
