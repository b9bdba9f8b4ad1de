"""Start-up check of the uvicorn internals that uvicorn_protocol.py relies on.

pyproject.toml allows only uvicorn versions whose internals were tested. Other versions can still be installed by hand.
If a check fails, the proxy serves with uvicorn's own protocol: every request works, and hits cost about a third more.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

import uvicorn

log = logging.getLogger("knapcache.serve")

PROTOCOL_METHODS = {
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "on_response_complete": ["self"],
}
"""Methods that are overridden or called, with their parameters."""
PROTOCOL_ATTRIBUTES = (
    "app", "cycle", "expect_100_continue", "flow", "headers", "logger", "loop", "parser", "scope", "server_state",
    "tasks", "transport", "url",
)  # fmt: skip
PARSER_METHODS = ("get_http_version", "get_method", "should_keep_alive")
CYCLE_METHODS = {"run_asgi": ["self", "app"], "send": ["self", "message"], "receive": ["self"]}
CYCLE_ATTRIBUTES = {
    "access_log", "access_logger", "body", "chunked_encoding", "default_headers", "disconnected",
    "expected_content_length", "flow", "keep_alive", "logger", "message_event", "more_body", "on_response",
    "response_complete", "response_started", "scope", "transport", "waiting_for_100_continue",
}  # fmt: skip
"""All attributes of a cycle. `RequestCycle` replaces the constructor, so a new attribute would be missing there."""
OWN_ATTRIBUTES = ("_body", "_head_length", "_state")
"""Attributes that the subclass adds to the protocol."""


def http_protocol() -> Any:
    """Return uvicorn's `http` setting: the protocol with the fast path, or uvicorn's own and a warning in the log."""
    problem = find_incompatibility()
    if problem is None:
        from knapcache.serve.http.uvicorn_protocol import FastPathProtocol

        return FastPathProtocol
    log.warning(
        "Fast path disabled: uvicorn %s has other internals (%s). Requests are served by its own protocol.",
        uvicorn.__version__,
        problem,
    )
    return "httptools"


def find_incompatibility() -> str | None:
    """Return what is not as uvicorn_protocol.py expects it, or None."""
    try:
        from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

        if not STATUS_LINE[200].startswith(b"HTTP/1.1 200 "):
            return "STATUS_LINE"
        return (
            _find_other_parameters(HttpToolsProtocol, PROTOCOL_METHODS)
            or _find_other_parameters(RequestResponseCycle, CYCLE_METHODS)
            or _check_protocol(HttpToolsProtocol)
            or _check_cycle(RequestResponseCycle)
        )
    except (ImportError, AttributeError, KeyError, TypeError) as error:
        return str(error)


def _find_other_parameters(owner: type, methods: dict[str, list[str]]) -> str | None:
    for name, parameters in methods.items():
        found = list(inspect.signature(getattr(owner, name)).parameters)
        if found != parameters:
            return f"{owner.__name__}.{name} takes {', '.join(found)}"
    return None


def _check_protocol(protocol_class: Any) -> str | None:
    from uvicorn.server import ServerState

    config = uvicorn.Config(_no_app, ws="none", interface="asgi3", lifespan="off", log_config=None)
    loop = asyncio.new_event_loop()
    try:
        protocol = protocol_class(config, ServerState(), {}, _loop=loop)
    finally:
        loop.close()
    protocol.on_message_begin()
    missing = [name for name in PROTOCOL_ATTRIBUTES if not hasattr(protocol, name)]
    missing += [name for name in PARSER_METHODS if not hasattr(protocol.parser, name)]
    if missing:
        return f"{protocol_class.__name__} has no {', '.join(missing)}"
    if protocol.scope["headers"] is not protocol.headers:
        return f"the scope of {protocol_class.__name__} does not share its headers"
    taken = [name for name in OWN_ATTRIBUTES if hasattr(protocol, name)]
    return f"{protocol_class.__name__} has {', '.join(taken)}" if taken else None


def _check_cycle(cycle_class: Any) -> str | None:
    arguments = list(inspect.signature(cycle_class).parameters)
    attributes = set(vars(cycle_class(**dict.fromkeys(arguments))))
    if attributes != CYCLE_ATTRIBUTES:
        return f"{cycle_class.__name__} differs in {', '.join(sorted(attributes ^ CYCLE_ATTRIBUTES))}"
    return None


async def _no_app(_scope: Any, _receive: Any, _send: Any) -> None:
    """Stand for an application that is never called."""
