"""A caller's cache directives: bounded, and never more than the server's settings allow."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from knapcache.store.base import Entry
from tests.attacks.conftest import Connect
from tests.support.raw_client import CHAT, WireResponse, chat, chat_body, message
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

TTL = 30.0
TEXTS = (f"directives {number}" for number in itertools.count())


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {"ttl": TTL}


def stored(proxy: RunningProxy, response: WireResponse) -> Entry:
    """Return the entry of a response. A plain answer is stored after it was sent."""
    key = bytes.fromhex(response.header("x-knapcache-key") or "")
    entry = wait_until(lambda: proxy.proxy.cache.engine.coordinator.store.get(key), "the stored answer")
    assert isinstance(entry, Entry)
    return entry


@pytest.mark.parametrize(
    ("headers", "cache", "most"),
    [
        ([], {"ttl": 1000}, TTL),
        ([], {"ttl": 5}, 5.0),
        (["cf-aig-cache-ttl: 86400"], None, TTL),
        (["cf-aig-cache-ttl: 5"], None, 5.0),
        (["cf-aig-cache-ttl: 5"], {"ttl": 1e15}, TTL),
        ([], {"ttl": "1000000"}, TTL),
    ],
)
def test_a_caller_can_shorten_the_time_to_live_and_not_extend_it(
    proxy: RunningProxy, connect: Connect, headers: list[str], cache: Any, most: float
) -> None:
    body = {} if cache is None else {"cache": cache}
    entry = stored(proxy, connect().send(chat(next(TEXTS), *headers, **body)).response())
    assert entry.expires is not None
    assert entry.expires - entry.created == pytest.approx(most)


NUMBERS = ["1e15", "1e308", "1e400", "-1", "-1e300", "0", "1" * 30, "9" * 400, '"1e15"', '"nan"', '"inf"', "true",
           "null", "[]", "{}", '""', "1e-320"]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
def test_no_number_in_a_directive_is_an_error_of_the_proxy(connect: Connect, number: str) -> None:
    client = connect()
    for name in ("ttl", "s-maxage", "s-max-age", "namespace"):
        text = next(TEXTS)
        body = chat_body(text, cache="CACHE").replace(b'"CACHE"', f'{{"{name}": {number}}}'.encode())
        for _ in range(2):
            head = (f"POST {CHAT} HTTP/1.1", "Content-Type: application/json", "Authorization: Bearer k")
            found = client.send(message(*head, body=body)).response()
            assert found.status == 200, (name, number, found)
    value = number.strip('"')
    for name in ("Cache-Control: max-age=", "Cache-Control: no-transform, max-age=", "cf-aig-cache-ttl: "):
        header = name + value
        text = next(TEXTS)
        for _ in range(2):
            found = client.send(chat(text, header)).response()
            assert found.status == 200, (header, found)
            assert found.text == f"You said: {text}"


def test_a_namespace_gives_no_access_to_another_callers_entries(connect: Connect, proxy: RunningProxy) -> None:
    text = next(TEXTS)
    first = connect().send(chat(text, key="alice", cache={"namespace": "shared"})).response()
    stolen = stored(proxy, first).tenant
    for name in ("shared", stolen, f"caller-{stolen[:8]}", "../" + stolen, json.dumps({"tenant": stolen})):
        assert connect().send(chat(text, key="bob", cache={"namespace": name})).response().outcome == "miss"
    assert connect().send(chat(text, key="alice", cache={"namespace": "shared"})).response().outcome == "hit"
