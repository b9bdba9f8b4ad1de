"""Writes and reads the audit log for the admin API, in threads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from knapcache.proxy.admin.admin_request import AdminRequest, fields_of
from knapcache.proxy.admin.audit import AuditLog, Record, new_record
from knapcache.proxy.admin.auth import Caller
from knapcache.proxy.admin.responses import KNOWN_ERRORS, response_of
from knapcache.proxy.admin_routes import ResponseModel, Route, Serve
from knapcache.proxy.http.asgi_request import RequestRejected

log = logging.getLogger("knapcache.serve")


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
