"""Limits under attack: requests that try to be counted for nothing, to use up what others may spend, or to keep slots.

Every token of the input costs INPUT dollars and every token of the output OUTPUT. The upstream counts words as tokens.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import h11
import pytest

from knapcache.proxy.settings.secrets import digest_of
from tests.attacks.conftest import Connect
from tests.attacks.test_passthrough import NEAR_PATHS
from tests.support.raw_client import CHAT, RawClient, WireResponse, chat_body, exchange, message
from tests.support.recording_upstream import RecordingUpstream, Script, UpstreamSide, plain, send
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

INPUT, OUTPUT = 0.0001, 0.01
LIMIT = 1.0
ANSWER_TOKENS = 20
VALID_KEY = "kc-victim-xxxxxxxxxxxxxxxx"
SPENDERS = [f"spender-{k}" for k in range(24)]
SLOT, CLAIMER = "slot", "claimer"
CLAIMS = ("1" + "0" * 400, "9" * 60, str(10**18), str(2**64 - 1), "1e18", '{"a": 1}', "true", '"9"', "-1", "1.5")
CLAIMED = [f"claimed-{k}" for k in range(len(CLAIMS))]
"""Models without earlier calls, so that the estimate is what the request claims."""
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def key_of(tenant: str) -> str:
    return f"kc-{tenant}-xxxxxxxxxxxxxxxx"


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    tenants: list[dict[str, Any]] = [{"name": "victim", "keys": [digest_of(VALID_KEY)]}]
    tenants += [
        {"name": name, "keys": [digest_of(key_of(name))], "limits": {"usd_per_day": LIMIT}} for name in SPENDERS
    ]
    tenants += [{"name": CLAIMER, "keys": [digest_of(key_of(CLAIMER))]}]
    tenants += [{"name": SLOT, "keys": [digest_of(key_of(SLOT))], "limits": {"concurrent": 1}}]
    grouped = {"grouped-spent": {"requests_per_minute": 1}, "grouped-other": {}}
    tenants += [
        {"name": name, "keys": [digest_of(key_of(name))], "limits": limits, "group": "g"}
        for name, limits in grouped.items()
    ]
    return {
        "tenants": tenants,
        "limits": {"usd_per_day": 100_000.0},
        "prices": {model: {"input": INPUT * 1e6, "output": OUTPUT * 1e6} for model in ("m", *CLAIMED)},
        "max_cached_body": "20KB",
        "passthrough": ["*"],
        "finish_abandoned": False,
        "route": [{"name": "off", "field": {"metadata.purpose": "off"}, "cache": "off"}],
        "upstreams": [{"name": "fake", "url": "set by the fixture", "retries": 0, "timeout": 0.5}],
    }


@pytest.fixture(scope="module")
def proxy(upstream: RecordingUpstream, proxy_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    proxy_settings["upstreams"][0]["url"] = upstream.openai_url
    with RunningProxy(tmp_path_factory.mktemp("data"), "", **proxy_settings) as proxy:
        yield proxy
        proxy.proxy.cache.check()


def post(body: bytes, tenant: str, *headers: str) -> bytes:
    json_type = "Content-Type: application/json"
    return message(f"POST {CHAT} HTTP/1.1", f"Authorization: Bearer {key_of(tenant)}", json_type, *headers, body=body)


def ask(client: RawClient, body: bytes, tenant: str, *headers: str) -> WireResponse:
    return answer(client, post(body, tenant, *headers))


def answer(client: RawClient, sent: bytes = b"", method: str = "POST") -> WireResponse:
    """Send bytes, and return the next response."""
    response = client.send(sent).response(method)
    assert response is not None
    return response


def report(proxy: RunningProxy, tenant: str, limit: str) -> dict[str, Any]:
    token = f"Authorization: Bearer {proxy.proxy.admin_token}"
    (response,) = exchange(proxy.url, message("GET /admin/v1/limits HTTP/1.1", token, length=False), method="GET")
    rows = response.json()["rows"]
    return next(row for row in rows if row["limit"] == limit and row["name"] == tenant)


def used(proxy: RunningProxy, tenant: str) -> float:
    return float(report(proxy, tenant, "usd_per_day")["used"])


def expensive(text: str, **fields: Any) -> bytes:
    """Return a request for an answer of at least ANSWER_TOKENS words."""
    return chat_body(f"{text} " + "word " * ANSWER_TOKENS, **fields)


def twice(body: bytes, name: str = "user") -> bytes:
    """Return a request with a field twice: it has no key."""
    return body[:-1] + f', "{name}": "a", "{name}": "a"}}'.encode()


UNKEYED: dict[str, Any] = {
    "a name twice": lambda text: twice(expensive(text)),
    "a name twice, as a stream": lambda text: twice(expensive(text, stream=True)),
    "a name twice, as a stream with usage": lambda text: twice(
        expensive(text, stream=True, stream_options={"include_usage": True})
    ),
    "not a number": lambda text: expensive(text)[:-1] + b', "seed": NaN}',
    "a lone surrogate": lambda text: expensive(text)[:-1] + b', "user": "\\ud800"}',
    "a long body": lambda text: expensive(text, user="x" * 30_000),
    "the model at the end of a long body": lambda text: json.dumps(
        {
            "messages": [{"role": "user", "content": f"{text} " + "word " * ANSWER_TOKENS}],
            "x": "y" * 30_000,
            "model": "m",
        }
    ).encode(),
    "a route without the cache": lambda text: expensive(text, metadata={"purpose": "off"}),
    "no-store": lambda text: expensive(text),
    "a large n": lambda text: expensive(text, n=3),
    "one token": lambda text: expensive(text, max_tokens=1),
    "a negative max_tokens": lambda text: expensive(text, max_tokens=-5),
}


@pytest.mark.parametrize(("tenant", "kind"), list(zip(SPENDERS, UNKEYED, strict=False)))
def test_a_request_without_a_key_is_counted_with_what_it_cost(
    connect: Connect, upstream: RecordingUpstream, tenant: str, kind: str
) -> None:
    """Without usage or price they would be counted with an estimate that a caller can make arbitrarily low."""
    client, statuses = connect(), []
    for k in range(2):  # cheap calls, after which a call is expected to cost nearly nothing
        body = chat_body(f"{kind} {k}", max_tokens=1)
        assert ask(client, body, tenant).status == 200
    upstream.clear()
    headers = ["Cache-Control: no-store"] if kind == "no-store" else []
    for k in range(12):
        response = ask(client, UNKEYED[kind](f"{kind} {k}"), tenant, *headers)
        statuses.append(response.status)
        if response.status == 429:
            break
    assert statuses[-1] == 429, "the limit was never reached"
    assert json.loads(response.body)["error"]["limit"] == "usd_per_day"
    calls = len(upstream.requests)
    assert (calls - 1) * ANSWER_TOKENS * OUTPUT <= LIMIT, f"{calls} calls were sent"


@pytest.mark.parametrize(("model", "claim"), list(zip(CLAIMED, CLAIMS, strict=True)))
def test_a_claimed_length_neither_fails_nor_uses_up_the_limit_of_all(
    proxy: RunningProxy, connect: Connect, upstream: RecordingUpstream, model: str, claim: str
) -> None:
    """While the call is in flight, and after its caller has left, another caller is still served."""

    def begin(side: UpstreamSide, _request: Any) -> None:
        side.send(STREAM_HEAD + b'data: {"choices": []}\n\n')
        side.wait_closed(5.0)

    upstream.script(begin)
    body = chat_body(f"claim {claim[:30]}", stream=True, n=128)[:-1] + f', "max_tokens": {claim}}}'.encode()
    with RawClient(proxy.url) as attacker:
        attacker.send(post(body.replace(b'"model": "m"', f'"model": "{model}"'.encode()), CLAIMER))
        upstream.wait_for(1)
        victim = connect()
        assert serve(victim, f"during {claim}") == 200
        attacker.reset()
    assert serve(victim, f"after {claim}") == 200
    wait_for_slot(proxy, "", "usd_per_day")
    assert serve(victim, f"after the end of {claim}") == 200


def serve(client: RawClient, text: str) -> int:
    """Return the status that the victim gets."""
    credential = f"Authorization: Bearer {VALID_KEY}"
    return answer(client, message(f"POST {CHAT} HTTP/1.1", credential, body=chat_body(text))).status


def wait_for_slot(proxy: RunningProxy, tenant: str, limit: str) -> None:
    """Wait until nothing is reserved, and no call is in flight."""

    def is_free() -> bool:
        row = report(proxy, tenant, limit)
        return row["reserved"] <= 0.0 and (limit != "concurrent" or row["used"] <= 0.0)

    wait_until(is_free, lambda: f"the end of a reservation: {report(proxy, tenant, limit)}")


FAULTS: dict[str, Script] = {
    "reset": send(b"HTTP/1.1 200 OK\r\ncontent-le", then="reset"),
    "closed": send(then="close"),
    "no answer": send(then="stall"),
    "no HTTP": send(b"\x00\x01\x02\r\n\r\n", then="close"),
    "short body": send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}", then="close"),
    "error": send(plain(b"{}", status="500 Internal Server Error")),
    "refusal": send(plain(b"{}", status="400 Bad Request")),
    "broken stream": send(STREAM_HEAD + b'data: {"choices": [', then="reset"),
    "stalled stream": send(STREAM_HEAD + b'data: {"choices": []}\n\n', then="stall"),
    "bad chunks": send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", then="close"),
    "not an answer": send(plain(b"[" * 5000, "content-type: application/json")),
}


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
@pytest.mark.parametrize("keyed", [True, False], ids=["key", "no key"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_slot_of_a_call_that_fails_is_free_again(
    proxy: RunningProxy, upstream: RecordingUpstream, fault: str, keyed: bool, leaves: bool
) -> None:
    upstream.script(FAULTS[fault])
    body = chat_body(f"{fault} {keyed} {leaves}", stream="stream" in fault)
    with RawClient(proxy.url) as client:
        client.send(post(body if keyed else twice(body), SLOT))
        upstream.wait_for(1)
        if leaves:
            client.reset()
        else:
            with contextlib.suppress(h11.RemoteProtocolError):  # the response breaks off as the upstream's does
                client.response()
    wait_for_slot(proxy, SLOT, "concurrent")
    with RawClient(proxy.url) as client:
        assert ask(client, chat_body(f"after {fault} {keyed} {leaves}"), SLOT).status == 200


def test_a_header_does_not_select_whose_limit_counts(proxy: RunningProxy, connect: Connect) -> None:
    """The tenant is that of the credential, and two credentials are refused."""
    client, tenant = connect(), SPENDERS[-2]
    before = used(proxy, tenant)
    spoofed = ["X-Knapcache-Tenant: victim", "OpenAI-Organization: victim", "X-Forwarded-For: 1.2.3.4"]
    assert ask(client, expensive("spoofed"), tenant, *spoofed).status == 200
    assert used(proxy, tenant) > before
    both = ask(client, expensive("two"), tenant, f"X-Api-Key: {VALID_KEY}")
    assert both.status in (200, 401)
    assert both.status == 401 or used(proxy, tenant) > before + ANSWER_TOKENS * OUTPUT


def test_hits_and_a_used_up_limit(connect: Connect, upstream: RecordingUpstream) -> None:
    """A stored answer is served after the limit is used up, and nothing else is: neither a refresh nor a POST."""
    client, tenant = connect(), SPENDERS[-3]
    body = expensive("stored")
    assert ask(client, body, tenant).status == 200
    for k in range(12):
        ask(client, expensive(f"more {k}"), tenant)
    upstream.clear()
    assert ask(client, body, tenant).outcome == "hit"
    assert ask(client, body, tenant, "Cache-Control: no-cache").status == 429
    assert ask(client, twice(body), tenant).status == 429
    credential = f"Authorization: Bearer {key_of(tenant)}"
    for path in ("/v1/moderations", "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/completions"):
        posted = message(f"POST {path} HTTP/1.1", credential, body=b'{"model": "m"}')
        assert answer(client, posted).status == 429, path
    for method in ("PUT", "PATCH", "DELETE", "PURGE"):
        sent = message(f"{method} /v1/files/a HTTP/1.1", credential, body=b"{}")
        assert answer(client, sent).status == 429, method
    assert upstream.requests == []
    for method in ("GET", "HEAD", "OPTIONS"):  # they read, and are not limited
        sent = message(f"{method} /v1/files/a HTTP/1.1", credential, length=False)
        assert answer(client, sent, method).status == 200, method
    upstream.clear()
    for path in (*NEAR_PATHS, "/v1/chat%2fcompletions", "/v1/x/../chat/completions"):
        posted = message(f"POST {path} HTTP/1.1", credential, body=twice(body))
        assert answer(client, posted).status in (400, 404, 429), path
    assert upstream.requests == []


def test_a_member_of_a_group_that_is_refused_does_not_refuse_the_others(proxy: RunningProxy, connect: Connect) -> None:
    """They share calls. The response of another member says nothing about the limit either."""
    attackers, victim = [connect() for _ in range(12)], connect()
    assert ask(victim, chat_body("first"), "grouped-spent").status == 200
    for k in range(8):
        body = chat_body(f"shared {k}")
        for attacker in attackers[:6]:
            attacker.send(post(body, "grouped-spent"))
        victim.send(post(body, "grouped-other"))
        for attacker in attackers[6:]:
            attacker.send(post(body, "grouped-spent"))
        assert answer(victim).status == 200
        assert {answer(attacker).status for attacker in attackers} <= {200, 429}
    assert report(proxy, "grouped-spent", "requests_per_minute")["used"] == 1


LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_locked_file_of_counters_stops_neither_requests_nor_limits(proxy: RunningProxy, connect: Connect) -> None:
    """Each process then counts for itself, beginning with what it has read last."""
    client, tenant = connect(), SPENDERS[-4]
    assert ask(client, expensive("before the lock"), tenant).status == 200
    folder = proxy.proxy.storage.folder
    assert folder is not None
    command = [sys.executable, "-c", LOCK, str(folder / "limits.sqlite")]
    # Another process: locks of files do not exclude their own one.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        statuses = [ask(client, expensive(f"locked {k}"), tenant).status for k in range(10)]
        assert "limits.sqlite" in proxy.proxy.features.get("limits").limits.fallback_reason
        other.communicate()
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert (statuses.count(200)) * ANSWER_TOKENS * OUTPUT <= LIMIT
    wait_until(lambda: used(proxy, tenant) >= LIMIT, "the count of what was paid meanwhile")
