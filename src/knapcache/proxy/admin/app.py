"""The admin API, the dashboard's files and `/metrics`, as a Starlette application.

    auth.py       authentication              openapi.py   routes and the OpenAPI document
    tokens.py     tokens and their roles      audit.py     the log of admin actions
    models.py     requests and responses      overview.py  the numbers of cache and history
    planning.py   the capacity plan           pages.py     the dashboard's files
    responses.py  errors and headers          explain.py   why a request was a hit or a miss
    semantic.py   the semantic tier

Work that may wait for the disk runs in a few threads of its own, for at most DEADLINE seconds. A hanging disk then
shows on the dashboard, and the proxy continues to serve.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from knapcache.features.content_log.admin import ContentRoutes
from knapcache.features.content_log.models import PurgedLines
from knapcache.features.explain.explain import Explainer
from knapcache.features.limits.models import LimitPage, limit_page
from knapcache.features.semantic import models as semantic_models
from knapcache.features.semantic.admin import SemanticAdmin
from knapcache.proxy.admin import access_models, models, proxy_models, request_models, summary_models
from knapcache.proxy.admin.admin_request import AdminRequest, SetCookie, fields_of, session_info
from knapcache.proxy.admin.amounts import amounts
from knapcache.proxy.admin.audit import Record, new_record
from knapcache.proxy.admin.auth import (
    CHALLENGE,
    AdminAuth,
    Caller,
    client_address,
    cookie,
    is_secure,
    require,
)
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.admin.models import ResponseModel, parse_query
from knapcache.proxy.admin.openapi import ALIASES, ROOT, ROUTES, Route, encoded_document
from knapcache.proxy.admin.overview import Overview
from knapcache.proxy.admin.pages import dashboard_routes
from knapcache.proxy.admin.panels import PanelPage, panel_row
from knapcache.proxy.admin.planning import Planner
from knapcache.proxy.admin.request_body import read_body
from knapcache.proxy.admin.responses import KNOWN_ERRORS, SecurityMiddleware, http_exception, response_of
from knapcache.proxy.events.recent import row_of
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


Serve = Callable[[AdminRequest], Awaitable[ResponseModel | bytes]]


class Admin(ContentRoutes):
    """Serves the routes of openapi.py: one method per route, with its name."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self.auth = AdminAuth(context.tokens, context.settings.allowed_hosts, context.sessions)
        self._overview = Overview(context)
        self._explainer = Explainer(context)
        self._listed: dict[tuple[str, ...], float] = {}
        """When a caller's reading of first words was recorded."""
        self._semantic = SemanticAdmin(context)
        self._planner = Planner(context.request_log)
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

    async def refresh(self) -> None:
        """Include the requests that have just finished, of this proxy and of others."""
        if self._context.shared is None:
            self._context.flush_events()
        else:
            await self.in_thread(self._context.refresh)

    async def summary(self, _: AdminRequest) -> summary_models.Summary:
        return await self.in_thread(self._overview.summary)

    async def history(self, request: AdminRequest) -> summary_models.UsageHistory:
        return await self.in_thread(lambda: self._overview.history(request.parameters.span))

    async def entries(self, request: AdminRequest) -> models.EntryPage:
        content = await self.listed_content(request, "entries")
        return await self.in_thread(lambda: self._overview.entries(request.parameters, content=content))

    def shows_content(self, request: AdminRequest) -> bool:
        """Return whether a caller may read requests and answers."""
        assert request.caller is not None
        return self._context.settings.show_content and request.caller.identity.role == "operator"

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

    async def audit(self, request: AdminRequest) -> access_models.AuditPage:
        rows = await self.in_thread(lambda: self._read_records(request.parameters.limit))
        return access_models.AuditPage(rows=[access_models.AuditRecord(**row) for row in rows])

    async def rotate_token(self, request: AdminRequest) -> access_models.RotatedToken:
        assert request.caller is not None
        name = request.body.name or request.caller.identity.name
        token = await self.in_thread(lambda: self._context.tokens.rotate(name))
        return access_models.RotatedToken(name=name, token=token)

    async def list_tokens(self, _: AdminRequest) -> access_models.TokenPage:
        rows = [access_models.TokenRow(name=one.name, role=one.role) for one in self._context.tokens.all()]
        return access_models.TokenPage(rows=rows)

    async def panels(self, _: AdminRequest) -> PanelPage:
        return PanelPage(rows=[panel_row(panel) for panel in self._context.panels])

    async def proxies(self, _: AdminRequest) -> proxy_models.ProxyPage:
        return await self.in_thread(self._overview.proxies)

    async def requests(self, request: AdminRequest) -> models.RequestPage:
        await self.refresh()
        page = self._context.recent.after(request.parameters.after, request.parameters.limit)
        return models.RequestPage.model_validate(page)

    async def request(self, request: AdminRequest) -> request_models.RequestDetail:
        assert request.caller is not None
        await self.refresh()
        serial, content = request.parameters.serial, self.shows_content(request)
        found_event = self._context.recent.find(serial)
        if found_event is None:
            raise RequestRejected(404, "This request is not among the recent ones.", "not_found")
        event, row = found_event[0], row_of(serial, *found_event)
        earlier, all_tenants = self._context.recent.earlier(event), request.caller.identity.role == "operator"
        explain = partial(self._explainer.detail, row, event, earlier, content=content, all_tenants=all_tenants)
        found = await self.in_thread(explain)
        if content:
            await self.write_record(request.record("request", 200, key=event.key, content=True))
        return found

    async def semantic(self, request: AdminRequest) -> semantic_models.SemanticStatus:
        content = await self.listed_content(request, "semantic")
        self._context.flush_events()
        matches = self._context.matches.newest(request.parameters.limit, request.parameters.scope)
        reports = await self._semantic.report()
        return await self.in_thread(lambda: self._semantic.status(reports, matches, content=content))

    async def mark_match(self, request: AdminRequest) -> semantic_models.MarkedMatch:
        self._context.flush_events()
        scope = await self._semantic.mark(request.body.match)
        return semantic_models.MarkedMatch(match=request.body.match, scope=scope, verdict="different")

    async def limits(self, _: AdminRequest) -> LimitPage:
        return await limit_page(self._context.limits)

    async def plan(self, _: AdminRequest) -> summary_models.PlanStatus:
        return self._planner.status()

    async def openapi(self, _: AdminRequest) -> bytes:
        return await anyio.to_thread.run_sync(encoded_document, limiter=self._threads)

    async def forget(self, request: AdminRequest) -> models.Purged:
        conditions = models.Purge(key=request.parameters.key)
        found = await self.in_thread(lambda: self._overview.purge(conditions))
        if not found.purged:
            raise no_such_entry()
        await self._semantic.after_purge()
        return found

    async def purge(self, request: AdminRequest) -> models.Purged:
        content = request.body.dry_run and await self.listed_content(request, "entries")
        found = await self.in_thread(lambda: self._overview.purge(request.body, content=content))
        if not request.body.dry_run:
            await self._semantic.after_purge()
        return found

    async def snapshot(self, _: AdminRequest) -> models.Saved:
        return models.Saved(saved=await self.in_thread(self._overview.save))

    async def start_plan(self, _: AdminRequest) -> summary_models.PlanStatus:
        history, settings = self._context.history, self._context.settings
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

    async def session(self, request: AdminRequest) -> access_models.SessionInfo:
        assert request.caller is not None
        assert request.caller.session is not None
        return session_info(request.caller.session)

    async def logout(self, request: AdminRequest) -> SetCookie:
        assert request.caller is not None
        assert request.caller.session is not None
        await self.auth.sessions.end(request.caller.session)
        with contextlib.suppress(RequestRejected):  # a log that cannot be written must not keep a session alive
            await self.write_record(request.record("logout", 200))
        content = access_models.Done(done=True)
        return SetCookie(content=content, cookie=cookie("", secure=request.secure, seconds=0))

    # The audit log.

    async def change(self, route: Route, request: AdminRequest, serve: Serve) -> ResponseModel | bytes:
        """Carry out a request that changes something, and record it before and after."""
        sent = {} if request.body is None else request.body.model_dump(exclude_none=True, exclude_defaults=True)
        record = request.record(route.name, None, **request.parameters.model_dump(exclude_none=True), **sent)
        await self.write_record(record)
        status, result = 500, None
        try:
            response = await serve(request)
            status = route.status
            if isinstance(response, (models.Purged, models.Saved, PurgedLines)):
                result = response.model_dump(include={"purged", "saved", "deleted"})
            return response
        except KNOWN_ERRORS as error:
            status = response_of(error).status_code
            raise
        finally:
            with contextlib.suppress(RequestRejected):  # the change is done, and its first line is written
                await self.write_record({**record, "status": status, "result": result})

    async def write_record(self, record: Record) -> None:
        """Write a record. Raises RequestRejected (503) if that fails."""
        await self.in_thread(lambda: self._write(self._context.audit.append, record))

    async def write_refused(self, action: str, caller: Caller | None, address: str, status: int) -> None:
        """Record a refused request. Nothing is raised: it is refused in any case."""
        if self._context.audit.allow_refused(address):
            record = new_record(action, **fields_of(caller), address=address, parameters={}, status=status)
            with contextlib.suppress(RequestRejected):
                await self.in_thread(lambda: self._write(self._context.audit.append_refused, record))

    def _write(self, append: Callable[[Record], None], record: Record) -> None:
        try:
            append(record)
        except OSError as error:
            log.error("Audit log not written: %s", error)
            message = "The audit log cannot be written, so nothing was done."
            raise RequestRejected(503, message, "audit_failed", [("retry-after", "10")]) from None

    def _read_records(self, limit: int) -> list[Record]:
        try:
            return self._context.audit.newest(limit)
        except OSError as error:
            raise RequestRejected(503, f"The audit log cannot be read: {error.strerror}.", "audit_failed") from None


