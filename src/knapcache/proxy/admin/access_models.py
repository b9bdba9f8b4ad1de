"""Requests and responses of the admin API that concern access: sessions, tokens and the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from knapcache.proxy.admin.models import Count, Name, QueryInt, RequestModel, ResponseModel
from knapcache.proxy.admin.tokens import Role


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
