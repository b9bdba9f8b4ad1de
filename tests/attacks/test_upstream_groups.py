"""Groups of upstreams under attack: whose credentials go where, and whether a caller can make upstreams unavailable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from knapcache.proxy.settings.secrets import digest_of
from knapcache.proxy.upstream.upstream import PassiveHealth
from tests.support.raw_client import CHAT, RawClient, WireResponse, chat, chat_body, exchange, message
from tests.support.recording_upstream import RecordingUpstream, plain, send
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

VALID_KEY, OTHER_KEY = "kc-victim-xxxxxxxxxxxxxxxx", "kc-attacker-xxxxxxxxxxxxxx"
KEYS = {"first": "KEY-OF-THE-FIRST", "second": "KEY-OF-THE-SECOND"}
FAILED = plain(b"{}", status="503 Service Unavailable")


@pytest.fixture(scope="module")
def second() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def proxy(
    upstream: RecordingUpstream, second: RecordingUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    with pytest.MonkeyPatch.context() as patch:
        upstreams = []
        for name, server in (("first", upstream), ("second", second)):
            patch.setenv(f"ATTACKED_{name.upper()}", KEYS[name])
            one = {"name": name, "url": server.openai_url, "key_env": f"ATTACKED_{name.upper()}", "timeout": 5}
            upstreams.append({**one, "retries": 2})
        tenants = [{"name": f"t{k}", "keys": [digest_of(key)]} for k, key in enumerate((VALID_KEY, OTHER_KEY))]
        routes: list[dict[str, Any]] = [{"name": "both", "upstreams": ["first", "second"]}]
        folder = tmp_path_factory.mktemp("data")
        with RunningProxy(folder, "", upstreams=upstreams, tenants=tenants, route=routes) as proxy:
            yield proxy
            proxy.proxy.cache.check()


@pytest.fixture(autouse=True)
def healthy(proxy: RunningProxy, second: RecordingUpstream) -> None:
    """Forget the failures of the test before."""
    wait_until(
        lambda: not any(each.client.in_flight for each in proxy.proxy.upstreams.all),
        "the end of the requests of an earlier test",
    )
    second.clear()
    reset_health(proxy)


def reset_health(proxy: RunningProxy) -> None:
    for each in proxy.proxy.upstreams.all:
        each.health = PassiveHealth()


def ask(proxy: RunningProxy, text: str, *headers: str, key: str = OTHER_KEY, **fields: Any) -> WireResponse:
    (response,) = exchange(proxy.url, chat(text, *headers, key=key, **fields))
    return response


def served_by(proxy: RunningProxy, text: str) -> str | None:
    """Return the upstream that serves another caller."""
    response = ask(proxy, text, key=VALID_KEY)
    assert response.status == 200
    return response.header("x-knapcache-upstream")


def test_each_upstream_gets_its_own_key_and_never_the_callers(
    proxy: RunningProxy, upstream: RecordingUpstream, second: RecordingUpstream
) -> None:
    upstream.script(send(FAILED))
    sent = ["X-Api-Key: caller-1", "Api-Key: caller-2", "X-Goog-Api-Key: caller-3", "Helicone-Auth: caller-4",
            "X-Portkey-Api-Key: caller-5", "Proxy-Authorization: caller-6", "OpenAI-Organization: caller-7",
            "Cookie: caller-8", "CF-AIG-Authorization: caller-9", "Ocp-Apim-Subscription-Key: caller-10"]  # fmt: skip
    body = chat_body("credentials")
    response = exchange(
        proxy.url, message(f"POST {CHAT} HTTP/1.1", f"Authorization: Bearer {OTHER_KEY}", *sent[3:6], body=body)
    )[0]
    assert response.status == 200
    assert response.header("x-knapcache-upstream") == "second"
    for name, server in (("first", upstream), ("second", second)):
        (request,) = server.requests
        assert request.values("authorization") == [f"Bearer {KEYS[name]}"]
        others = [key for other, key in KEYS.items() if other != name]
        text = f"{request.headers} {request.body!r}"
        assert OTHER_KEY not in text
        assert not any(other in text for other in others)
    for header in sent:
        reset_health(proxy)
        upstream.clear()
        second.clear()
        upstream.script(send(FAILED))
        ask(proxy, f"credential {header}", header)
        for server in (upstream, second):
            assert "caller-" not in f"{[request.headers for request in server.requests]}", header


BAD: dict[str, bytes] = {
    "refused": plain(b"{}", status="400 Bad Request"),
    "not authorised": plain(b"{}", status="401 Unauthorized"),
    "unknown": plain(b"{}", status="404 Not Found"),
    "too large": plain(b"{}", status="413 Content Too Large"),
    "not processable": plain(b"{}", status="422 Unprocessable Content"),
}


@pytest.mark.parametrize("kind", BAD)
def test_errors_of_a_caller_do_not_change_the_health(
    proxy: RunningProxy, upstream: RecordingUpstream, second: RecordingUpstream, kind: str
) -> None:
    """They are not repeated either: each costs one call."""
    for k in range(12):
        upstream.script(send(BAD[kind]))
        response = ask(proxy, f"{kind} {k}")
        assert 400 <= response.status < 500
    assert len(upstream.requests) == 12
    assert second.requests == []
    assert served_by(proxy, f"after {kind}") == "first"


@pytest.mark.parametrize("stage", ["before the head", "in the body", "in a stream"])
def test_callers_that_leave_do_not_change_the_health(
    proxy: RunningProxy, upstream: RecordingUpstream, stage: str
) -> None:
    starts = {
        "before the head": b"",
        "in the body": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{",
        "in a stream": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n",
    }
    clients = [RawClient(proxy.url) for _ in range(6)]
    upstream.script(*[send(starts[stage], then="stall", stall=1.0)] * 6)
    for k, client in enumerate(clients):
        client.send(chat(f"{stage} {k}", key=OTHER_KEY, stream="stream" in stage))
    upstream.wait_for(6)
    for client in clients:
        client.reset()
    assert served_by(proxy, f"after {stage}") == "first"


def test_a_caller_that_makes_one_upstream_fail_does_not_stop_the_others(
    proxy: RunningProxy, upstream: RecordingUpstream, second: RecordingUpstream
) -> None:
    """A request that fails everywhere opens both upstreams for a second. Others are served nevertheless."""
    for k in range(6):
        upstream.script(*[send(FAILED)] * 5)
        second.script(*[send(FAILED)] * 5)
        assert ask(proxy, f"poison {k}").status == 503
        upstream._scripts.clear()
        second._scripts.clear()
        assert served_by(proxy, f"beside the poison {k}") in ("first", "second")
    calls = len(upstream.requests) + len(second.requests) - 6
    assert calls <= 6 * 6, f"{calls} calls for 6 requests: each upstream gets one, and two retries at most"