def no_such_entry() -> RequestRejected:
    """Return the error for an unknown key."""
    return RequestRejected(404, "No entry has this key.", "not_found")


def admin_app(context: AdminContext) -> Starlette:
    """Return the application. Its owner closes `app.state.admin`."""
    admin = Admin(context)
    # One Starlette route per path: with one per method, a wrong method would list only the first method as allowed.
    paths: dict[str, dict[str, StarletteEndpoint]] = {}
    for route in ROUTES:
        for path in filter(None, (ROOT + route.path, ALIASES.get(route.path))):
            paths.setdefault(path, {})[route.method] = _endpoint(admin, route)
    routes = [StarletteRoute(path, _by_method(methods), methods=list(methods)) for path, methods in paths.items()]
    if context.settings.dashboard:
        routes += dashboard_routes(context.panels)
    routes.append(StarletteRoute("/metrics", _metrics(admin, context), methods=["GET"]))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await admin.close()

    handlers: dict[Any, Any] = {HTTPException: http_exception}
    handlers |= dict.fromkeys(KNOWN_ERRORS, lambda _, error: response_of(error))
    middleware = [Middleware(SecurityMiddleware, auth=admin.auth)]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.admin = admin
    return app


def _by_method(methods: dict[str, StarletteEndpoint]) -> StarletteEndpoint:
    async def endpoint(request: Request) -> Response:
        return await methods["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def _endpoint(admin: Admin, route: Route) -> StarletteEndpoint:
    serve: Serve = getattr(admin, route.name)

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
            result = await (admin.change(route, received, serve) if changes else serve(received))
        except RequestRejected as rejected:
            if rejected.kind in RECORDED_REFUSALS:
                await admin.write_refused(route.name, caller, address, rejected.status)
            raise
        headers = {}
        if isinstance(result, SetCookie):
            headers["set-cookie"], result = result.cookie, result.content
        content = result if isinstance(result, bytes) else result.model_dump_json(exclude_unset=True)
        return Response(content, route.status, headers, "application/json")

    return endpoint


def _metrics(admin: Admin, context: AdminContext) -> StarletteEndpoint:
    async def endpoint(request: Request) -> Response:
        if not context.settings.metrics_public:
            await admin.auth.refresh(request)
            try:
                admin.auth.identify(request)
            except RequestRejected as rejected:
                if rejected.kind in RECORDED_REFUSALS:
                    await admin.write_refused("metrics", None, client_address(request), rejected.status)
                raise
        await context.before_metrics()
        text = await admin.in_thread(context.metrics.render)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return endpoint
