"""Requests to the admin API after authentication: reading them, their records in the audit log, sessions and tokens."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from starlette.requests import ClientDisconnect, Request

from knapcache.proxy.admin.audit import AuditLog, Record, new_record
from knapcache.proxy.admin.auth import Caller, Session
from knapcache.proxy.admin.models import Count, Name, QueryInt, bad_request, parse
from knapcache.proxy.admin.responses import KNOWN_ERRORS, response_of
from knapcache.proxy.admin.tokens import Role
from knapcache.proxy.admin_routes import RequestModel, ResponseModel, Route, Serve
from knapcache.proxy.http.asgi_request import RequestRejected

log = logging.getLogger("knapcache.serve")

MAX_BODY = 64 << 10
"""Bytes of a request body."""


class Login(RequestModel):
    """An admin token."""

    token: Annotated[str, Field(max_length=4096)]


class SessionInfo(ResponseModel):
    """A session: its CSRF token, and whose it is."""

    csrf: Annotated[str, Field(description="Value for the header x-csrf-token, which every request must have.")]
    name: Annotated[str, Field(description="Name of the token that began the session.")]
    role: Role


class Done(ResponseModel):
    """Confirmation."""

    done: bool


class RotateToken(RequestModel):
    """The token to replace."""

    name: Annotated[Name | SkipJsonSchema[None], Field(description="Its name. Default: the caller's token.")] = None


class RotatedToken(ResponseModel):
    """A new token. The old one and its sessions are no longer valid."""

    name: str
    token: str


class TokenRow(ResponseModel):
    """A valid admin token, without the token itself."""

    name: str
    role: Role


class TokenPage(ResponseModel):
    """The valid admin tokens."""

    rows: list[TokenRow]


class AuditQuery(RequestModel):
    """Parameters of GET /audit."""

    limit: Annotated[QueryInt, Field(ge=1, le=500)] = 100


class AuditRecord(ResponseModel):
    """An admin action or a refused request."""

    id: str
    time: Annotated[str, Field(description="UTC, ISO 8601.")]
    action: Annotated[str, Field(description="operationId of the route.")]
    name: Annotated[str, Field(description="Name of the token; empty: no valid token.")]
    role: Annotated[str, Field(description="Role of the token; empty: no valid token.")]
    address: Annotated[str, Field(description="The client's IP address.")]
    session: Annotated[str, Field(description="Start of the session's digest; empty: no session.")]
    parameters: Annotated[dict[str, Any], Field(description="Without content and secrets.")]
    status: Annotated[int | None, Field(description="null: a change that has not ended, or whose process has.")]
    result: dict[str, Any] | None = None
    skipped: Annotated[Count, Field(description="Refused requests before this one that were not recorded.")] = 0


class AuditPage(ResponseModel):
    """Records, newest first."""

    rows: list[AuditRecord]


@dataclass(frozen=True, kw_only=True)
class AdminRequest:
    """An authenticated and validated request."""

    parameters: Any
    """An instance of the route's parameter model."""
    body: Any
    """An instance of the route's body model, or None."""
    caller: Caller | None
    """None: a public route."""
    address: str
    secure: bool

    def record(self, action: str, status: int | None, **parameters: Any) -> Record:
        return new_record(action, **fields_of(self.caller), address=self.address, parameters=parameters, status=status)


class SetCookie(ResponseModel):
    """A response that also sets the session cookie."""

    content: ResponseModel
    cookie: str


def fields_of(caller: Caller | None) -> dict[str, str]:
    """Return the fields of an audit record that say who sent a request."""
    if caller is None:
        return {"name": "", "role": "", "session": ""}
    session = "" if caller.session is None else caller.session.label
    return {"name": caller.identity.name, "role": caller.identity.role, "session": session}


def session_info(session: Session) -> SessionInfo:
    """Return what a session's page needs to know."""
    return SessionInfo(csrf=session.csrf, name=session.identity.name, role=session.identity.role)


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


class AuditRecords:
    """The audit log as the admin API uses it. in_thread: runs a function in a thread, for a limited time."""

    def __init__(self, audit: AuditLog, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._audit, self._in_thread = audit, in_thread

    async def change(self, route: Route, request: AdminRequest, serve: Serve) -> ResponseModel | bytes:
        """Carry out a request that changes something, and record it before and after."""
        sent = {} if request.body is None else request.body.model_dump(exclude_none=True, exclude_defaults=True)
        record = request.record(route.name, None, **request.parameters.model_dump(exclude_none=True), **sent)
        await self.write(record)
        status, result = 500, None
        try:
            response = await serve(request)
            status = route.status
            if isinstance(response, ResponseModel) and response.recorded:
                result = response.model_dump(include=set(response.recorded))
            return response
        except KNOWN_ERRORS as error:
            status = response_of(error).status_code
            raise
        finally:
            with contextlib.suppress(RequestRejected):  # the change is done, and its first line is written
                await self.write({**record, "status": status, "result": result})

    async def write(self, record: Record) -> None:
        """Write a record. Raises RequestRejected (503) if that fails."""
        await self._in_thread(lambda: self._write(self._audit.append, record))

    async def write_refused(self, action: str, caller: Caller | None, address: str, status: int) -> None:
        """Record a refused request. Nothing is raised: it is refused in any case."""
        if self._audit.allow_refused(address):
            record = new_record(action, **fields_of(caller), address=address, parameters={}, status=status)
            with contextlib.suppress(RequestRejected):
                await self._in_thread(lambda: self._write(self._audit.append_refused, record))

    async def newest(self, limit: int) -> list[Record]:
        """Return the newest records, newest first. Raises RequestRejected (503) if they cannot be read."""
        rows: list[Record] = await self._in_thread(lambda: self._read(limit))
        return rows

    def _write(self, append: Callable[[Record], None], record: Record) -> None:
        try:
            append(record)
        except OSError as error:
            log.error("Audit log not written: %s", error)
            message = "The audit log cannot be written, so nothing was done."
            raise RequestRejected(503, message, "audit_failed", [("retry-after", "10")]) from None

    def _read(self, limit: int) -> list[Record]:
        try:
            return self._audit.newest(limit)
        except OSError as error:
            raise RequestRejected(503, f"The audit log cannot be read: {error.strerror}.", "audit_failed") from None
