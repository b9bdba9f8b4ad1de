"""The admin API and the way to the dashboard: everything of the proxy that is not asked for a thousand times a second.

    guard.py      who may ask              openapi.py    what can be asked: the table that the routes are made from
    history.py    money over time          overview.py   what there is now
    recent.py     the last requests        planning.py   how much room pays

What may wait for a disk happens in threads, of which there are a few for this alone, and not longer than DEADLINE: a
disk that hangs makes the dashboard say so, and nothing else. The rest happens on the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as At
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.serve.admin.auth import CHALLENGE, Guard, address_of
from knapcache.serve.admin.context import AdminContext
from knapcache.serve.admin.models import SCHEMAS, bad, fitting, from_query
from knapcache.serve.admin.openapi import ROOT, ROUTES, Route, document
from knapcache.serve.admin.overview import Overview
from knapcache.serve.admin.pages import Pages
from knapcache.serve.admin.planning import Planner
from knapcache.serve.admin.sessions import Session, cookie
from knapcache.serve.http.asgi_request import RequestRejected

MOST = 64 << 10
"""Bytes of a body."""
THREADS = 4
DEADLINE = 30.0
R = TypeVar("R")
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Asked:
    """A request that may be served: who, and what, read and checked."""

    given: dict[str, Any]
    """Parameters."""
    body: dict[str, Any]
    session: Session | None
    address: str
    secure: bool


@dataclass(frozen=True)
class Said:
    """An answer."""

    content: Any
    headers: dict[str, str] = field(default_factory=dict)


class Admin:
    """One method for each route of the table, by its name."""

    def __init__(self, context: AdminContext) -> None:
        settings = context.settings
        self._context = context
        self.guard = Guard(context.admin_token, settings.allowed_hosts)
        self._overview = Overview(context)
        self._planner = Planner(context.request_log)
        self._document = orjson.dumps(document())
        self._threads = anyio.CapacityLimiter(THREADS)

    async def close(self) -> None:
        """Stop what was begun."""
        await self._planner.close()

    async def _aside(self, work: Callable[[], R]) -> R:
        """In a thread, for as long as anybody would wait."""
        self._context.flush_events()  # so that what is just over is in the numbers
        try:
            with anyio.fail_after(DEADLINE):
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        except TimeoutError:
            raise RequestRejected(503, "the store does not answer", "store_failed", [("retry-after", "10")]) from None

    # Looking.

    async def summary(self, _: Asked) -> Said:
        """Money, room and health."""
        return Said(await self._aside(self._overview.summary))

    async def history(self, asked: Asked) -> Said:
        """Money over time."""
        return Said(await self._aside(lambda: self._overview.history(asked.given["span"])))

    async def entries(self, asked: Asked) -> Said:
        """Kept answers."""
        return Said(await self._aside(lambda: self._overview.entries(asked.given)))

    async def entry(self, asked: Asked) -> Said:
        """One of them."""
        found = await self._aside(lambda: self._overview.entry(asked.given["key"]))
        if found is None:
            raise RequestRejected(404, "no answer is kept under this key", "not_found")
        return Said(found)

    async def requests(self, asked: Asked) -> Said:
        """The last ones."""
        self._context.flush_events()
        return Said(self._context.recent.after(asked.given["after"], asked.given["limit"]))

    async def plan(self, _: Asked) -> Said:
        """How far it is."""
        return Said(self._planner.report())

    async def openapi(self, _: Asked) -> Said:
        """The document."""
        return Said(self._document)

    # Changing.

    async def forget(self, asked: Asked) -> Said:
        """Remove one answer."""
        purged = await self._aside(lambda: self._overview.purge({"key": asked.given["key"]}))
        if not purged:
            raise RequestRejected(404, "no answer is kept under this key", "not_found")
        return Said({"purged": purged})

    async def purge(self, asked: Asked) -> Said:
        """Remove what meets every condition."""
        if not asked.body or ("all" in asked.body and len(asked.body) > 1):
            raise bad("give key, model, tenant or older_than, or all by itself")
        return Said({"purged": await self._aside(lambda: self._overview.purge(asked.body))})

    async def snapshot(self, _: Asked) -> Said:
        """Keep the policy's state, and history."""
        return Said({"saved": await self._aside(self._overview.save)})

    async def start_plan(self, _: Asked) -> Said:
        """Begin a plan."""
        self._planner.start()
        return Said(self._planner.report())

    # Coming and going.

    async def login(self, asked: Asked) -> Said:
        """A session for the token."""
        if not self.guard.tokens.check(asked.body["token"], asked.address):
            raise RequestRejected(401, "this is not the admin token", "invalid_token", CHALLENGE)
        session = self.guard.sessions.begin()
        return Said({"csrf": session.csrf}, {"set-cookie": cookie(session.id, secure=asked.secure)})

    async def session(self, asked: Asked) -> Said:
        """The csrf token of who is logged in."""
        assert asked.session is not None
        return Said({"csrf": asked.session.csrf})

    async def logout(self, asked: Asked) -> Said:
        """End the session."""
        assert asked.session is not None
        self.guard.sessions.end(asked.session)
        return Said({"done": True}, {"set-cookie": cookie("", secure=asked.secure, life=0)})


