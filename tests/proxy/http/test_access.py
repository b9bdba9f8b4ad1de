"""Heads are checked once and cached within bounds; requests in flight are counted by caller."""

from __future__ import annotations

from typing import Any

import pytest

from knapcache.proxy.http import access as subject
from knapcache.proxy.http.access import AccessControl, RequestHead
from knapcache.proxy.http.asgi_request import AsgiRequest, RawPairs, RequestRejected
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings import Settings

HOST = (b"host", b"127.0.0.1:8080")


def access_control(**settings: Any) -> AccessControl:
    values = {"upstreams": [{"name": "fake", "url": "http://127.0.0.1:9/v1"}], "memory_only": True, **settings}
    made = Settings(**values)
    return AccessControl(made, Authenticator(made, b"s" * 32))


def request(*headers: tuple[bytes, bytes], key: bytes = b"Bearer k") -> AsgiRequest:
    async def unused(*_: Any) -> Any:
        raise AssertionError("the body is not read")

    raw: RawPairs = [HOST, (b"authorization", key), *headers]
    scope = {"type": "http", "method": "POST", "path": "/v1/x", "query_string": b"", "headers": raw}
    return AsgiRequest(scope, unused, unused, 0.0)


def authorize(control: AccessControl, *headers: tuple[bytes, bytes], key: bytes = b"Bearer k") -> RequestHead:
    made = request(*headers, key=key)
    head = control.authorize(made)
    control.release(made)
    return head


def test_a_head_is_known_by_all_its_bytes_but_the_length_of_the_body() -> None:
    control = access_control()
    head = authorize(control, (b"content-length", b"5"), (b"x-a", b"1"))
    assert head.headers == {"host": "127.0.0.1:8080", "authorization": "Bearer k", "x-a": "1"}
    assert authorize(control, (b"content-length", b"600"), (b"x-a", b"1")) is head
    assert authorize(control, (b"x-a", b"1")) is head
    assert control.known(request((b"x-a", b"1")).raw_headers) is head
    for other in ((b"x-a", b"2"), (b"x-b", b"1")):
        assert control.known(request(other).raw_headers) is None
    assert control.known(request((b"x-a", b"1"), key=b"Bearer l").raw_headers) is None


def test_two_keys_have_two_namespaces() -> None:
    control = access_control()
    first, second = authorize(control, key=b"Bearer one"), authorize(control, key=b"Bearer two")
    assert first.principal.namespace != second.principal.namespace
    assert authorize(control, key=b"Bearer one") is first


def test_the_oldest_head_is_dropped_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_HEADS", 3)
    control = access_control()
    for k in range(4):
        authorize(control, (b"x-a", b"%d" % k))
        assert len(control._heads) == min(k + 1, 3)
    known = [control.known(request((b"x-a", b"%d" % k)).raw_headers) is not None for k in range(4)]
    assert known == [False, True, True, True]


@pytest.mark.parametrize(("count", "cached"), [(30, True), (200, False)])
def test_a_head_with_many_short_headers_is_not_cached(count: int, cached: bool) -> None:
    """An SDK sends up to 30 headers."""
    control = access_control()
    headers = [(b"x-%d" % k, b"1") for k in range(count)]
    authorize(control, *headers)
    assert (control.known(request(*headers).raw_headers) is not None) is cached


def test_heads_above_the_limit_are_not_cached() -> None:
    control = access_control()
    others = sum(len(name) + len(value) + subject.HEADER_OVERHEAD for name, value in request().raw_headers)
    most = subject.MAX_HEAD_SIZE - others - subject.HEADER_OVERHEAD - len("x-a")
    for length, cached in ((most, True), (most + 1, False)):
        header = (b"x-a", b"v" * length)
        assert authorize(control, header).headers["x-a"] == "v" * length
        assert (control.known(request(header).raw_headers) is not None) is cached


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"key": b"Basic k"}, 401),
        ({"host": b"evil.example"}, 421),
        ({"origin": b"http://evil.example"}, 403),
    ],
)
def test_rejected_heads_are_not_cached_and_not_counted(headers: dict[str, bytes], status: int) -> None:
    control = access_control()
    made = request(
        *([(b"origin", headers["origin"])] if "origin" in headers else []), key=headers.get("key", b"Bearer k")
    )
    if "host" in headers:
        made.raw_headers[0] = (b"host", headers["host"])
    for _ in range(2):
        with pytest.raises(RequestRejected) as rejected:
            control.authorize(made)
        assert rejected.value.status == status
    assert control.known(made.raw_headers) is None
    assert (control._heads, control._in_flight) == ({}, {})
    if status == 401:
        assert rejected.value.headers == [("www-authenticate", "Bearer")]


@pytest.mark.parametrize(
    ("name", "plain"), [("content-encoding", False), ("cache-control", False), ("accept", True), ("user-agent", True)]
)
def test_a_head_is_plain_without_headers_that_change_how_a_request_is_read(name: str, plain: bool) -> None:
    assert authorize(access_control(), (name.encode(), b"gzip")).plain is plain


def test_requests_in_flight_are_counted_by_caller() -> None:
    control = access_control(max_requests_per_caller=2)
    first, second, third = request(), request((b"x-a", b"1")), request()
    control.authorize(first)
    control.authorize(second)
    with pytest.raises(RequestRejected) as rejected:
        control.authorize(third)
    assert (rejected.value.status, rejected.value.kind) == (429, "too_many_requests")
    assert rejected.value.headers == [("retry-after", "1")]
    other = request(key=b"Bearer other")
    control.authorize(other)  # one caller does not use up another's share
    control.release(third)  # was not counted
    with pytest.raises(RequestRejected):
        control.authorize(request())
    control.release(first)
    control.release(first)  # counted once
    control.authorize(third)
    with pytest.raises(RequestRejected):
        control.authorize(request())
    for made in (second, third, other):
        control.release(made)
    assert control._in_flight == {}


def test_with_share_all_each_credential_has_its_own_count() -> None:
    control = access_control(share_all=True, max_requests_per_caller=1)
    control.authorize(request(key=b"Bearer one"))
    control.authorize(request(key=b"Bearer two"))
    with pytest.raises(RequestRejected):
        control.authorize(request(key=b"Bearer one"))
