"""The admin API, the dashboard's files and `/metrics`, as a Starlette application.

    auth.py       authentication              openapi.py   the core's routes and the OpenAPI document
    tokens.py     tokens and their roles      audit.py     the log of admin actions
    models.py     requests and responses      overview.py  the numbers of cache and history
    planning.py   the capacity plan           pages.py     the dashboard's files
    responses.py  errors and headers          admin_request.py   a request, and its records in the audit log

Features that are on add routes and fields of GET /summary (proxy/admin_routes.py). A feature may start when settings
are read again, so the routes are composed again when the features have changed.

Work that may wait for the disk runs in a few threads of its own, for at most DEADLINE seconds. A hanging disk then
shows on the dashboard, and the proxy continues to serve.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from knapcache.proxy.admin import admin_request, models, summary_models
from knapcache.proxy.admin.admin_request import (
    AdminRequest,
    AuditRecords,
    SetCookie,
    fields_of,
    read_body,
    session_info,
)
from knapcache.proxy.admin.amounts import amounts
from knapcache.proxy.admin.auth import CHALLENGE, AdminAuth, Caller, client_address, cookie, is_secure, require
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.admin.models import parse_query
from knapcache.proxy.admin.openapi import ROOT, ROUTES, encoded_document
from knapcache.proxy.admin.overview import Overview
from knapcache.proxy.admin.pages import PanelPage, dashboard_routes, feature_panels, panel_row
from knapcache.proxy.admin.planning import Planner
from knapcache.proxy.admin.responses import KNOWN_ERRORS, SecurityMiddleware, http_exception, response_of
from knapcache.proxy.admin_routes import Route, Serve, SummaryField
from knapcache.proxy.features import Feature
from knapcache.proxy.http.asgi_request import RequestRejected

log = logging.getLogger("knapcache.serve")

LISTED_EVERY = 3600.0
"""Seconds between two records of a caller who lists first words of prompts."""
THREADS = 4
DEADLINE = 30.0
R = TypeVar("R")
StarletteEndpoint = Callable[[Request], Awaitable[Response]]
RECORDED_REFUSALS = ("invalid_token", "too_many_attempts", "role_too_weak")
"""Refusals that the audit log records. Those of hosts and origins come before authentication and are left out."""


class Admin:
    """Serves the routes of openapi.py, one method per route with its name, and has what features need for theirs.

    It is the `AdminServices` of features.
    """

    def __init__(self, context: AdminContext) -> None:
        self.context = context
        self.auth = AdminAuth(context.tokens, context.settings.allowed_hosts, context.sessions)
        self.records = AuditRecords(context.audit, self.in_thread)
        self.totals, self.recent, self.flush_events = context.history, context.recent, context.flush_events
        self.read_shared, self.tenant_name = context.refresh, context.authenticator.name_of
        self.write_record = self.records.write
        self._overview = Overview(context)
        self._listed: dict[tuple[str, ...], float] = {}
        """When a caller's reading of first words was recorded."""
        self.all_panels = feature_panels()
        self._planner = Planner(context.request_log)
        self._threads = anyio.CapacityLimiter(THREADS)
        self._composed: tuple[Feature, ...] | None = None
        """The features of which the routes are."""
        self.routes: tuple[Route, ...] = ()
        self._summary_fields: list[SummaryField] = []
        self._summary_model = summary_models.Summary
        self._document: bytes | None = None
        self.compose()

    def compose(self) -> bool:
        """Compose the routes, if the features that are on have changed. Return whether they have."""
        active = self.context.features.active
        if active is self._composed:
            return False
        self._composed, self._document = active, None
        self._summary_fields = [field for feature in active for field in feature.summary_fields(self)]
        self._summary_model = summary_models.summary_with(self._summary_fields)
        core = (replace(route, response=self._summary_model) if route.name == "summary" else route for route in ROUTES)
        self.routes = (*core, *(route for feature in active for route in feature.admin_routes(self)))
        return True

    async def close(self) -> None:
        await self._planner.close()

    async def in_thread(self, work: Callable[[], R]) -> R:
        """Run `work` in a thread. Raises RequestRejected (503) after DEADLINE seconds."""
        self.context.flush_events()  # so that the numbers include requests that have just finished
        try:
            with anyio.fail_after(DEADLINE):
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        except TimeoutError:
            raise RequestRejected(503, "The store does not answer.", "store_failed", [("retry-after", "10")]) from None

    async def refresh(self) -> None:
        """Include the requests that have just finished, of this proxy and of others."""
        if self.context.shared is None:
            self.context.flush_events()
        else:
            await self.in_thread(self.context.refresh)

    async def summary(self, _: AdminRequest) -> summary_models.Summary:
        return await self.in_thread(lambda: self._overview.summary(self._summary_model, self._summary_fields))

    async def history(self, request: AdminRequest) -> summary_models.UsageHistory:
        return await self.in_thread(lambda: self._overview.history(request.parameters.span))

    async def entries(self, request: AdminRequest) -> models.EntryPage:
        content = await self.listed_content(request, "entries")
        return await self.in_thread(lambda: self._overview.entries(request.parameters, content=content))

    def shows_content(self, request: AdminRequest) -> bool:
        """Return whether a caller may read requests and answers."""
        assert request.caller is not None
        return self.context.settings.show_content and request.caller.identity.role == "operator"

    async def listed_content(self, request: AdminRequest, action: str) -> bool:
        """Return whether a list has parts of prompts. The page polls, so one record an hour is written.

        Without a record it has none: the rest of the list does not depend on the audit log.
        """
        content, now = self.shows_content(request), time.monotonic()
        caller = (action, *fields_of(request.caller).values())
        if content and now - self._listed.get(caller, -math.inf) > LISTED_EVERY:
            try:
                await self.write_record(request.record(action, 200, content=True))
            except RequestRejected:
                return False
            self._listed = {who: at for who, at in self._listed.items() if now - at < LISTED_EVERY} | {caller: now}
        return content

    async def entry(self, request: AdminRequest) -> models.EntryWithContent:
        key, content = request.parameters.key, self.shows_content(request)
        found = await self.in_thread(lambda: self._overview.entry(key, content=content))
        if found is None:
            raise no_such_entry()
        if content:
            await self.write_record(request.record("entry", 200, key=key, content=True))
        return found

    async def audit(self, request: AdminRequest) -> admin_request.AuditPage:
        rows = await self.records.newest(request.parameters.limit)
        return admin_request.AuditPage(rows=[admin_request.AuditRecord(**row) for row in rows])

    async def rotate_token(self, request: AdminRequest) -> admin_request.RotatedToken:
        assert request.caller is not None
        name = request.body.name or request.caller.identity.name
        token = await self.in_thread(lambda: self.context.tokens.rotate(name))
        return admin_request.RotatedToken(name=name, token=token)

    async def list_tokens(self, _: AdminRequest) -> admin_request.TokenPage:
        rows = [admin_request.TokenRow(name=one.name, role=one.role) for one in self.context.tokens.all()]
        return admin_request.TokenPage(rows=rows)

    async def panels(self, _: AdminRequest) -> PanelPage:
        features = self.context.features
        return PanelPage(rows=[panel_row(spec, on=features.get(spec.name) is not None) for spec, _ in self.all_panels])

    async def proxies(self, _: AdminRequest) -> summary_models.ProxyPage:
        return await self.in_thread(self._overview.proxies)

    async def requests(self, request: AdminRequest) -> models.RequestPage:
        await self.refresh()
        page = self.context.recent.after(request.parameters.after, request.parameters.limit)
        return models.RequestPage.model_validate(page)

    async def plan(self, _: AdminRequest) -> summary_models.PlanStatus:
        return self._planner.status()

    async def openapi(self, _: AdminRequest) -> bytes:
        if self._document is None:
            routes = self.routes
            self._document = await anyio.to_thread.run_sync(lambda: encoded_document(routes), limiter=self._threads)
        return self._document

    async def forget(self, request: AdminRequest) -> models.Purged:
        conditions = models.Purge(key=request.parameters.key)
        found = await self.in_thread(lambda: self._overview.purge(conditions))
        if not found.purged:
            raise no_such_entry()
        await self.context.features.after_purge()
        return found

    async def purge(self, request: AdminRequest) -> models.Purged:
        content = request.body.dry_run and await self.listed_content(request, "entries")
        found = await self.in_thread(lambda: self._overview.purge(request.body, content=content))
        if not request.body.dry_run:
            await self.context.features.after_purge()
        return found

    async def snapshot(self, _: AdminRequest) -> models.Saved:
        return models.Saved(saved=await self.in_thread(self._overview.save))

    async def start_plan(self, _: AdminRequest) -> summary_models.PlanStatus:
        history, settings = self.context.history, self.context.settings
        self._planner.start(amounts(history.total(), settings))
        return self._planner.status()

    async def login(self, request: AdminRequest) -> SetCookie:
        identity = self.auth.check.check(request.body.token, request.address)
        session = await self.auth.sessions.begin(identity)
        try:
            await self.write_record(replace(request, caller=Caller(identity, session)).record("login", 200))
        except BaseException:
            await self.auth.sessions.end(session)
            raise
        return SetCookie(content=session_info(session), cookie=cookie(session.id, secure=request.secure))

    async def session(self, request: AdminRequest) -> admin_request.SessionInfo:
        assert request.caller is not None
        assert request.caller.session is not None
        return session_info(request.caller.session)

    async def logout(self, request: AdminRequest) -> SetCookie:
        assert request.caller is not None
        assert request.caller.session is not None
        await self.auth.sessions.end(request.caller.session)
        with contextlib.suppress(RequestRejected):  # a log that cannot be written must not keep a session alive
            await self.write_record(request.record("logout", 200))
        content = admin_request.Done(done=True)
        return SetCookie(content=content, cookie=cookie("", secure=request.secure, seconds=0))