def admin_app(context: AdminContext) -> Starlette:
    """Routes under /admin/v1, the dashboard and /metrics. Whoever runs it closes `app.state.admin` at the end."""
    admin = Admin(context)
    # One for each path, or a wrong method would be told of the first one's alone.
    paths: dict[str, dict[str, Endpoint]] = {}
    for route in ROUTES:
        paths.setdefault(ROOT + route.path, {})[route.method] = _endpoint(admin, route)
    routes = [At(path, _by_method(methods), methods=list(methods)) for path, methods in paths.items()]
    if context.settings.dashboard:
        pages = Pages()
        routes += [
            At("/dashboard", pages.serve, methods=["GET"]),
            At("/dashboard/{path:path}", pages.serve, methods=["GET"]),
            At("/", _to_the_dashboard, methods=["GET"]),
        ]
    routes.append(At("/metrics", _metrics(admin, context), methods=["GET"]))

    @contextlib.asynccontextmanager
    async def live(_: Starlette) -> AsyncIterator[None]:
        yield
        await admin.close()

    handlers: dict[Any, Any] = {
        HTTPException: _not_served,
        RequestRejected: _refused,
        InvalidInput: lambda _, error: error_of(400, str(error), "invalid_request"),
        NotOwner: lambda _, error: error_of(409, str(error), "not_owner"),
        StoreError: lambda _, error: error_of(503, str(error), "store_failed"),
    }
    app = Starlette(
        routes=routes, middleware=[Middleware(Door, guard=admin.guard)], exception_handlers=handlers, lifespan=live
    )
    app.router.redirect_slashes = False
    app.state.admin = admin
    return app


class Door:
    """Around all routes: host and origin first, and headers that keep browsers from being too helpful."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                more = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]
                if b"cache-control" not in names:
                    more.append((b"cache-control", b"no-store"))
                if b"content-security-policy" not in names:
                    more.append((b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"))
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            self._guard.admit(Request(scope))
        except RequestRejected as refused:
            await _refused(None, refused)(scope, receive, careful)
            return
        await self._app(scope, receive, careful)


def _by_method(methods: dict[str, Endpoint]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return await methods["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def _endpoint(admin: Admin, route: Route) -> Endpoint:
    serve: Callable[[Asked], Awaitable[Said]] = getattr(admin, route.name)

    async def endpoint(request: Request) -> Response:
        session = None
        if route.access == "token":
            session = admin.guard.identify(request)
        elif route.access == "session":
            session = admin.guard.identify(request)
            if session is None:
                raise RequestRejected(
                    401, "nobody is logged in: this is for sessions (/login)", "missing_session", CHALLENGE
                )
        given = read_parameters(route, request)
        body = await read_body(request, route.body) if route.body is not None else {}
        said = await serve(Asked(given, body, session, address_of(request), request.url.scheme == "https"))
        content = said.content if isinstance(said.content, bytes) else orjson.dumps(said.content)
        return Response(content, route.status, said.headers, "application/json")

    return endpoint


def read_parameters(route: Route, request: Request) -> dict[str, Any]:
    """Of the path and the query, with defaults; RequestRejected for what is unknown, given twice, or does not fit."""
    texts = dict(request.path_params)
    for name, text in request.query_params.multi_items():
        if name not in route.parameters or name in request.path_params:
            known = ", ".join(name for name in route.parameters if name not in request.path_params) or "none"
            raise bad(f"{name[:40]!r} is not known; known are {known}")
        if name in texts:
            raise bad(f"{name} is given twice")
        texts[name] = text
    return {
        name: from_query(schema, texts[name], name) if name in texts else schema["default"]
        for name, schema in route.parameters.items()
    }


async def read_body(request: Request, name: str) -> dict[str, Any]:
    """A JSON object that fits; RequestRejected for anything else."""
    content = b""
    try:
        async for piece in request.stream():
            content += piece
            if len(content) > MOST:
                raise RequestRejected(413, f"a body may have at most {MOST} bytes", "too_large")
    except ClientDisconnect:
        raise RequestRejected(400, "the body was cut off", "invalid_request") from None
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise bad(f"the body must be a JSON object: {error}") from None
    found: dict[str, Any] = fitting(SCHEMAS[name], body, "the body")
    return found


def error_of(status: int, message: str, kind: str, headers: dict[str, str] | None = None) -> Response:
    """As every error is said."""
    content = orjson.dumps({"error": {"message": message, "type": kind}})
    return Response(content, status, headers, "application/json")


def _refused(_: Request | None, error: Exception) -> Response:
    assert isinstance(error, RequestRejected)
    return error_of(error.status, error.message, error.kind, dict(error.headers))


def _not_served(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    return error_of(error.status_code, error.detail, kind, dict(error.headers or {}))


async def _to_the_dashboard(_: Request) -> Response:
    return RedirectResponse("/dashboard", 307)


def _metrics(admin: Admin, context: AdminContext) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        if not context.settings.metrics_public:
            admin.guard.identify(request)
        text = await admin._aside(context.metrics.render)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return endpoint
