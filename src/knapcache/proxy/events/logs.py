"""Logging: lines on stderr as text or JSON, without secrets and without prompts.

Credentials: as the last step before it is written, every line is searched for known secrets and for text that looks
like one. Both are replaced.

Prompts: the proxy never logs a body. The text of another library's exception may quote its input, which may be a
prompt. So of an exception, `errors.public_text` and traceback locations are logged, whether it is an argument of the
line, a field, or its `exc_info`. The lines of asyncio name callbacks, tasks and their results; only their first words
are logged. Uncaught exceptions, in threads and destructors, are logged in the same way.

A thread writes the lines: a terminal or a pipe without a reader must not block the event loop.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from knapcache.errors import public_text
from knapcache.exchange.headers import SECRET_HEADERS
from knapcache.proxy.events.events import Event
from knapcache.threads import BatchWorker

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 6
"""Characters. Shorter secrets would match ordinary text."""
MAX_FIELD_LENGTH = 200
"""Characters of a field's text."""
MAX_WAITING_LINES = 10_000
MAX_CAUSES = 5
"""Depth of the chain of causes that is logged."""
_OBJECTS = re.compile(r"[<(\n].*", re.DOTALL)

log = logging.getLogger("knapcache.serve")
access = logging.getLogger("knapcache.access")

# The name of a field that holds a credential, as headers, settings, JSON and Python's reprs spell it, up to its value.
AS_VALUE = r"""(?:["']?\s*[:=]|["']\s*,)\s*(?:b?["'])?"""
FIELD = rf"[\w-]*(?:api[-_]?key|token|secret|password){AS_VALUE}"
HEADER = rf"[\w-]*(?:authorization|cookie|{'|'.join(SECRET_HEADERS)}){AS_VALUE}"  # its value has several words
SCHEME = r"(?:bearer|basic)\s+"
LOOKS_SECRET = re.compile(
    rf"""
      (?P<header> (?i:\b{HEADER}) ) [^"'\r\n]+
    | (?P<name> (?i:\b{FIELD}) ) (?i:{SCHEME})? [^\s"',;&}}\]]{{4,}}
    | (?P<scheme> (?i:\b{SCHEME}) ) [\w.~+/=-]{{6,}}
    | \b (?:sk|pk|rk|ghp|gho|xox[abp]|gsk|hf|AIza|AKIA) [-_]? [\w-]{{16,}}
    | \b eyJ[\w-]{{8,}} \. [\w-]{{8,}} \. [\w-]*
    | (?<=//) [^/\s:@]+ : [^/\s@]+ (?=@)
    """,
    re.VERBOSE,
)
STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
UNLOGGED = frozenset({"time", "cost", "upstream_seconds", "attempts", "trace", "parts", "tried", "open_until"})
ACCESS_FIELDS = tuple(name for name in Event._fields if name not in UNLOGGED)


class Redactor:
    """Replaces secrets in texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({s for s in secrets if len(s) >= MIN_SECRET_LENGTH}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        """Return the text without secrets. The name of a field stays, so that a reader sees what was there."""
        if self._known:
            text = self._known.sub(REDACTED, text)
        return LOOKS_SECRET.sub(
            lambda found: (found["header"] or found["name"] or found["scheme"] or "") + REDACTED, text
        )


class LineFormatter(logging.Formatter):
    """Formats a record as one line. Fields come from `extra`."""

    def __init__(self, format_name: str, redact: Redactor) -> None:
        super().__init__()
        self._json, self._redact = format_name == "json", redact

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, whatever the record contains."""
        fields = {name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS}
        message = message_of(record)
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level, redact = record.levelname.lower(), self._redact
        error = describe_error(record.exc_info[1]) if record.exc_info and record.exc_info[1] else ""
        if self._json:
            values = {name: field_value(value, redact) for name, value in fields.items()}
            line = {"time": when, "level": level, "logger": record.name, "message": redact(message), **values}
            return json.dumps(line | ({"error": redact(error)} if error else {}), ensure_ascii=True, default=str)
        pairs = "".join(f" {name}={field_value(value, redact)}" for name, value in fields.items())
        return escape(f"{when} {level:7} {record.name}: {redact(message)}{pairs}") + (
            "".join(f"\n  {escape(part)}" for part in redact(error).splitlines())
        )