def no_such_entry() -> RequestRejected:
    return RequestRejected(404, "No entry has this key.", "not_found")


class CurrentRoutes:
    """Replaces the routes of the application before a request, if the features that are on have changed."""

    def __init__(self, app: ASGIApp, admin: Admin) -> None:
        self._app, self._admin = app, admin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._admin.compose():
            scope["app"].router.routes[:] = _routes(self._admin)
        await self._app(scope, receive, send)


def admin_app(context: AdminContext) -> Starlette:
    """Return the application. Its owner closes `app.state.admin`."""
    admin = Admin(context)
    handlers: dict[Any, Any] = {HTTPException: http_exception}
    handlers |= dict.fromkeys(KNOWN_ERRORS, lambda _, error: response_of(error))
    middleware = [Middleware(SecurityMiddleware, auth=admin.auth), Middleware(CurrentRoutes, admin=admin)]
    app = Starlette(routes=_routes(admin), middleware=middleware, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.admin = admin
    return app


def _routes(admin: Admin) -> list[StarletteRoute]:
    # One Starlette route per path: with one per method, a wrong method would list only the first method as allowed.
    paths: dict[str, dict[str, StarletteEndpoint]] = {}
    for route in admin.routes:
        for path in filter(None, (ROOT + route.path, route.alias)):
            paths.setdefault(path, {})[route.method] = _endpoint(admin, route)
    routes = [StarletteRoute(path, _by_method(methods), methods=list(methods)) for path, methods in paths.items()]
    if admin.context.settings.dashboard:
        routes += dashboard_routes(admin.all_panels)
    return [*routes, StarletteRoute("/metrics", _metrics(admin), methods=["GET"])]


def _by_method(methods: dict[str, StarletteEndpoint]) -> StarletteEndpoint:
    async def endpoint(request: Request) -> Response:
        return await methods["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def _endpoint(admin: Admin, route: Route) -> StarletteEndpoint:
    serve: Serve = route.serve or getattr(admin, route.name)

    async def endpoint(request: Request) -> Response:
        caller, address = None, client_address(request)
        await admin.auth.refresh(request)
        try:
            if route.access != "public":
                caller = admin.auth.identify(request)
                require(caller.identity, route.role)
            if route.access == "session" and (caller is None or caller.session is None):
                raise RequestRejected(
                    401, "Not logged in: this needs a session (/login).", "missing_session", CHALLENGE
                )
            parameters = parse_query(route.parameters, request.path_params, request.query_params.multi_items())
            body = await read_body(request, route.body) if route.body is not None else None
            received = AdminRequest(
                parameters=parameters, body=body, caller=caller, address=address, secure=is_secure(request)
            )
            changes = route.changes and not getattr(body, "dry_run", False)
            result = await (admin.records.change(route, received, serve) if changes else serve(received))
        except RequestRejected as rejected:
            if rejected.kind in RECORDED_REFUSALS:
                await admin.records.write_refused(route.name, caller, address, rejected.status)
            raise
        headers = {}
        if isinstance(result, SetCookie):
            headers["set-cookie"], result = result.cookie, result.content
        content = result if isinstance(result, bytes) else result.model_dump_json(exclude_unset=True)
        return Response(content, route.status, headers, "application/json")

    return endpoint


def _metrics(admin: Admin) -> StarletteEndpoint:
    context = admin.context

    async def endpoint(request: Request) -> Response:
        if not context.settings.metrics_public:
            await admin.auth.refresh(request)
            try:
                admin.auth.identify(request)
            except RequestRejected as rejected:
                if rejected.kind in RECORDED_REFUSALS:
                    await admin.records.write_refused("metrics", None, client_address(request), rejected.status)
                raise
        await context.features.before_metrics()
        text = await admin.in_thread(context.metrics.render)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return endpoint
