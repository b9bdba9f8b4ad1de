"""Routes under attack: a caller that avoids a route, takes that of another one, or makes matching expensive."""

from __future__ import annotations

import json
import time
from fnmatch import fnmatchcase
from typing import Any

import pytest

from knapcache.proxy.settings.secrets import digest_of
from tests.attacks.conftest import Connect
from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import CHAT, HealthProbe, RawClient, WireResponse, chat_body, exchange, message
from tests.support.recording_upstream import RecordingUpstream
from tests.support.timing import check_seconds, within

VALID_KEY, OTHER_KEY = "kc-one-xxxxxxxxxxxxxxxx", "kc-two-xxxxxxxxxxxxxxxx"


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    tenants = [
        {"name": name, "keys": [digest_of(key)], "group": "both"}
        for name, key in (("one", VALID_KEY), ("two", OTHER_KEY))
    ]
    routes: list[dict[str, Any]] = [
        {"name": "tenant-two", "tenant": ["two"], "field": {"seed": 99}, "cache": "off"},
        {"name": "private", "header": {"x-private": "yes"}, "cache": "off"},
        {"name": "apart", "header": {"x-apart": "*"}, "namespace": "apart"},
        {"name": "level", "field": {"metadata.level": 3}, "cache": "off"},
        {"name": "warm", "field": {"metadata.warm": True}, "max_temperature": 0.5},
        {"name": "listed", "model": ["big-*"], "cache": "off"},
    ]
    return {"tenants": tenants, "route": routes, "max_cached_body": "50KB"}


def ask(client: RawClient, body: bytes, *headers: str, key: str = VALID_KEY, query: str = "") -> WireResponse:
    credential = f"Authorization: Bearer {key}"
    return client.send(message(f"POST {CHAT}{query} HTTP/1.1", credential, *headers, body=body)).response()


def route(response: WireResponse) -> str | None:
    assert response.status == 200, response
    return response.header("x-knapcache-route")


@pytest.mark.parametrize(
    "value",
    ["3", "3.0", "3e0", "0.3E1", "30e-1", "3.0000000000000000000000001", "2.9999999999999999999999999", "0.00003e5"],
)
def test_every_form_of_a_number_meets_its_condition(connect: Connect, value: str) -> None:
    body = chat_body("number").replace(b"}]}", b'}], "metadata": {"level": %b}}' % value.encode())
    assert route(ask(connect(), body)) == "level"


@pytest.mark.parametrize("value", ["1", "1.0", "0.5000000000000001", "0.50000000000000001e0", "1e300", "5.1e-1"])
def test_every_form_of_a_high_temperature_is_sent_without_the_cache(connect: Connect, value: str) -> None:
    body = chat_body("hot", metadata={"warm": True})[:-1] + f', "temperature": {value}}}'.encode()
    higher = float(value) > 0.5
    outcomes = {ask(connect(), body).outcome for _ in range(2)}
    assert outcomes == ({"bypass"} if higher else {"miss", "hit"})


@pytest.mark.parametrize("value", ['"3"', "true", "[3]", "null", '{"3": 3}', "3.1", "-3"])
def test_another_value_does_not_meet_it(connect: Connect, value: str) -> None:
    body = chat_body("other").replace(b"}]}", b'}], "metadata": {"level": %b}}' % value.encode())
    assert route(ask(connect(), body)) is None


def test_a_model_is_found_in_a_body_without_a_key(connect: Connect, upstream: RecordingUpstream) -> None:
    client = connect()
    body = chat_body("big").replace(b'"m"', b'"big-1"')
    unkeyed = [
        body[:-1] + b', "a": 1, "a": 1}',
        body[:-1] + b', "a": NaN}',
        body[:-1] + b', "a": "%b"}' % (b"x" * 60_000),
    ]
    for each in (body, *unkeyed):
        assert route(ask(client, each)) == "listed"
    upstream.clear()
    for second in (b'"model": "m"', b'"mode\\u006c": "m"', b'"x": {"model": 1}, "model" : 5'):
        refused = ask(client, body[:-1] + b", " + second + b"}")
        assert refused.status == 400, second
    assert upstream.requests == []
    nested = body[:-1] + b', "a": 1, "a": {"model": "m", "model": "n"}}'
    assert route(ask(client, nested)) == "listed"


