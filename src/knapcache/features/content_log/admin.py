"""The content log in the admin API: search, one line, purge. For operators, if the setting show_content is on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from knapcache.errors import InvalidInput
from knapcache.features.content_log.file import FILE_NAME, ContentFile, LogFilter
from knapcache.proxy.admin.admin_request import AdminRequest
from knapcache.proxy.admin.models import (
    MAX_SERIAL,
    Count,
    LoggedRequest,
    Name,
    QueryInt,
    RequestModel,
    ResponseModel,
    check_conditions,
)
from knapcache.proxy.admin_routes import AdminServices, Route
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.proxy.settings import Settings


def _time_from_query(text: Any) -> Any:
    """Convert a query parameter to a Unix time. Other text is left to the strict model, which rejects it."""
    try:
        return float(text) if isinstance(text, str) else text
    except ValueError:
        return text


Time = Annotated[float, Field(ge=0, le=1e11, description="Unix time.")]
QueryTime = Annotated[Time, BeforeValidator(_time_from_query)]
Words = Annotated[
    str, Field(max_length=500, description='Words that must all occur; "a phrase" in quotes; word* by its beginning.')
]


class LogQuery(RequestModel):
    """Parameters of GET /log."""

    text: Words = ""
    model: Annotated[Name, Field(description="A pattern such as gpt-4o*. Empty: all.")] = ""
    tenant: Annotated[Name, Field(description="Empty: all.")] = ""
    outcome: Annotated[Name, Field(description="Such as hit or miss. Empty: all.")] = ""
    since: QueryTime | SkipJsonSchema[None] = None
    until: QueryTime | SkipJsonSchema[None] = None
    before: Annotated[QueryInt | SkipJsonSchema[None], Field(ge=1, le=MAX_SERIAL, description="Older than line N.")] = (
        None
    )
    limit: Annotated[QueryInt, Field(ge=1, le=200)] = 50


class LogPath(RequestModel):
    """Path parameter of /log/lines/{line}."""

    line: Annotated[QueryInt, Field(ge=1, le=MAX_SERIAL, description="Number of a line, as in GET /log.")]


class LogPurge(RequestModel):
    """Conditions of a purge of lines. Lines that meet all of them are deleted. `all` is given without others."""

    text: Annotated[Words | SkipJsonSchema[None], Field(exclude=True)] = None  # not in the audit log
    model: Name | SkipJsonSchema[None] = None
    tenant: Name | SkipJsonSchema[None] = None
    before: Time | SkipJsonSchema[None] = None
    all: Annotated[bool | SkipJsonSchema[None], Field(json_schema_extra={"const": True})] = None
    dry_run: Annotated[bool, Field(description="Delete nothing; return how many lines would be deleted.")] = False

    @model_validator(mode="before")
    @classmethod
    def _one_condition(cls, data: Any) -> Any:
        check_conditions(data, "text, model, tenant or before")
        if isinstance(data, dict) and (data.get("text") == "" or data.get("model") == ""):
            raise ValueError("empty texts are not conditions")
        return data


class LogRow(LoggedRequest):
    """A line of the content log."""

    id: int
    cut: Annotated[bool, Field(description="Whether a part of request or answer was left out.")]


class LogExcerpt(LogRow):
    """A line that was found."""

    excerpt: Annotated[str, Field(description="Found words are between U+0002 and U+0003.")]


class LogPage(ResponseModel):
    """Lines, newest first."""

    rows: list[LogExcerpt]


class LogLine(LogRow):
    """A line with its content, after redaction."""

    prompt: Annotated[str, Field(description="System prompt and last user text.")]
    answer: Annotated[str, Field(description="Text of the answer.")]
    request: dict[str, Any]
    response: dict[str, Any]


class PurgedLines(ResponseModel):
    """Result of a purge."""

    recorded: ClassVar[frozenset[str]] = frozenset({"deleted"})

    deleted: Count
    dry_run: bool


class ContentAdmin:
    """Serves the routes."""

    def __init__(self, settings: Settings, admin: AdminServices) -> None:
        self._settings, self._admin = settings, admin

    def routes(self) -> list[Route]:
        return [
            Route(method="GET", path="/log", name="search_log", summary="Search the content log",
                  response=LogPage, parameters=LogQuery, operator=True,
                  errors=(409, 503), serve=self.search_log),
            Route(method="GET", path="/log/lines/{line}", name="log_line", summary="One line of the content log",
                  response=LogLine, parameters=LogPath, operator=True,
                  errors=(404, 409, 503), serve=self.log_line),
            Route(method="POST", path="/log/purge", name="purge_log", summary="Delete lines of the content log",
                  response=PurgedLines, body=LogPurge, errors=(409, 503),
                  serve=self.purge_log),
        ]  # fmt: skip

    async def search_log(self, request: AdminRequest) -> LogPage:
        query = request.parameters
        conditions = query.model_dump(exclude={"before", "limit"}) | {"tenant": query.tenant or None}
        wanted = LogFilter(**conditions)
        self._require_content()
        if not await self._admin.listed_content(request, "log"):
            raise RequestRejected(503, "The audit log cannot be written, so nothing is shown.", "audit_failed")
        rows = await self._with_file(lambda file: file.search(wanted, query.limit, query.before))
        return LogPage(rows=[LogExcerpt(**row) for row in rows])

    async def log_line(self, request: AdminRequest) -> LogLine:
        self._require_content()
        found = await self._with_file(lambda file: file.line(request.parameters.line))
        if found is None:
            raise RequestRejected(404, "No line of the content log has this number.", "not_found")
        await self._admin.write_record(request.record("log_line", 200, key=found["key"], content=True))
        return LogLine(**found)

    async def purge_log(self, request: AdminRequest) -> PurgedLines:
        body = request.body
        wanted = LogFilter(text=body.text or "", model=body.model or "", tenant=body.tenant, until=body.before)

        def purge(file: ContentFile) -> int:
            return file.count(wanted) if body.dry_run else file.purge(wanted)

        return PurgedLines(deleted=await self._with_file(purge), dry_run=body.dry_run)

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
