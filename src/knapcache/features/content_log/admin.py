"""The content log in the admin API: search, one line, purge. For operators, if the setting show_content is on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, Protocol

from knapcache.errors import InvalidInput
from knapcache.features.content_log import models as content_models
from knapcache.features.content_log.file import FILE_NAME, ContentFile, LogFilter
from knapcache.proxy.admin.admin_request import AdminRequest
from knapcache.proxy.admin.audit import Record
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.http.asgi_request import RequestRejected


class AdminActions(Protocol):
    """What these routes use of `Admin`."""

    _context: AdminContext

    def in_thread(self, work: Callable[[], Any]) -> Awaitable[Any]:
        """Run `work` in a thread."""

    def write_record(self, record: Record) -> Awaitable[None]:
        """Write a record to the audit log."""

    async def listed_content(self, request: AdminRequest, action: str) -> bool:
        """Return whether a list may have content, and record that it is read."""


class ContentRoutes:
    """The routes, as a part of `Admin`."""

    async def search_log(self: AdminActions, request: AdminRequest) -> content_models.LogPage:
        query = request.parameters
        wanted = LogFilter(
            text=query.text,
            model=query.model,
            tenant=query.tenant or None,
            outcome=query.outcome,
            since=query.since,
            until=query.until,
        )
        settings = self._context.settings
        require_content_log(settings.content_log, settings.show_content)
        if not await self.listed_content(request, "log"):
            raise RequestRejected(503, "The audit log cannot be written, so nothing is shown.", "audit_failed")
        rows = await self.in_thread(
            lambda: with_file(self._context, lambda file: file.search(wanted, query.limit, query.before))
        )
        return content_models.LogPage(rows=[content_models.LogExcerpt(**row) for row in rows])

    async def log_line(self: AdminActions, request: AdminRequest) -> content_models.LogLine:
        number, settings = request.parameters.line, self._context.settings
        require_content_log(settings.content_log, settings.show_content)
        found = await self.in_thread(lambda: with_file(self._context, lambda file: file.line(number)))
        if found is None:
            raise RequestRejected(404, "No line of the content log has this number.", "not_found")
        await self.write_record(request.record("log_line", 200, key=found["key"], content=True))
        return content_models.LogLine(**found)

    async def purge_log(self: AdminActions, request: AdminRequest) -> content_models.PurgedLines:
        body = request.body
        require_content_log(self._context.settings.content_log, shown=True)
        wanted = LogFilter(text=body.text or "", model=body.model or "", tenant=body.tenant, until=body.before)

        def purge(file: ContentFile) -> int:
            return file.count(wanted) if body.dry_run else file.purge(wanted)

        deleted = await self.in_thread(lambda: with_file(self._context, purge))
        return content_models.PurgedLines(deleted=deleted, dry_run=body.dry_run)


def require_content_log(on: bool, shown: bool) -> None:
    """Raise RequestRejected (409) if the settings do not allow to read the log."""
    if not on:
        raise RequestRejected(409, "The setting content_log is off.", "no_content_log")
    if not shown:
        raise RequestRejected(
            409, "The setting show_content is off; `knapcache log search` reads the log on the machine.", "no_content"
        )


def with_file(context: AdminContext, work: Callable[[ContentFile], Any]) -> Any:
    """Open the log, and return what `work` returns. Bad conditions are RequestRejected (400)."""
    try:
        with closing(ContentFile(context.settings.path / FILE_NAME, create=False)) as file:
            return work(file)
    except InvalidInput as error:
        message = str(error)
        raise RequestRejected(400, message[:1].upper() + message[1:] + ".", "invalid_request") from None
