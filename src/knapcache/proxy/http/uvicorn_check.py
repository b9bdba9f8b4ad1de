"""Start-up check of the uvicorn internals that limited_protocol.py and uvicorn_protocol.py rely on.

pyproject.toml allows only uvicorn versions whose internals were tested. Other versions can still be installed by hand.

    all as expected              FastPathProtocol
    the fast path cannot work    LimitedProtocol: every request works, the limits hold, and hits cost about a third more
    the limits cannot work       the proxy does not start
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import shlex
import sys
from typing import Any

import uvicorn

from knapcache.errors import InvalidInput

log = logging.getLogger("knapcache.serve")

LIMIT_METHODS = {
    "_unset_keepalive_if_required": ["self"],
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "on_message_begin": ["self"],
    "on_header": ["self", "name", "value"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
}
"""Methods that limited_protocol.py overrides or calls, with their parameters."""
LIMIT_ATTRIBUTES = (
    "app", "client", "cycle", "expect_100_continue", "flow", "headers", "parser", "pipeline", "server_state",
    "transport", "url",
)  # fmt: skip
LIMIT_CYCLE_ATTRIBUTES = {
    "disconnected", "keep_alive", "message_event", "response_complete", "response_started", "scope",
}  # fmt: skip
LIMIT_OWN_ATTRIBUTES = (
    "_body_seen", "_closing", "_connections", "_counted", "_discardable", "_error", "_framing_size",
    "_max_header_count", "_raw_size", "body_size", "messages", "sent", "stage", "state",
)  # fmt: skip
"""Attributes that limited_protocol.py adds to the protocol."""
FAST_PATH_METHODS = {"on_response_complete": ["self"]}
"""Methods that uvicorn_protocol.py calls beside these."""
FAST_PATH_ATTRIBUTES = ("logger", "loop", "scope", "tasks")
PARSER_METHODS = ("get_http_version", "get_method", "should_keep_alive", "should_upgrade")
CYCLE_METHODS = {"run_asgi": ["self", "app"], "send": ["self", "message"], "receive": ["self"]}
CYCLE_ATTRIBUTES = {
    "access_log", "access_logger", "body", "chunked_encoding", "default_headers", "disconnected",
    "expected_content_length", "flow", "keep_alive", "logger", "message_event", "more_body", "on_response",
    "response_complete", "response_started", "scope", "transport", "waiting_for_100_continue",
}  # fmt: skip
"""All attributes of a cycle. `RequestCycle` replaces the constructor, so a new attribute would be missing there."""
FAST_PATH_OWN_ATTRIBUTES = ("_body", "_repeatable", "_repeated")


def http_protocol() -> Any:
    """Return uvicorn's `http` setting: the protocol with the fast path, or the one without and a warning in the log.

    Raises InvalidInput if the limits on requests would not work with the installed uvicorn.
    """
    problem = find_limits_incompatibility()
    if problem is not None:
        raise InvalidInput(
            f"uvicorn {uvicorn.__version__} cannot be used, because its internals are different ({problem}). "
            f"Install one that knapcache supports: {shlex.quote(sys.executable)} -m pip install 'knapcache[serve]'"
        )
    problem = find_incompatibility()
    if problem is None:
        from knapcache.proxy.http.uvicorn_protocol import FastPathProtocol

        return FastPathProtocol
    from knapcache.proxy.http.limited_protocol import LimitedProtocol

    log.warning(
        "Fast path disabled: uvicorn %s has other internals (%s). Hits cost about a third more.",
        uvicorn.__version__,
        problem,
    )
    return LimitedProtocol


def find_limits_incompatibility() -> str | None:
    """Return what is not as limited_protocol.py expects it, or None."""
    try:
        from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

        if not STATUS_LINE[200].startswith(b"HTTP/1.1 200 "):
            return "STATUS_LINE"
        missing = LIMIT_CYCLE_ATTRIBUTES - _cycle_attributes(RequestResponseCycle)
        if missing:
            return f"{RequestResponseCycle.__name__} has no {', '.join(sorted(missing))}"
        return _find_other_parameters(HttpToolsProtocol, LIMIT_METHODS) or _check_protocol(
            HttpToolsProtocol, LIMIT_ATTRIBUTES, LIMIT_OWN_ATTRIBUTES
        )
    except (ImportError, AttributeError, KeyError, TypeError) as error:
        return str(error)


def find_incompatibility() -> str | None:
    """Return what is not as uvicorn_protocol.py expects it, or None."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

        return (
            find_limits_incompatibility()
            or _find_other_parameters(HttpToolsProtocol, FAST_PATH_METHODS)
            or _find_other_parameters(RequestResponseCycle, CYCLE_METHODS)
            or _check_protocol(HttpToolsProtocol, FAST_PATH_ATTRIBUTES, FAST_PATH_OWN_ATTRIBUTES)
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


def _check_protocol(protocol_class: Any, attributes: tuple[str, ...], own: tuple[str, ...]) -> str | None:
    from uvicorn.server import ServerState

    config = uvicorn.Config(_no_app, ws="none", interface="asgi3", lifespan="off", log_config=None)
    loop = asyncio.new_event_loop()
    try:
        protocol = protocol_class(config, ServerState(), {}, _loop=loop)
    finally:
        loop.close()
    protocol.on_message_begin()
    missing = [name for name in attributes if not hasattr(protocol, name)]
    missing += [name for name in PARSER_METHODS if not hasattr(protocol.parser, name)]
    if missing:
        return f"{protocol_class.__name__} has no {', '.join(missing)}"
    if protocol.scope["headers"] is not protocol.headers:
        return f"the scope of {protocol_class.__name__} does not share its headers"
    # limited_protocol.py repeats what on_header does.
    protocol.on_header(b"Expect", b"100-Continue")
    if (protocol.headers, protocol.expect_100_continue) != ([(b"expect", b"100-Continue")], True):
        return f"{protocol_class.__name__}.on_header does something else"
    taken = [name for name in own if hasattr(protocol, name)]
    return f"{protocol_class.__name__} has {', '.join(taken)}" if taken else None


def _check_cycle(cycle_class: Any) -> str | None:
    attributes = _cycle_attributes(cycle_class)
    if attributes != CYCLE_ATTRIBUTES:
        return f"{cycle_class.__name__} differs in {', '.join(sorted(attributes ^ CYCLE_ATTRIBUTES))}"
    return None


def _cycle_attributes(cycle_class: Any) -> set[str]:
    arguments = list(inspect.signature(cycle_class).parameters)
    return set(vars(cycle_class(**dict.fromkeys(arguments))))


async def _no_app(_scope: Any, _receive: Any, _send: Any) -> None:
    """Stand for an application that is never called."""