def test_headers_count_in_any_case_and_twice(connect: Connect) -> None:
    client = connect()
    for headers in (["X-PRIVATE: yes"], ["x-private:yes"], ["X-Private:\t yes \t"]):
        assert route(ask(client, chat_body("private"), *headers)) == "private"
    for headers in (["X-Private: yes", "X-Private: no"], ["X-Private: no", "X-Private: yes"], ["X_Private: yes"]):
        assert route(ask(client, chat_body("private"), *headers)) is None


def test_a_request_that_is_known_by_its_bytes_has_its_own_route(connect: Connect) -> None:
    """Two tenants of a group share entries, and have different routes."""
    client, body = connect(), chat_body("known", seed=99)
    assert [ask(client, body).outcome for _ in range(3)] == ["miss", "hit", "hit"]
    for _ in range(2):
        assert ask(client, body, key=OTHER_KEY).outcome == "bypass"
        assert ask(client, body, "X-Private: yes").outcome == "bypass"
        assert ask(client, body).outcome == "hit"
        assert route(ask(client, body)) is None
    assert ask(client, body, query="?tenant=two&x-private=yes").outcome == "miss"
    assert route(ask(client, body, query="?tenant=two&x-private=yes")) is None


def test_a_namespace_of_a_route_cannot_be_named_by_a_caller(connect: Connect) -> None:
    client = connect()
    stored = [ask(client, chat_body("apart"), "X-Apart: 1") for _ in range(2)]
    assert [each.outcome for each in stored] == ["miss", "hit"]
    others = [
        ask(client, chat_body("apart", cache={"namespace": name})) for name in ("apart", "route namespace: apart")
    ]
    others += [
        ask(client, chat_body("apart"), header)
        for header in ("Route-Namespace: apart", "Namespace: apart", "X-Knapcache-Route: apart", "Headers: apart")
    ]
    assert all(route(each) is None for each in others)
    assert stored[0].json()["id"] not in [each.json()["id"] for each in others]


PATTERNS = ["*a*b*c*", "*?x*", "*[a-z]x*", "?" * 100 + "*", "*" * 50 + "z"]


def test_many_routes_with_patterns_do_not_stall_on_a_long_text(
    upstream: RecordingUpstream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """80 conditions on a text of 3 MB, and on a list of 30,000 messages."""
    lines = []
    for k in range(80):
        path = "messages" if k % 8 == 0 else "messages.0.content"
        pattern = PATTERNS[k % len(PATTERNS)]
        condition = f'"{path}" = "{pattern}", "x{k}" = 1'
        lines.append(f'[[route]]\nname = "r{k}"\nfield = {{ {condition} }}\n')
    folder = tmp_path_factory.mktemp("data")
    with ProxyProcess(folder, upstream.openai_url, config="\n".join(lines), max_cached_body="8MB") as process:
        attacks = [
            chat_body("a" * 3_000_000),
            json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 60}] * 30_000}).encode(),
        ]
        exchange(process.url, message(f"POST {CHAT} HTTP/1.1", body=chat_body("warm")))
        started = time.perf_counter()
        fnmatchcase("a" * 3_000_000, PATTERNS[0])
        one_match = time.perf_counter() - started
        for body in attacks:
            with HealthProbe(process.url) as probe, within(20 * one_match + 1.0, "matching"):
                (response,) = exchange(process.url, message(f"POST {CHAT} HTTP/1.1", body=body))
            assert response.status == 200
            check_seconds(probe.worst, 10 * one_match, "/healthz")
