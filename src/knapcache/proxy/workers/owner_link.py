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
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import uvicorn

from knapcache.errors import UpstreamFailed
from knapcache.proxy.events.events import (
    MAX_BUFFERED,
    MAX_DETAILED,
    MAX_VERDICTS,
    Event,
    PaymentEvent,
    PrefixEvent,
    SemanticEvent,
    UpstreamTry,
    VerdictEvent,
    shortened,
)
from knapcache.proxy.events.pipeline import EventPipeline
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
"""Events in one message, or fewer if it would be longer than MAX_MESSAGE. Every single event fits
(events.MAX_POSITIONS)."""
MAX_MESSAGE = 8 << 20
"""Bytes of a message, and of an admin request on its way to the owner."""
CLIENT, SCHEME = "x-knapcache-client", "x-knapcache-scheme"
"""Headers in which a worker names the client's address and scheme. They are dropped from the client's own request. A
message with them is a client's request, whatever its path; a worker's own message has none."""

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class OwnerServer:
    """The owner's side: serves the admin API to the workers and takes their events."""

    def __init__(self, folder: Path, admin_app: App, pipeline: EventPipeline) -> None:
        self._admin_app, self._pipeline = admin_app, pipeline
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
            events, verdicts, payments, dropped = decode_events(await request.read_body(MAX_MESSAGE, MAX_MESSAGE))
        except (RequestRejected, ValueError, TypeError, LookupError) as error:
            log.error("Events of a worker dropped: unreadable message: %s", error)
        else:
            self._pipeline.consume(events)
            self._pipeline.consume_payments(payments)
            self._pipeline.consume_verdicts(verdicts)
            self._pipeline.dropped += dropped
        await request.respond(200, [], b"")

    async def close(self) -> None:
        """Stop listening."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        await self._server.shutdown()
        self._path.unlink(missing_ok=True)


class OwnerClient:
    """A worker's side: an event consumer that sends to the owner, and an ASGI app that forwards to its admin API."""

    def __init__(self, folder: Path) -> None:
        self._unsent: list[Event] = []
        self.unsent_verdicts: list[VerdictEvent] = []
        """Verdicts that the owner has not received."""
        self.unsent_payments: list[PaymentEvent] = []
        """Payments that the owner has not received."""
        self._dropped = 0
        self._client = Client("the owner", CONNECT_TIMEOUT, RESPONSE_TIMEOUT, socket_path=folder / SOCKET)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to send events."""
        self._task = asyncio.create_task(self._send_periodically())

    def consume(self, events: Sequence[Event]) -> None:
        """Queue a batch for the owner. When the queue is full, new events are dropped and counted."""
        free = MAX_BUFFERED - len(self._unsent)
        detailed = max(0, MAX_DETAILED - len(self._unsent))
        self._unsent.extend(events[: min(free, detailed)])
        self._unsent.extend(map(shortened, events[detailed:free]))
        self._dropped += max(0, len(events) - free)

    def consume_verdicts(self, verdicts: Sequence[VerdictEvent]) -> None:
        """Queue verdicts for the owner, as `consume` does with events."""
        free = MAX_VERDICTS - len(self.unsent_verdicts)
        self.unsent_verdicts.extend(verdicts[:free])
        self._dropped += max(0, len(verdicts) - free)

    def consume_payments(self, payments: Sequence[PaymentEvent]) -> None:
        """Queue payments for the owner, as `consume` does with events."""
        free = MAX_VERDICTS - len(self.unsent_payments)
        self.unsent_payments.extend(payments[:free])
        self._dropped += max(0, len(payments) - free)

    async def _send_periodically(self) -> None:
        while True:
            await asyncio.sleep(SEND_INTERVAL)
            await self._send()

    async def _send(self) -> None:
        """Send all queued events, verdicts and payments. Without an owner they stay queued."""
        with contextlib.suppress(UpstreamFailed):
            while self._unsent or self.unsent_verdicts or self.unsent_payments:
                dropped = self._dropped
                # After the events of the requests that they are about.
                verdicts = self.unsent_verdicts[:MAX_BATCH] if len(self._unsent) <= MAX_BATCH else []
                payments = self.unsent_payments[:MAX_BATCH]
                count, message = encode_batch(self._unsent, dropped, verdicts, payments)
                response = await self._client.request("POST", OWNER_URL, EVENTS_PATH, b"", message)
                await response.read()
                if response.status != 200:  # the owner process is changing
                    break
                del self._unsent[:count]
                del self.unsent_verdicts[: len(verdicts)]
                del self.unsent_payments[: len(payments)]
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
        """Close the connections to the owner."""
        self._client.close()


def encode_batch(
    events: Sequence[Event],
    dropped: int,
    verdicts: Sequence[VerdictEvent] = (),
    payments: Sequence[PaymentEvent] = (),
) -> tuple[int, bytes]:
    """Return how many of the events fit into one message, and the message."""
    batch = events[:MAX_BATCH]
    while len(message := encode_events(batch, dropped, verdicts, payments)) > MAX_MESSAGE and len(batch) > 1:
        batch = batch[: len(batch) // 2]
    return len(batch), message


def encode_events(
    events: Sequence[Event],
    dropped: int = 0,
    verdicts: Sequence[VerdictEvent] = (),
    payments: Sequence[PaymentEvent] = (),
) -> bytes:
    """Return the message of a worker: events, verdicts and payments by field name, and how many it has dropped."""
    fields = [event._asdict() for event in events]
    for event, values in zip(events, fields, strict=True):
        values["parts"] = {name: part._asdict() for name, part in event.parts.items()}
        if "prefix" in values["parts"]:
            values["parts"]["prefix"]["bills"] = dict(event.parts["prefix"].bills)
        if event.tried:
            values["tried"] = [one._asdict() for one in event.tried]
    named = {"verdicts": [one._asdict() for one in verdicts], "payments": [one._asdict() for one in payments]}
    return orjson.dumps({"dropped": dropped, "events": fields, **named})


def decode_events(message: bytes) -> tuple[list[Event], list[VerdictEvent], list[PaymentEvent], int]:
    """Return events, verdicts, payments and number of dropped ones.

    Other messages raise ValueError, TypeError or LookupError.
    """
    found = orjson.loads(message)
    verdicts = [VerdictEvent(**fields) for fields in found["verdicts"]]
    payments = [PaymentEvent(**fields) for fields in found["payments"]]
    return [decode_event(fields) for fields in found["events"]], verdicts, payments, found["dropped"]


def decode_event(fields: dict[str, Any]) -> Event:
    """Return the event of its fields."""
    parts = dict(fields["parts"])
    if (prefix := parts.get("prefix")) is not None:
        parts["prefix"] = PrefixEvent(**prefix | {"positions": tuple(map(tuple, prefix["positions"]))})
    if (semantic := parts.get("semantic")) is not None:
        parts["semantic"] = SemanticEvent(**semantic | {"features": tuple(semantic["features"])})
    tried = tuple(UpstreamTry(**each | {"attempts": tuple(each["attempts"])}) for each in fields["tried"])
    calls = {"attempts": tuple(fields["attempts"]), "tried": tried}
    return Event(**fields | calls | {"parts": parts})


def is_forwarded(name: str) -> bool:
    """Return whether a header is forwarded between worker and owner."""
    return name.lower() not in HOP_BY_HOP and name.lower() not in ("content-length", CLIENT, SCHEME)
