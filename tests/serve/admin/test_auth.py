"""Authentication of the admin API: token, sessions, CSRF, hosts, origins and rate limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.testclient import TestClient

from knapcache.serve.admin import auth as subject
from knapcache.serve.admin.auth import Sessions, TokenCheck
from knapcache.serve.admin.openapi import ROOT, ROUTES, Route
from knapcache.serve.http.asgi_request import RequestRejected
from knapcache.serve.http.hosts import host_name, origin_authority
from tests.support.admin_context import BASE, TOKEN, AdminHarness

PROTECTED = [route for route in ROUTES if route.access != "public"]


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def harness() -> Iterator[AdminHarness]:
    made = AdminHarness()
    yield made
    made.close()


@pytest.fixture
def client(harness: AdminHarness) -> Iterator[TestClient]:
    """A client without credentials."""
    with harness.client(headers={}) as found:
        yield found


def login(client: TestClient) -> str:
    found = client.post(f"{ROOT}/login", json={"token": TOKEN}).raise_for_status()
    csrf: str = found.json()["csrf"]
    return csrf


def url_of(route: Route) -> str:
    return ROOT + route.path.replace("{key}", "0" * 64)


def test_only_the_exact_token_is_accepted() -> None:
    tokens = TokenCheck("right")
    assert tokens.check("right", "a")
    for wrong in ("", "righ", "right ", "Right", "\udc80", "rightright"):
        assert not tokens.check(wrong, "a")


def test_wrong_tokens_are_rate_limited_per_address() -> None:
    clock = Clock()
    tokens = TokenCheck("right", clock)
    for k in range(10):
        assert not tokens.check(f"wrong {k}", "a")
    for token in ("wrong 11", "wrong 1", "right"):
        with pytest.raises(RequestRejected) as rejected:
            tokens.check(token, "a")
        assert rejected.value.status == 429
        assert rejected.value.headers == [("retry-after", "61")]
    assert tokens.check("right", "b")
    clock.now = 60.0
    assert tokens.check("right", "a")


def test_repeating_one_wrong_token_is_not_rate_limited() -> None:
    tokens = TokenCheck("right")
    for _ in range(1000):
        assert not tokens.check("old", "a")
    assert tokens.check("right", "a")


def test_the_table_of_addresses_is_bounded() -> None:
    tokens = TokenCheck("right")
    for k in range(3000):
        tokens.check("wrong", str(k))
    assert len(tokens._wrong) == 1000


def test_sessions_end_by_time_by_number_and_by_logout() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    first = sessions.begin()
    assert sessions.find(first.id) == first
    assert len(first.id) >= 43  # 32 bytes
    clock.now = subject.SESSION_SECONDS - 1
    assert sessions.find(first.id) == first
    clock.now = subject.SESSION_SECONDS
    assert sessions.find(first.id) is None
    made = [sessions.begin() for _ in range(101)]
    assert len({session.id for session in made} | {session.csrf for session in made}) == 202
    assert len(sessions) == 100
    assert sessions.find(made[0].id) is None
    assert sessions.find(made[1].id) == made[1]
    sessions.end(made[1])
    sessions.end(made[1])
    assert sessions.find(made[1].id) is None
    assert sessions.find("") is sessions.find("\udc80") is None
    assert Sessions(clock).find(made[2].id) is None


def test_the_session_cookie_is_http_only_and_same_site(client: TestClient, harness: AdminHarness) -> None:
    found = client.post(f"{ROOT}/login", json={"token": TOKEN})
    cookie = found.headers["set-cookie"]
    assert re.fullmatch(r"knapcache-session=[\w-]{43}; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict", cookie), (
        cookie
    )
    assert found.json() == client.get(f"{ROOT}/session").json()
    with harness.client(headers={}, base="https://127.0.0.1") as secure:
        assert secure.post(f"{ROOT}/login", json={"token": TOKEN}).headers["set-cookie"].endswith("; Secure")


def test_a_session_can_read_and_needs_its_csrf_token_to_change(client: TestClient) -> None:
    csrf = login(client)
    assert client.get(f"{ROOT}/requests").status_code == 200
    purge = {"model": "none"}
    for wrong in (b"", csrf[:-1].encode(), csrf.encode() * 2, "é".encode()):
        found = client.post(f"{ROOT}/purge", json=purge, headers={b"x-csrf-token": wrong})
        assert (found.status_code, found.json()["error"]["type"]) == (403, "invalid_csrf_token")
        found = client.post(f"{ROOT}/purge", json=purge)
        assert (found.status_code, found.json()["error"]["type"]) == (403, "invalid_csrf_token")
    assert client.post(f"{ROOT}/purge", json=purge, headers={"x-csrf-token": csrf}).status_code == 200
    old = dict(client.cookies)
    other = login(client)
    assert client.post(f"{ROOT}/purge", json=purge, headers={"x-csrf-token": csrf}).status_code == 403
    found = client.post(f"{ROOT}/logout", headers={"x-csrf-token": other})
    assert found.json() == {"done": True}
    assert "Max-Age=0" in found.headers["set-cookie"]
    assert client.get(f"{ROOT}/session").status_code == 401
    client.cookies.update(old)  # the other session is still valid
    assert client.get(f"{ROOT}/session").json() == {"csrf": csrf}


@pytest.mark.parametrize("route", [route for route in PROTECTED if route.method != "GET"], ids=lambda route: route.name)
def test_every_route_that_changes_something_needs_the_csrf_token(client: TestClient, route: Route) -> None:
    csrf = login(client)
    for headers in ({}, {"x-csrf-token": csrf[::-1]}):
        found = client.request(route.method, url_of(route), headers=headers)
        assert (found.status_code, found.json()["error"]["type"]) == (403, "invalid_csrf_token")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_every_method_that_changes_something_needs_the_csrf_token(method: str) -> None:
    auth = subject.AdminAuth(TOKEN, ["*"])
    session = auth.sessions.begin()
    cookie = (b"cookie", f"{subject.COOKIE}={session.id}".encode())
    with pytest.raises(RequestRejected) as rejected:
        auth.identify(request_with(method, cookie))
    assert (rejected.value.status, rejected.value.kind) == (403, "invalid_csrf_token")
    assert auth.identify(request_with(method, cookie, (b"x-csrf-token", session.csrf.encode()))) == session
    assert auth.identify(request_with("GET", cookie)) == session


def request_with(method: str, *headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "method": method, "path": "/", "query_string": b"", "headers": list(headers)})


def test_foreign_cookies_are_ignored(client: TestClient) -> None:
    login(client)
    session = client.cookies["knapcache-session"]
    client.cookies.clear()
    cookie = f'theirs={{"a": 1}}; odd; knapcache-session={session}; last=é'
    assert client.get(f"{ROOT}/session", headers={b"cookie": cookie.encode("latin-1")}).status_code == 200


@pytest.mark.parametrize("route", PROTECTED, ids=lambda route: route.name)
def test_every_route_needs_credentials(client: TestClient, route: Route) -> None:
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer"},
        {"cookie": "knapcache-session=wrong"},
    ):
        found = client.request(route.method, url_of(route), headers=headers)
        assert found.status_code == 401
        assert "bearer" in found.headers["www-authenticate"].lower()
        assert found.headers["cache-control"] == "no-store"


def test_a_wrong_token_is_rejected_despite_a_valid_session(client: TestClient) -> None:
    login(client)
    assert client.get(f"{ROOT}/requests", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_login_and_bearer_share_the_rate_limit(harness: AdminHarness) -> None:
    with harness.client(headers={}) as client:
        for k in range(5):
            assert client.post(f"{ROOT}/login", json={"token": f"a{k}"}).status_code == 401
            assert client.get(f"{ROOT}/requests", headers={"authorization": f"Bearer b{k}"}).status_code == 401
        found = client.post(f"{ROOT}/login", json={"token": TOKEN})
        assert found.status_code == 429
        assert 1 <= int(found.headers["retry-after"]) <= 61
        assert client.get(f"{ROOT}/requests", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 429


ALL_KINDS_OF_PATHS = [
    ("GET", f"{ROOT}/summary"), ("POST", f"{ROOT}/login"), ("GET", f"{ROOT}/openapi.json"), ("GET", "/dashboard"),
    ("GET", "/dashboard/app.js"), ("GET", "/"), ("GET", "/metrics"), ("GET", "/nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ALL_KINDS_OF_PATHS)
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "", "[::1", "a b"]
)
def test_foreign_hosts_are_rejected_on_every_path(harness: AdminHarness, method: str, path: str, host: str) -> None:
    with harness.client() as client:
        found = client.request(method, path, headers={"host": host})
        assert (found.status_code, found.json()["error"]["type"]) == (421, "host_not_allowed")


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:8080", "localhost.", "[::1]:80", "127.0.0.1:"])
def test_own_hosts_are_accepted(client: TestClient, host: str) -> None:
    assert client.get(f"{ROOT}/openapi.json", headers={"host": host}).status_code == 200


def test_every_host_is_accepted_with_a_star() -> None:
    made = AdminHarness(allowed_hosts=["*"])
    try:
        with made.client() as client:
            assert client.get(f"{ROOT}/openapi.json", headers={"host": "any.example"}).status_code == 200
    finally:
        made.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://127.0.0.1:8080.evil.example"},
        {"origin": "http://127.0.0.1:8080/path"},
        {"origin": "http://["},
        {"origin": "file://127.0.0.1:8080"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_requests_from_foreign_sites_are_rejected(harness: AdminHarness, headers: dict[str, str]) -> None:
    with harness.client() as client:
        found = client.post(f"{ROOT}/purge", json={"all": True}, headers=headers)
        assert (found.status_code, found.json()["error"]["type"]) == (403, "origin_not_allowed")
        assert client.post(f"{ROOT}/login", json={"token": TOKEN}, headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("origin", "accepted"),
    [
        ("http://proxy.example", True),
        ("https://proxy.example", True),
        ("http://evil.proxy.example", False),
        ("http://evilproxy.example", False),
        ("http://proxy.example.evil", False),
        ("http://proxy.example:81", False),
        ("http://example", False),
        ("http://y.example", False),
    ],
)
def test_only_the_same_host_and_port_are_the_same_origin(origin: str, accepted: bool) -> None:
    """With allowed_hosts = "*" no other check rejects these origins."""
    auth = subject.AdminAuth(TOKEN, ["*"])
    request = request_with("POST", (b"host", b"proxy.example"), (b"origin", origin.encode()))
    if accepted:
        auth.check_origin(request)
    else:
        with pytest.raises(RequestRejected) as rejected:
            auth.check_origin(request)
        assert (rejected.value.status, rejected.value.kind) == (403, "origin_not_allowed")


def test_requests_from_the_own_page_are_accepted(harness: AdminHarness) -> None:
    with harness.client() as client:
        for headers in (
            {"origin": BASE},
            {"origin": BASE, "sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "none"},
        ):
            assert client.post(f"{ROOT}/purge", json={"model": "none"}, headers=headers).status_code == 200


@given(st.text(max_size=30))
def test_arbitrary_text_is_not_parsed_as_an_own_host(text: str) -> None:
    name = host_name(text)
    assert name == "" or text.startswith(name)
    same = origin_authority(text) == "127.0.0.1:8080"
    assert same == (text.lower() in ("http://127.0.0.1:8080", "https://127.0.0.1:8080"))
