"""The admin API, the dashboard's files and `/metrics`, as a Starlette application.

    auth.py       authentication              openapi.py   routes and the OpenAPI document
    models.py     requests and responses      overview.py  the numbers of cache and history
    planning.py   the capacity plan           pages.py     the dashboard's files

Work that may wait for the disk runs in a few threads of its own, for at most DEADLINE seconds. A hanging disk then
shows on the dashboard, and the proxy continues to serve.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.serve.admin import models
from knapcache.serve.admin.auth import CHALLENGE, AdminAuth, Session, client_address, cookie
from knapcache.serve.admin.context import AdminContext
from knapcache.serve.admin.models import RequestModel, ResponseModel, bad_request, parse, parse_query
from knapcache.serve.admin.openapi import ROOT, ROUTES, Route, document
from knapcache.serve.admin.overview import Overview
from knapcache.serve.admin.pages import Pages
from knapcache.serve.admin.planning import Planner
from knapcache.serve.http.asgi_request import RequestRejected

MAX_BODY = 64 << 10
"""Bytes of a request body."""
THREADS = 4
DEADLINE = 30.0
R = TypeVar("R")
StarletteEndpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class AdminRequest:
    """An authenticated and validated request."""

    parameters: Any
    """An instance of the route's parameter model."""
    body: Any
    """An instance of the route's body model, or None."""
    session: Session | None
    address: str
    secure: bool


class SetCookie(ResponseModel):
    """A response that also sets the session cookie."""

    content: ResponseModel
    cookie: str


class Admin:
    """Serves the routes of openapi.py: one method per route, with its name."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self.auth = AdminAuth(context.admin_token, context.settings.allowed_hosts)
        self._overview = Overview(context)
        self._planner = Planner(context.request_log)
        self._document = orjson.dumps(document())
        self._threads = anyio.CapacityLimiter(THREADS)

    async def close(self) -> None:
        """Stop a running plan."""
        await self._planner.close()

    async def in_thread(self, work: Callable[[], R]) -> R:
        """Run `work` in a thread. Raises RequestRejected (503) after DEADLINE seconds."""
        self._context.flush_events()  # so that the numbers include requests that have just finished
        try:
            with anyio.fail_after(DEADLINE):
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        except TimeoutError:
            raise RequestRejected(503, "The store does not answer.", "store_failed", [("retry-after", "10")]) from None

    async def summary(self, _: AdminRequest) -> models.Summary:
        return await self.in_thread(self._overview.summary)

    async def history(self, request: AdminRequest) -> models.UsageHistory:
        return await self.in_thread(lambda: self._overview.history(request.parameters.span))

    async def entries(self, request: AdminRequest) -> models.EntryPage:
        return await self.in_thread(lambda: self._overview.entries(request.parameters))

    async def entry(self, request: AdminRequest) -> models.EntryWithContent:
        found = await self.in_thread(lambda: self._overview.entry(request.parameters.key))
        if found is None:
            raise no_such_entry()
        return found

    async def requests(self, request: AdminRequest) -> models.RequestPage:
        self._context.flush_events()
        page = self._context.recent.after(request.parameters.after, request.parameters.limit)
        return models.RequestPage.model_validate(page)

    async def plan(self, _: AdminRequest) -> models.PlanStatus:
        return self._planner.status()

    async def openapi(self, _: AdminRequest) -> bytes:
        return self._document

    async def forget(self, request: AdminRequest) -> models.Purged:
        conditions = models.Purge(key=request.parameters.key)
        purged = await self.in_thread(lambda: self._overview.purge(conditions))
        if not purged:
            raise no_such_entry()
        return models.Purged(purged=purged)

    async def purge(self, request: AdminRequest) -> models.Purged:
        return models.Purged(purged=await self.in_thread(lambda: self._overview.purge(request.body)))

    async def snapshot(self, _: AdminRequest) -> models.Saved:
        return models.Saved(saved=await self.in_thread(self._overview.save))

    async def start_plan(self, _: AdminRequest) -> models.PlanStatus:
        self._planner.start()
        return self._planner.status()

    async def login(self, request: AdminRequest) -> SetCookie:
        if not self.auth.tokens.check(request.body.token, request.address):
            raise RequestRejected(401, "This is not the admin token.", "invalid_token", CHALLENGE)
        session = self.auth.sessions.begin()
        return SetCookie(
            content=models.SessionToken(csrf=session.csrf), cookie=cookie(session.id, secure=request.secure)
        )

    async def session(self, request: AdminRequest) -> models.SessionToken:
        assert request.session is not None
        return models.SessionToken(csrf=request.session.csrf)

    async def logout(self, request: AdminRequest) -> SetCookie:
        assert request.session is not None
        self.auth.sessions.end(request.session)
        return SetCookie(content=models.Done(done=True), cookie=cookie("", secure=request.secure, seconds=0))


def no_such_entry() -> RequestRejected:
    """Return the error for an unknown key."""
    return RequestRejected(404, "No entry has this key.", "not_found")


def admin_app(context: AdminContext) -> Starlette:
    """Return the application. Its owner closes `app.state.admin`."""
    admin = Admin(context)
    # One Starlette route per path: with one per method, a wrong method would list only the first method as allowed.
    paths: dict[str, dict[str, StarletteEndpoint]] = {}
    for route in ROUTES:
        paths.setdefault(ROOT + route.path, {})[route.method] = _endpoint(admin, route)
    routes = [StarletteRoute(path, _by_method(methods), methods=list(methods)) for path, methods in paths.items()]
    if context.settings.dashboard:
        pages = Pages()
        routes += [
            StarletteRoute("/dashboard", pages.serve, methods=["GET"]),
            StarletteRoute("/dashboard/{path:path}", pages.serve, methods=["GET"]),
            StarletteRoute("/", _redirect_to_dashboard, methods=["GET"]),
        ]
    routes.append(StarletteRoute("/metrics", _metrics(admin, context), methods=["GET"]))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await admin.close()

    handlers: dict[Any, Any] = {
        HTTPException: _http_exception,
        RequestRejected: _rejected,
        InvalidInput: lambda _, error: error_response(400, str(error), "invalid_request"),
        NotOwner: lambda _, error: error_response(409, str(error), "not_owner"),
        StoreError: lambda _, error: error_response(503, str(error), "store_failed"),
    }
    middleware = [Middleware(SecurityMiddleware, auth=admin.auth)]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.admin = admin
    return app


class SecurityMiddleware:
    """Checks host and origin before anything else, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, auth: AdminAuth) -> None:
        self._app, self._auth = app, auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
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
            self._auth.check_origin(Request(scope))
        except RequestRejected as rejected:
            await _rejected(None, rejected)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


