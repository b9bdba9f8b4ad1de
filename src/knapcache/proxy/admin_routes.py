"""What features add to the admin API: routes, fields of GET /summary, and explanations of requests.

The frame (admin/app.py) authenticates, validates and records requests of all routes, and generates the OpenAPI document
from them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from knapcache.proxy.events.history_reader import HistoryReader
from knapcache.proxy.events.recent import RecentReader

Access = Literal["token", "session", "public"]
Role = Literal["read-only", "operator"]
R = TypeVar("R")


class RequestModel(BaseModel):
    """Parameters or body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ResponseModel(BaseModel):
    """Body of a response."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    recorded: ClassVar[frozenset[str]] = frozenset()
    """Fields that the audit log has as the result of a change."""


class NoParameters(RequestModel):
    """No path or query parameters."""


Serve = Callable[[Any], Awaitable[ResponseModel | bytes]]
"""Serves a request (admin/admin_request.py)."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method of one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    name: str
    """Its operationId, and the action in the audit log."""
    summary: str
    response: type[ResponseModel] | None
    """None: an object without a model."""
    serve: Serve | None = None
    """None: the method of `Admin` with this name serves it."""
    alias: str = ""
    """A second address, which the OpenAPI document does not list."""
    access: Access = "token"
    """session: the cookie is required; public: no authentication."""
    parameters: type[RequestModel] = NoParameters
    body: type[RequestModel] | None = None
    status: int = 200
    errors: tuple[int, ...] = ()
    operator: bool | None = None
    """Whether it needs the role operator. None: it does unless it only reads."""

    @property
    def changes(self) -> bool:
        """Whether it changes something, apart from sessions. Such a request is recorded before it is carried out."""
        return self.method != "GET" and self.access == "token"

    @property
    def role(self) -> Role:
        """The role that a token must have."""
        needed = self.changes if self.operator is None else self.operator
        return "operator" if needed else "read-only"

    @property
    def all_errors(self) -> tuple[int, ...]:
        """Every error status that the route can return."""
        found = {421, *self.errors}
        found.add(403)
        if self.access != "public":
            found |= {401, 429}
        if self.changes:
            found.add(503)
        if self.method != "GET":
            found |= {400, 413}
        if self.parameters.model_fields:
            found.add(400)
        return tuple(sorted(found))


class SummaryField(NamedTuple):
    """A field that a feature adds to GET /summary."""

    name: str
    type: Any
    """Of the field in the pydantic model."""
    description: str
    value: Callable[[], Any]
    """Returns the value. Called in a thread."""
    of_health: bool = False
    """Whether it is a field of `health`."""


class FeatureExplanation(NamedTuple):
    """What a feature says about a request in GET /requests/{serial}."""

    text: str = ""
    """What it did with the request; empty: nothing, or it answered."""
    why: Any = None
    """If it answered the request: an `Explanation` (admin/models.py)."""
    words: str | None = None
    """First words of the request, if the feature knows them."""


class AdminServices(Protocol):
    """What the routes of features use of the admin API."""

    @property
    def totals(self) -> HistoryReader:
        """The totals, of all proxies of a shared store."""

    @property
    def recent(self) -> RecentReader:
        """The recent requests, of all proxies of a shared store."""

    def flush_events(self) -> object:
        """Pass buffered events to their consumers. Runs on the event loop's thread."""

    def read_shared(self) -> None:
        """Read the numbers of other proxies, which may wait for the server of a shared store. Runs in a thread."""

    async def refresh(self) -> None:
        """Include the requests that have just finished, of this proxy and of others."""

    async def in_thread(self, work: Callable[[], R]) -> R:
        """Run `work` in a thread. Raises RequestRejected (503) if it takes too long."""

    async def write_record(self, record: dict[str, Any]) -> None:
        """Write a record to the audit log. Raises RequestRejected (503) if that fails."""

    def shows_content(self, request: Any) -> bool:
        """Return whether the caller may read requests and answers."""

    async def listed_content(self, request: Any, action: str) -> bool:
        """Return whether a list has parts of prompts, and record that they are read."""

    def tenant_name(self, namespace: str) -> str:
        """Return the name of the tenant that has a namespace."""