def field_value(value: Any, redact: Redactor) -> Any:
    """Return numbers unchanged, and everything else as a short text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = redact(str(without_quotes(value)))
    return text if len(text) <= MAX_FIELD_LENGTH else text[: MAX_FIELD_LENGTH - 1] + "…"


def message_of(record: logging.LogRecord) -> str:
    """Return the message of a record, without what exceptions quote."""
    message, given = str(without_quotes(record.msg)), record.args
    args: Any = (
        {name: without_quotes(value) for name, value in given.items()}
        if isinstance(given, Mapping)
        else tuple(map(without_quotes, given or ()))
    )
    with contextlib.suppress(TypeError, ValueError):  # arguments that do not fit must not fail a request
        message = message % args if args else message
    return _OBJECTS.sub("", message).strip() if record.name == "asyncio" else message


def without_quotes(value: Any) -> Any:
    """Return a value, of an exception what may be shown."""
    return public_text(value) if isinstance(value, BaseException) else value


def escape(text: str) -> str:
    """Escape line breaks and control characters, which could forge lines."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def describe_error(error: BaseException, depth: int = 0) -> str:
    """Return type, public text and traceback locations of an exception and its causes."""
    kind, text = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."), public_text(error)
    foreign = text.startswith(type(error).__qualname__)
    parts = [kind if foreign else f"{kind}: {text}", *locations(error.__traceback__)]
    causes = [*error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    if cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        causes.append(cause)
    return "\n".join(parts + [f"after {describe_error(each, depth + 1)}" for each in causes if depth < MAX_CAUSES])


def locations(trace: TracebackType | None) -> list[str]:
    """Return files, lines and functions of a traceback, without source and values."""
    return [f"at {frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(trace)]


class LogHandler(logging.Handler):
    """Writes lines to a stream from a thread."""

    def __init__(self, stream: TextIO, format_name: str, redact: Redactor) -> None:
        super().__init__()
        self._stream = stream
        self.setFormatter(LineFormatter(format_name, redact))
        self._worker: BatchWorker[str] = BatchWorker("log", self._write, MAX_WAITING_LINES)

    @property
    def dropped(self) -> int:
        """Lines that were not written: the stream was not read fast enough, or is closed."""
        return self._worker.lost

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # an edge of the proxy: a field without a text must not fail a request
            line = f"Line of {record.name} not written: {type(error).__name__}"
        self._worker.offer((line,))

    def _write(self, lines: Sequence[str]) -> None:
        try:
            for line in lines:
                self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # the stream is closed; there is nowhere to report it
            self._worker.count_lost(len(lines))

    def close(self) -> None:
        self._worker.close(2.0)
        super().close()


def configure(
    level: str = "info", format_name: str = "text", secrets: Iterable[str] = (), stream: TextIO | None = None
) -> LogHandler:
    """Send this process's log through one `LogHandler`: knapcache's from `level` on, others' from warning on.

    secrets: tokens and keys to redact. A second call replaces the handler of the first.
    """
    handler = LogHandler(stream or sys.stderr, format_name, Redactor(secrets))
    root = logging.getLogger()
    for old in _handlers():
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("knapcache").setLevel(level.upper())
    logging.getLogger("uvicorn.access").disabled = True  # paths and addresses in every line, and slower than a hit
    logging.captureWarnings(True)
    threading.excepthook = log_thread_error
    sys.unraisablehook = log_unraisable
    return handler


def log_thread_error(args: threading.ExceptHookArgs) -> None:
    """Log an exception that ended a thread, in place of printing its text."""
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        log.error("A thread ended with an exception", exc_info=args.exc_value)


def log_unraisable(args: sys.UnraisableHookArgs) -> None:
    """Log an exception that cannot be raised, such as one in a destructor, in place of printing its text."""
    log.error("An exception was ignored", exc_info=args.exc_value)


def _handlers() -> list[LogHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, LogHandler)]


def dropped_lines() -> int:
    """Return how many lines of this process's log were dropped."""
    return sum(handler.dropped for handler in _handlers())


class AccessLog:
    """Logs one line for each request, at level debug."""

    def consume(self, events: Sequence[Event]) -> None:
        if access.isEnabledFor(logging.DEBUG):
            for event in events:
                access.debug("request", extra={name: getattr(event, name) for name in ACCESS_FIELDS})
