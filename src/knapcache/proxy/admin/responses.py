"""Error responses, and the headers that every response has."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.proxy.admin import models
from knapcache.proxy.admin.auth import AdminAuth
from knapcache.proxy.http.asgi_request import RequestRejected

ERROR_STATUS: dict[type[Exception], tuple[int, str]] = {
    InvalidInput: (400, "invalid_request"),
    NotOwner: (409, "not_owner"),
    StoreError: (503, "store_failed"),
}
KNOWN_ERRORS: tuple[type[Exception], ...] = (RequestRejected, *ERROR_STATUS)
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class SecurityMiddleware:
    """Checks host and origin before anything else, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, auth: AdminAuth) -> None:
        self._app, self._auth = app, auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                more = list(SECURITY_HEADERS)
                if b"cache-control" not in names:
                    more.append((b"cache-control", b"no-store"))
                if b"content-security-policy" not in names:
                    more.append((b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"))
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            self._auth.check_origin(Request(scope))
        except RequestRejected as rejected:
            await response_of(rejected)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


def error_response(status: int, message: str, kind: str, headers: dict[str, str] | None = None) -> Response:
    content = models.Error(error=models.ErrorDetail(message=message, type=kind)).model_dump_json()
    return Response(content, status, headers, "application/json")


def response_of(error: Exception) -> Response:
    """Return the response to one of KNOWN_ERRORS."""
    if isinstance(error, RequestRejected):
        return error_response(error.status, error.message, error.kind, dict(error.headers))
    status, kind = next(value for kind, value in ERROR_STATUS.items() if isinstance(error, kind))
    return error_response(status, str(error), kind)


def http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    return error_response(error.status_code, error.detail, kind, dict(error.headers or {}))
