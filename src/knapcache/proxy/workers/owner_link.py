"""The link between the owner process and the other workers: a Unix socket in the data directory (owner.sock).

    owner     decides admission and eviction, writes the store, has the event pipeline and the admin API
    workers   serve from the owner's store; send it their events a few times a second; forward admin requests to it

What workers fetched and what they read reaches the owner's policy through the cache itself (cache/coordinator.py). When
the owner ends, another process replaces it within a second or two. Until then workers keep their events, at most
MAX_BUFFERED of them.

Single flight works per process: two workers may fetch the same answer at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson
import uvicorn

from knapcache.errors import UpstreamFailed
from knapcache.proxy.events.events import (
    MAX_BUFFERED,
    MAX_DETAILED,
    MAX_NOTES,
    PAYMENT,
    Event,
    Note,
    PaymentEvent,
    UpstreamTry,
    shortened,
)
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Features
from knapcache.proxy.http.asgi_request import AsgiRequest, Receive, RequestRejected, Scope, Send
from knapcache.proxy.upstream import Client, encode_headers
from knapcache.proxy.upstream.upstream import HOP_BY_HOP

log = logging.getLogger("knapcache.serve")

SOCKET = "owner.sock"
OWNER_URL = "http://owner"
EVENTS_PATH = "/internal/events"
SEND_INTERVAL = 0.25
"""Seconds between two messages of a worker."""
CONNECT_TIMEOUT, RESPONSE_TIMEOUT = 5.0, 30.0
"""Seconds that a worker waits for the owner."""
MAX_BATCH = 1000
"""Events in one message, or fewer if it would be longer than MAX_MESSAGE. Every single event fits (`shortened`)."""
MAX_MESSAGE = 8 << 20
"""Bytes of a message, and of an admin request on its way to the owner."""
CLIENT, SCHEME = "x-knapcache-client", "x-knapcache-scheme"
"""Headers in which a worker names the client's address and scheme. They are dropped from the client's own request. A
message with them is a client's request, whatever its path; a worker's own message has none."""

App = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")


class OwnerServer:
    """The owner's side: serves the admin API to the workers and takes their events."""

    def __init__(self, folder: Path, admin_app: App, pipeline: EventPipeline, features: Features) -> None:
        self._admin_app, self._pipeline, self._features = admin_app, pipeline, features
        self._path = folder / SOCKET
        config = uvicorn.Config(
            self,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
        )
        self._server = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen on the socket. A socket that a killed owner has left is removed first."""
        self._path.unlink(missing_ok=True)
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        # Restricted before it is bound: the data directory itself may be readable by other users.
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(str(self._path))
        # Not serve(), which installs signal handlers: the public server has them.
        await self._server.startup([listening])
        self._task = asyncio.create_task(self._server.main_loop())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of a worker."""
        sent = dict(scope["headers"])
        if scope["type"] != "http" or scope["path"] != EVENTS_PATH or CLIENT.encode() in sent:
            client, scheme = (sent.get(name.encode(), b"").decode() for name in (CLIENT, SCHEME))
            await self._admin_app({**scope, "client": (client, 0), "scheme": scheme}, receive, send)
            return
        request = AsgiRequest(scope, receive, send, 0.0)
        try:
            body = await request.read_body(MAX_MESSAGE, MAX_MESSAGE)
            message = decode_message(body, self._features.classes("part"), self._features.classes("note"))
        except (RequestRejected, ValueError, TypeError, LookupError) as error:
            log.error("Events of a worker dropped: unreadable message: %s", error)
        else:
            self._pipeline.consume(message.events)
            self._pipeline.consume_notes(message.notes)
            self._pipeline.dropped += message.dropped
        await request.respond(200, [], b"")

    async def close(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        await self._server.shutdown()
        self._path.unlink(missing_ok=True)


class OwnerClient:
    """A worker's side: an event consumer that sends to the owner, and an ASGI app that forwards to its admin API."""

    def __init__(self, folder: Path) -> None:
        self._unsent: list[Event] = []
        self.unsent_notes: list[Note] = []
        """Notes that the owner has not received."""
        self._dropped = 0
        self._client = Client("the owner", CONNECT_TIMEOUT, RESPONSE_TIMEOUT, socket_path=folder / SOCKET)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._send_periodically())

    def consume(self, events: Sequence[Event]) -> None:
        """Queue a batch for the owner. When the queue is full, new events are dropped and counted."""
        detailed = max(0, MAX_DETAILED - len(self._unsent))
        self._queue(self._unsent, [*events[:detailed], *map(shortened, events[detailed:])], MAX_BUFFERED)

    def consume_notes(self, notes: Sequence[Note]) -> None:
        """Queue notes for the owner, as `consume` does with events."""
        self._queue(self.unsent_notes, notes, MAX_NOTES)

    def _queue(self, unsent: list[T], more: Sequence[T], limit: int) -> None:
        free = limit - len(unsent)
        unsent.extend(more[:free])
        self._dropped += max(0, len(more) - free)

    async def _send_periodically(self) -> None:
        while True:
            await asyncio.sleep(SEND_INTERVAL)
            await self._send()

    async def _send(self) -> None:
        """Send all queued events and notes. Without an owner they stay queued."""
        with contextlib.suppress(UpstreamFailed):
            while self._unsent or self.unsent_notes:
                dropped = self._dropped
                # After the events of the requests that they are about.
                notes = self.unsent_notes[:MAX_BATCH] if len(self._unsent) <= MAX_BATCH else []
                count, message = encode_batch(self._unsent, dropped, notes)
                response = await self._client.request("POST", OWNER_URL, EVENTS_PATH, b"", message)
                await response.read()
                if response.status != 200:  # the owner process is changing
                    break
                del self._unsent[:count]
                del self.unsent_notes[: len(notes)]
                self._dropped -= dropped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the owner, and its response to the client."""
        request = AsgiRequest(scope, receive, send, 0.0)
        try:
            body = await request.read_body(MAX_MESSAGE, MAX_MESSAGE)
            headers = [(n, v) for n, v in request.headers.items() if n == "cookie" or is_forwarded(n)]
            client = scope.get("client") or ("",)
            headers += [("host", request.headers.get("host", "")), (CLIENT, client[0]), (SCHEME, scope["scheme"])]
            response = await self._client.request(
                request.method, OWNER_URL, request.target, encode_headers(headers), body, raw=True
            )
            content = await response.read()
            forwarded = [(n, v) for n, v in response.pairs if is_forwarded(n) and n.lower() not in ("date", "server")]
            await request.respond(response.status, forwarded, content)
        except RequestRejected as error:
            await request.respond_error(error.status, error.message, error.kind)
        except UpstreamFailed:
            if not request.response_started:
                message = "The owner process is changing; retry."
                await request.respond_error(503, message, "no_owner", [("retry-after", "1")])

    async def stop(self, *, send_unsent: bool = False) -> list[Event]:
        """Stop sending events, and return those that the owner has not received."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if send_unsent:
            await self._send()
        return self._unsent

    def close(self) -> None:
        self._client.close()


