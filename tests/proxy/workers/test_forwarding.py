"""The link between a worker and the owner in one process: what of an admin request arrives, and what of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from knapcache.proxy.event_flow import EventFlow
from knapcache.proxy.workers import owner_link
from knapcache.proxy.workers.owner_link import EVENTS_PATH, OwnerClient, OwnerServer
from tests.support.events import SampleNote, event, traffic

HEAD: dict[str, Any] = {
    "type": "http", "http_version": "1.1", "method": "POST", "path": "/admin/v1/purge", "raw_path": b"/admin/v1/purge",
    "query_string": b"a=1", "client": ("10.1.2.3", 4711), "scheme": "https", "root_path": "",
    "headers": [
        (b"host", b"proxy.example"), (b"cookie", b"session=1"), (b"authorization", b"Bearer token"),
        (b"x-knapcache-client", b"6.6.6.6"), (b"x-knapcache-scheme", b"gopher"), (b"connection", b"close"),
        (b"content-length", b"4"),
    ],
}  # fmt: skip


class Owner:
    """The owner's side: an admin API that records requests, and a pipeline that records events."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.bodies: list[bytes] = []
        self.pipeline = Mock(dropped=0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        self.bodies.append((await receive())["body"])
        headers = [(b"content-type", b"text/plain"), (b"set-cookie", b"a=b"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 418, "headers": headers})
        await send({"type": "http.response.body", "body": b"a teapot"})


@contextlib.asynccontextmanager
async def link(folder: Path) -> AsyncIterator[tuple[Owner, OwnerClient]]:
    owner, features = Owner(), Mock(classes=lambda kind: {"sample": SampleNote} if kind == "note" else {})
    server, client = OwnerServer(folder, owner, owner.pipeline, features), OwnerClient(folder)
    await server.open()
    try:
        yield owner, client
    finally:
        client.close()
        await server.close()
    assert not (folder / owner_link.SOCKET).exists()


async def forward(worker: OwnerClient, **changes: Any) -> tuple[int, dict[str, str], bytes]:
    """Send a request through a worker, and return the response."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"body", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await worker(HEAD | changes, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(each.get("body", b"") for each in sent[1:])


async def test_an_admin_request_arrives_with_its_client_and_without_forged_headers(tmp_path: Path) -> None:
    async with link(tmp_path) as (owner, client):
        status, headers, body = await forward(client)
        (scope,) = owner.scopes
        assert (scope["client"], scope["scheme"]) == (("10.1.2.3", 0), "https")
        assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", "/admin/v1/purge", b"a=1")
        arrived = {name: value for name, value in scope["headers"] if name not in (b"connection", b"content-length")}
        assert arrived == {
            b"host": b"proxy.example", b"cookie": b"session=1", b"authorization": b"Bearer token",
            b"x-knapcache-client": b"10.1.2.3", b"x-knapcache-scheme": b"https",
        }  # fmt: skip
        assert owner.bodies == [b"body"]
        assert (status, body) == (418, b"a teapot")
        assert headers == {"content-type": "text/plain", "set-cookie": "a=b", "content-length": "8"}


@pytest.mark.parametrize("headers", [[(b"host", b"a")], HEAD["headers"]])
async def test_a_client_cannot_send_events(tmp_path: Path, headers: Any) -> None:
    async with link(tmp_path) as (owner, client):
        await forward(client, raw_path=EVENTS_PATH.encode(), path=EVENTS_PATH, headers=headers, client=None)
        assert [(scope["path"], scope["client"]) for scope in owner.scopes] == [(EVENTS_PATH, ("", 0))]
        owner.pipeline.consume.assert_not_called()


async def test_without_an_owner_a_request_is_to_be_repeated(tmp_path: Path) -> None:
    client = OwnerClient(tmp_path)
    status, headers, body = await forward(client)
    client.close()
    assert (status, headers["retry-after"], b"no_owner" in body) == (503, "1", True)


async def test_events_notes_and_what_was_dropped_arrive_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_link, "MAX_BATCH", 3)
    events, notes = traffic(7), [("sample", SampleNote(k)) for k in range(5)]
    async with link(tmp_path / ".") as (owner, client):
        client.consume(events)
        client.consume_notes(notes)
        client._dropped = 4
        assert await client.stop(send_unsent=True) == []
        assert client.unsent_notes == []
        found = [call.args[0] for call in owner.pipeline.consume.call_args_list]
        assert found == [events[:3], events[3:6], events[6:], []]
        assert [call.args[0] for call in owner.pipeline.consume_notes.call_args_list] == [[], [], notes[:3], notes[3:]]
        assert (owner.pipeline.dropped, client._dropped) == (4, 0)
        await client.stop(send_unsent=True)
        assert len(owner.pipeline.consume.call_args_list) == 4


async def test_events_wait_for_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_link, "SEND_INTERVAL", 0.01)
    events = [event("hit")]
    alone = OwnerClient(tmp_path)
    alone.consume(events)
    assert await alone.stop(send_unsent=True) == events
    alone.close()
    async with link(tmp_path) as (owner, client):
        client.start()
        client.consume(events)
        async with asyncio.timeout(60):
            while not owner.pipeline.consume.called:
                await asyncio.sleep(0.01)
        assert await client.stop() == []
        refused = SimpleNamespace(status=503, read=asyncio.sleep)
        client._client.request = Mock(side_effect=lambda *_, **__: refuse(refused))  # type: ignore[method-assign]
        client.consume(events)
        assert await client.stop(send_unsent=True) == events, "the owner is changing"


async def test_a_worker_delivers_its_last_events_before_it_ends(tmp_path: Path) -> None:
    async with link(tmp_path) as (owner, _):
        flow, last = EventFlow(lambda: False, AsyncMock(side_effect=AssertionError)), event("hit")
        await flow.open(tmp_path, alone=False)
        flow.buffer.append(last)
        await flow.stop()
        await flow.close()
        assert [found for call in owner.pipeline.consume.call_args_list for found in call.args[0]] == [last]


async def refuse(response: Any) -> Any:
    response.read = lambda: asyncio.sleep(0)
    return response
