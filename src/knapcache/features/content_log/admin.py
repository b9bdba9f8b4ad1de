"""The content log in the admin API: search, one line, purge. For operators, if the setting show_content is on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.features.content_log import models as content_models
from knapcache.features.content_log.file import FILE_NAME, ContentFile, LogFilter
from knapcache.proxy.admin.admin_request import AdminRequest
from knapcache.proxy.admin_routes import AdminServices, Route
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.proxy.settings import Settings


class ContentAdmin:
    """Serves the routes."""

    def __init__(self, settings: Settings, admin: AdminServices) -> None:
        self._settings, self._admin = settings, admin

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(method="GET", path="/log", name="search_log", summary="Search the content log",
                  response=content_models.LogPage, parameters=content_models.LogQuery, operator=True,
                  errors=(409, 503), serve=self.search_log),
            Route(method="GET", path="/log/lines/{line}", name="log_line", summary="One line of the content log",
                  response=content_models.LogLine, parameters=content_models.LogPath, operator=True,
                  errors=(404, 409, 503), serve=self.log_line),
            Route(method="POST", path="/log/purge", name="purge_log", summary="Delete lines of the content log",
                  response=content_models.PurgedLines, body=content_models.LogPurge, errors=(409, 503),
                  serve=self.purge_log),
        ]  # fmt: skip

    async def search_log(self, request: AdminRequest) -> content_models.LogPage:
        query = request.parameters
        wanted = LogFilter(
            text=query.text,
            model=query.model,
            tenant=query.tenant or None,
            outcome=query.outcome,
            since=query.since,
            until=query.until,
        )
        self._require_content()
        if not await self._admin.listed_content(request, "log"):
            raise RequestRejected(503, "The audit log cannot be written, so nothing is shown.", "audit_failed")
        rows = await self._with_file(lambda file: file.search(wanted, query.limit, query.before))
        return content_models.LogPage(rows=[content_models.LogExcerpt(**row) for row in rows])

    async def log_line(self, request: AdminRequest) -> content_models.LogLine:
        self._require_content()
        found = await self._with_file(lambda file: file.line(request.parameters.line))
        if found is None:
            raise RequestRejected(404, "No line of the content log has this number.", "not_found")
        await self._admin.write_record(request.record("log_line", 200, key=found["key"], content=True))
        return content_models.LogLine(**found)

    async def purge_log(self, request: AdminRequest) -> content_models.PurgedLines:
        body = request.body
        wanted = LogFilter(text=body.text or "", model=body.model or "", tenant=body.tenant, until=body.before)

        def purge(file: ContentFile) -> int:
            return file.count(wanted) if body.dry_run else file.purge(wanted)

        return content_models.PurgedLines(deleted=await self._with_file(purge), dry_run=body.dry_run)

    def _require_content(self) -> None:
        """Raise RequestRejected (409) if the settings do not allow to read the log."""
        if not self._settings.show_content:
            message = "The setting show_content is off; `knapcache log search` reads the log on the machine."
            raise RequestRejected(409, message, "no_content")

    async def _with_file(self, work: Callable[[ContentFile], Any]) -> Any:
        """Open the log in a thread, and return what `work` returns. Bad conditions are RequestRejected (400)."""

        def run() -> Any:
            with closing(ContentFile(self._settings.path / FILE_NAME, create=False)) as file:
                return work(file)

        try:
            return await self._admin.in_thread(run)
        except InvalidInput as error:
            message = str(error)
            raise RequestRejected(400, message[:1].upper() + message[1:] + ".", "invalid_request") from None