class WorkerMessage(NamedTuple):
    """What a worker sends."""

    events: Sequence[Event]
    notes: Sequence[Note]
    dropped: int
    """How many of them it has dropped."""


def encode_batch(events: Sequence[Event], dropped: int, notes: Sequence[Note] = ()) -> tuple[int, bytes]:
    """Return how many of the events fit into one message, and the message."""
    batch = events[:MAX_BATCH]
    while True:
        message = encode_message(WorkerMessage(batch, notes, dropped))
        if len(message) <= MAX_MESSAGE or len(batch) <= 1:
            return len(batch), message
        batch = batch[: len(batch) // 2]


def encode_message(message: WorkerMessage) -> bytes:
    """Return the message with everything by field name."""
    return orjson.dumps(message, default=as_dict)


def as_dict(each: Any) -> dict[str, Any]:
    """Return a NamedTuple or a mapping as a dict."""
    found: dict[str, Any] = each._asdict() if isinstance(each, tuple) else dict(each)  # type: ignore[attr-defined]
    return found


def decode_message(message: bytes, parts: Mapping[str, Any], notes: Mapping[str, Any]) -> WorkerMessage:
    """Return the message. Others raise ValueError, TypeError or LookupError.

    parts, notes   classes of features that are on, by name. What other features have sent is dropped and counted
    """
    found, notes = orjson.loads(message), {**notes, PAYMENT: PaymentEvent}
    unknown = sum(name not in parts for fields in found["events"] for name in fields["parts"])
    unknown += sum(name not in notes for name, _ in found["notes"])
    return WorkerMessage(
        events=[decode_event(fields, parts) for fields in found["events"]],
        notes=[(name, from_fields(notes[name], fields)) for name, fields in found["notes"] if name in notes],
        dropped=found["dropped"] + unknown,
    )


def decode_event(fields: dict[str, Any], parts: Mapping[str, Any]) -> Event:
    tried = tuple(UpstreamTry(**each | {"attempts": tuple(each["attempts"])}) for each in fields["tried"])
    known = {name: from_fields(parts[name], part) for name, part in fields["parts"].items() if name in parts}
    return Event(**fields | {"attempts": tuple(fields["attempts"]), "tried": tried, "parts": known})


def from_fields(kind: Any, fields: dict[str, Any]) -> Any:
    """Return an object of its fields, as JSON has them. A class with other than plain fields has `from_fields`."""
    return kind.from_fields(fields) if hasattr(kind, "from_fields") else kind(**fields)


def is_forwarded(name: str) -> bool:
    """Return whether a header is forwarded between worker and owner."""
    return name.lower() not in HOP_BY_HOP and name.lower() not in ("content-length", CLIENT, SCHEME)
