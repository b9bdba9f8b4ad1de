"""Authentication of the admin API: token, sessions, CSRF, hosts, origins and rate limits.

tests/attacks/test_admin.py asks a running proxy for every route with wrong credentials, and from other origins.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.testclient import TestClient

from knapcache.proxy.admin import auth as subject
from knapcache.proxy.admin.auth import Sessions, TokenCheck
from knapcache.proxy.admin.openapi import ROOT, ROUTES
from knapcache.proxy.admin.tokens import AdminTokens
from knapcache.proxy.admin_routes import Route
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.proxy.http.hosts import host_name, origin_authority
from knapcache.proxy.settings import Settings
from tests.support.admin_context import BASE, TOKEN, AdminHarness
from tests.support.clock import Clock

PROTECTED = [route for route in ROUTES if route.access != "public" and route.name != "logout"]


@pytest.fixture(scope="module")
def harness() -> Iterator[AdminHarness]:
    with AdminHarness() as made:
        yield made


@pytest.fixture
def client(harness: AdminHarness) -> Iterator[TestClient]:
    """A client without credentials."""
    with harness.client(headers={}) as found:
        yield found


def login(client: TestClient) -> str:
    """Log in, and return the CSRF token."""
    found = client.post(f"{ROOT}/login", json={"token": TOKEN}).raise_for_status()
    csrf: str = found.json()["csrf"]
    return csrf


def tokens_of(token: str) -> AdminTokens:
    """Return tokens with this one as the operator's."""
    return AdminTokens(Settings(memory_only=True, upstreams=[{"url": "http://127.0.0.1:9/v1"}]), None, token)


def accepts(check: TokenCheck, token: str, address: str = "10.0.0.1") -> bool:
    """Return whether a token is accepted; 429 still raises."""
    try:
        check.check(token, address)
    except RequestRejected as rejected:
        if rejected.status != 401:
            raise
        return False
    return True


def url_of(route: Route) -> str:
    return ROOT + route.path.replace("{key}", "0" * 64)


def test_only_the_exact_token_is_accepted() -> None:
    check = TokenCheck(tokens_of("right"))
    assert accepts(check, "right")
    for wrong in ("", "righ", "right ", "Right", "\udc80", "rightright"):
        assert not accepts(check, wrong)


def test_wrong_tokens_are_rate_limited_for_a_minute() -> None:
    clock = Clock(0.0)
    check = TokenCheck(tokens_of("right"), clock)
    for k in range(10):
        assert not accepts(check, f"wrong {k}")
    for token in ("wrong 11", "wrong 1", "right"):
        with pytest.raises(RequestRejected) as rejected:
            check.check(token, "10.0.0.1")
        assert rejected.value.status == 429
        assert rejected.value.headers == [("retry-after", "61")]
    clock.now = 60.0
    assert accepts(check, "right")


@pytest.mark.parametrize(
    ("addresses", "same", "other"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
        ("2001:db8::{}", "2001:db8::ffff:1", "2001:db8:0:1::1"),
        ("s" * 63 + "a{}", "s" * 63 + "a", "s" * 63 + "b"),
    ],
    ids=["address", "network", "64 letters of another name"],
)
def test_wrong_tokens_are_rate_limited_per_address_or_network(addresses: str, same: str, other: str) -> None:
    check = TokenCheck(tokens_of("right"))
    for k in range(10):
        assert not accepts(check, f"wrong {k}", addresses.format(k))
    with pytest.raises(RequestRejected) as rejected:
        check.check("right", same)
    assert rejected.value.status == 429
    assert accepts(check, "right", other)


def test_a_token_that_cannot_be_guessed_is_never_locked_out() -> None:
    token = "a-token-with-thirty-two-letters!"
    assert len(token) == 32
    long, short = TokenCheck(tokens_of(token)), TokenCheck(tokens_of(token[:-1]))
    for k in range(12):
        for check in (long, short):
            with pytest.raises(RequestRejected):
                check.check(f"wrong {k}", "10.0.0.1")
    assert accepts(long, token)
    with pytest.raises(RequestRejected):
        short.check(token[:-1], "10.0.0.1")


def test_repeating_one_wrong_token_is_not_rate_limited() -> None:
    check = TokenCheck(tokens_of("right"))
    for _ in range(1000):
        assert not accepts(check, "old")
    assert accepts(check, "right")


def test_the_table_of_addresses_is_bounded() -> None:
    check = TokenCheck(tokens_of("right"))
    for k in range(3000):
        assert not accepts(check, "wrong", str(k))
    assert len(check._wrong) == 1000


def test_sessions_end_by_time_by_number_and_by_logout() -> None:
    clock = Clock(0.0)
    tokens = tokens_of("right")
    identity = tokens.find("right")
    assert identity is not None
    sessions = Sessions(tokens, clock)
    first = asyncio.run(sessions.begin(identity))
    assert sessions.find(first.id) == first
    assert len(first.id) >= 43  # 32 bytes
    clock.now = subject.SESSION_SECONDS - 1
    assert sessions.find(first.id) == first
    clock.now = subject.SESSION_SECONDS
    assert sessions.find(first.id) is None
    made = [asyncio.run(sessions.begin(identity)) for _ in range(101)]
    assert len({session.id for session in made} | {session.csrf for session in made}) == 202
    assert len(sessions) == 100
    assert sessions.find(made[0].id) is None
    assert sessions.find(made[1].id) == made[1]
    for _ in range(2):
        asyncio.run(sessions.end(made[1]))
    assert sessions.find(made[1].id) is None
    assert sessions.find("") is sessions.find("\udc80") is None
    assert Sessions(tokens, clock).find(made[2].id) is None
    assert Sessions(tokens_of("left"), clock).find(made[2].id) is None