def _by_method(methods: dict[str, StarletteEndpoint]) -> StarletteEndpoint:
    async def endpoint(request: Request) -> Response:
        return await methods["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def _endpoint(admin: Admin, route: Route) -> StarletteEndpoint:
    serve: Callable[[AdminRequest], Awaitable[ResponseModel | bytes]] = getattr(admin, route.name)

    async def endpoint(request: Request) -> Response:
        session = None
        if route.access != "public":
            session = admin.auth.identify(request)
            if route.access == "session" and session is None:
                raise RequestRejected(
                    401, "Not logged in: this needs a session (/login).", "missing_session", CHALLENGE
                )
        parameters = parse_query(route.parameters, request.path_params, request.query_params.multi_items())
        body = await read_body(request, route.body) if route.body is not None else None
        result = await serve(
            AdminRequest(
                parameters=parameters,
                body=body,
                session=session,
                address=client_address(request),
                secure=request.scope["scheme"] == "https",
            )
        )
        headers = {}
        if isinstance(result, SetCookie):
            headers["set-cookie"], result = result.cookie, result.content
        content = result if isinstance(result, bytes) else result.model_dump_json(exclude_unset=True)
        return Response(content, route.status, headers, "application/json")

    return endpoint


async def read_body(request: Request, model: type[RequestModel]) -> RequestModel:
    """Read and validate a JSON body. Raises RequestRejected."""
    content = b""
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > MAX_BODY:
                raise RequestRejected(413, f"A body may have at most {MAX_BODY} bytes.", "too_large")
    except ClientDisconnect:
        raise bad_request("The body is incomplete.") from None
    try:
        values = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The body must be a JSON object: {error}.") from None
    return parse(model, values)


def error_response(status: int, message: str, kind: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error in the API's format."""
    content = models.Error(error=models.ErrorDetail(message=message, type=kind)).model_dump_json()
    return Response(content, status, headers, "application/json")


def _rejected(_: Request | None, error: Exception) -> Response:
    assert isinstance(error, RequestRejected)
    return error_response(error.status, error.message, error.kind, dict(error.headers))


def _http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    return error_response(error.status_code, error.detail, kind, dict(error.headers or {}))


async def _redirect_to_dashboard(_: Request) -> Response:
    return RedirectResponse("/dashboard", 307)


def _metrics(admin: Admin, context: AdminContext) -> StarletteEndpoint:
    async def endpoint(request: Request) -> Response:
        if not context.settings.metrics_public:
            admin.auth.identify(request)
        text = await admin.in_thread(context.metrics.render)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return endpoint
