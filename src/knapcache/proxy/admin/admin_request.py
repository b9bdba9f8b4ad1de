"""A request to the admin API after authentication, and what the audit log and the page get to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from knapcache.proxy.admin import access_models
from knapcache.proxy.admin.audit import Record, new_record
from knapcache.proxy.admin.auth import Caller, Session
from knapcache.proxy.admin.models import ResponseModel


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
        """Return a record of this request for the audit log."""
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


def session_info(session: Session) -> access_models.SessionInfo:
    """Return what a session's page needs to know."""
    return access_models.SessionInfo(csrf=session.csrf, name=session.identity.name, role=session.identity.role)