def test_the_session_cookie_is_http_only_and_same_site(client: TestClient, harness: AdminHarness) -> None:
    found = client.post(f"{ROOT}/login", json={"token": TOKEN})
    attributes = r"[\w-]{43}; Path=/admin; Max-Age=43200; HttpOnly; SameSite=Strict"
    assert re.fullmatch(rf"knapcache-session={attributes}", found.headers["set-cookie"])
    csrf = found.json()["csrf"]
    assert found.json() == {"csrf": csrf, "name": "admin", "role": "operator"}
    assert client.get(f"{ROOT}/session", headers={"x-csrf-token": csrf}).json() == found.json()
    with harness.client(headers={}, base="https://127.0.0.1") as secure:
        found = secure.post(f"{ROOT}/login", json={"token": TOKEN})
        assert re.fullmatch(rf"__Secure-knapcache-session={attributes}; Secure", found.headers["set-cookie"])
        headers = {"x-csrf-token": found.json()["csrf"]}
        assert secure.get(f"{ROOT}/session", headers=headers).status_code == 200


@pytest.mark.parametrize("route", PROTECTED, ids=lambda route: route.name)
def test_every_route_needs_the_csrf_token_of_its_session(client: TestClient, route: Route) -> None:
    csrf = login(client)
    for wrong in (None, b"", csrf[:-1].encode(), csrf.encode() * 2, "é".encode()):
        headers = {} if wrong is None else {b"x-csrf-token": wrong}
        found = client.request(route.method, url_of(route), headers=headers)
        assert (found.status_code, found.json()["error"]["type"]) == (403, "invalid_csrf_token")
        if route.method == "GET":
            assert client.head(url_of(route), headers=headers).status_code == 403
    found = client.request(route.method, url_of(route), headers={"x-csrf-token": csrf})
    assert found.status_code not in (401, 403)


def test_a_csrf_token_belongs_to_one_session(client: TestClient) -> None:
    csrf = login(client)
    purge = {"model": "none"}
    assert client.post(f"{ROOT}/purge", json=purge, headers={"x-csrf-token": csrf}).status_code == 200
    old = dict(client.cookies)
    other = login(client)
    assert client.post(f"{ROOT}/purge", json=purge, headers={"x-csrf-token": csrf}).status_code == 403
    found = client.post(f"{ROOT}/logout", headers={"x-csrf-token": other})
    assert found.json() == {"done": True}
    assert "Max-Age=0" in found.headers["set-cookie"]
    assert client.get(f"{ROOT}/session", headers={"x-csrf-token": other}).status_code == 401
    session = {"cookie": f"knapcache-session={old['knapcache-session']}"}  # the other session is still valid
    assert client.get(f"{ROOT}/session", headers={"x-csrf-token": csrf, **session}).json()["csrf"] == csrf


def request_with(method: str, *headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "method": method, "path": "/", "query_string": b"", "headers": list(headers)})


def test_foreign_cookies_are_ignored(client: TestClient) -> None:
    csrf = login(client)
    session = client.cookies["knapcache-session"]
    client.cookies.clear()
    cookie = f'theirs={{"a": 1}}; odd; knapcache-session={session}; last=é'
    headers = {b"cookie": cookie.encode("latin-1"), b"x-csrf-token": csrf.encode()}
    assert client.get(f"{ROOT}/session", headers=headers).status_code == 200


def test_a_wrong_token_is_rejected_despite_a_valid_session(client: TestClient) -> None:
    csrf = login(client)
    headers = {"authorization": "Bearer wrong", "x-csrf-token": csrf}
    found = client.get(f"{ROOT}/requests", headers=headers)
    assert found.status_code == 401
    assert "bearer" in found.headers["www-authenticate"].lower()
    assert found.headers["cache-control"] == "no-store"


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
    with AdminHarness(allowed_hosts=["*"]) as made, made.client() as client:
        assert client.get(f"{ROOT}/openapi.json", headers={"host": "any.example"}).status_code == 200


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
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_only_the_same_host_and_port_are_the_same_origin(origin: str, accepted: bool, method: str) -> None:
    """With allowed_hosts = "*" no other check rejects these origins."""
    auth = subject.AdminAuth(tokens_of(TOKEN), ["*"])
    request = request_with(method, (b"host", b"proxy.example"), (b"origin", origin.encode()))
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


def test_a_link_on_another_site_can_open_the_dashboard_only(harness: AdminHarness) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    with harness.client() as client:
        assert client.get("/dashboard", headers=link).status_code == 200
        assert client.get("/dashboard/entries", headers=link).status_code == 200
        assert client.get("/", headers=link).status_code == 307
        for path in (f"{ROOT}/summary", "/metrics", "/dashboard/app.js"):
            assert client.get(path, headers=link).status_code == 403
        for other in ({"sec-fetch-dest": "iframe"}, {"sec-fetch-mode": "no-cors"}):
            assert client.get("/dashboard", headers=link | other).status_code == 403
