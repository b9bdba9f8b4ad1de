"""The log: lines on stderr for people (text) or machines (JSON), with nothing in them that must stay private.

Credentials: every line is searched, as the last thing before it is written, for secrets that we know (`secrets`) and
for what looks like one, and those are taken out.

Prompts: nothing here ever logs a body. What another library's exception says may quote what it was given, a prompt
among others, so of those that are not known to quote nothing (SAFE) only the kind and the place are said.

Lines are written by a thread: a terminal or a pipe that nobody reads must not stop the event loop.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from knapcache.errors import InvalidInput, KnapcacheError
from knapcache.serve.observe.events import Event
from knapcache.threads import BatchWorker

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
REDACTED = "[redacted]"
LONGEST = 200
"""Characters of a field that came from outside."""
MOST_LINES = 10_000
DEEPEST = 5
"""Exceptions behind exceptions that are told."""
SAFE = (KnapcacheError, OSError, TimeoutError)
"""Exceptions whose text is about files, hosts and settings."""

access = logging.getLogger("knapcache.access")

# The name of a field that holds a credential, as headers, settings, JSON and Python's reprs spell it, up to its value.
AS_VALUE = r"""(?:["']?\s*[:=]|["']\s*,)\s*(?:b?["'])?"""
FIELD = rf"[\w-]*(?:api[-_]?key|token|secret|password){AS_VALUE}"
HEADER = rf"[\w-]*(?:authorization|cookie){AS_VALUE}"  # of several words
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
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
COLUMNS = tuple(name for name in Event._fields if name not in ("time", "cost", "upstream_seconds", "attempts", "trace"))


class Redactor:
    """Takes secrets out of texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({s for s in secrets if len(s) >= 6}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        """The text without them."""
        if self._known:
            text = self._known.sub(REDACTED, text)
        # Of a field the name stays, so that a reader sees what was there.
        return LOOKS_SECRET.sub(
            lambda found: (found["header"] or found["name"] or found["scheme"] or "") + REDACTED, text
        )


class Line(logging.Formatter):
    """A record as one line. Fields come by `extra`."""

    def __init__(self, form: str, redact: Redactor) -> None:
        super().__init__()
        self._json, self._redact = form == "json", redact

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever is in the record."""
        fields = {name: value for name, value in vars(record).items() if name not in STANDARD}
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not suit the text: not worth a request
            message = str(record.msg)
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level, redact = record.levelname.lower(), self._redact
        error = failure(record.exc_info[1]) if record.exc_info and record.exc_info[1] else ""
        if self._json:
            said = {name: plain(value, redact) for name, value in fields.items()}
            line = {"time": when, "level": level, "logger": record.name, "message": redact(message), **said}
            return json.dumps(line | ({"error": redact(error)} if error else {}), ensure_ascii=True, default=str)
        pairs = "".join(f" {name}={plain(value, redact)}" for name, value in fields.items())
        return escaped(f"{when} {level:7} {record.name}: {redact(message)}{pairs}") + (
            "".join(f"\n  {escaped(part)}" for part in redact(error).splitlines())
        )


def plain(value: Any, redact: Redactor) -> Any:
    """A field: a number as it is, all else as a short text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = redact(str(value))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def escaped(text: str) -> str:
    """Without line breaks and other characters that could pass for what they are not."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def failure(error: BaseException, deep: int = 0) -> str:
    """Kind, text where that is safe to tell, and where it came from; the same of what it came from."""
    safe = isinstance(error, SAFE)
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    parts = [f"{kind}: {error}" if safe and str(error) else kind, *places(error.__traceback__)]
    inner = [*error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    if cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        inner.append(cause)
    return "\n".join(parts + [f"after {failure(one, deep + 1)}" for one in inner if deep < DEEPEST])


def places(trace: TracebackType | None) -> list[str]:
    """Files, lines and functions; no source, no values."""
    return [f"at {frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(trace)]


class Handler(logging.Handler):
    """Lines to a stream, by a thread."""

    def __init__(self, stream: TextIO, form: str, redact: Redactor) -> None:
        super().__init__()
        self._stream = stream
        self.setFormatter(Line(form, redact))
        self._behind: BatchWorker[str] = BatchWorker("log", self._write, MOST_LINES)

    @property
    def lost(self) -> int:
        """Lines that nobody read in time."""
        return self._behind.lost

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over."""
        try:
            line = self.format(record)
        except Exception as error:  # an edge of the proxy: a field that cannot be shown must not cost a request
            line = f"a line of {record.name} could not be written: {type(error).__name__}"
        self._behind.offer((line,))

    def _write(self, lines: Sequence[str]) -> None:
        try:
            for line in lines:
                self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # nobody is there any more, and there is nobody to tell
            self._behind.count_lost(len(lines))

    def close(self) -> None:
        """Write what waits."""
        self._behind.close(2.0)
        super().close()


def set_up(
    level: str = "info", form: str = "text", secrets: Iterable[str] = (), stream: TextIO | None = None
) -> Handler:
    """From now on everything that is logged in this process goes this way. `secrets`: tokens and keys to take out.

    Ours from `level` on, of other libraries warnings and worse. Called again, it replaces what it had set up.
    """
    if level not in LEVELS:
        raise InvalidInput(f"log_level must be one of {', '.join(LEVELS)}, not {level!r}")
    if form not in FORMATS:
        raise InvalidInput(f"log_format must be text or json, not {form!r}")
    handler = Handler(stream or sys.stderr, form, Redactor(secrets))
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old, Handler):
            root.removeHandler(old)
            old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("knapcache").setLevel(level.upper())
    logging.getLogger("uvicorn.access").disabled = True  # its lines have paths and addresses, and cost more than a hit
    logging.captureWarnings(True)
    return handler


class AccessLog:
    """Logs one line for each request, at level debug."""

    def consume(self, events: Sequence[Event]) -> None:
        """Log a batch."""
        if access.isEnabledFor(logging.DEBUG):
            for event in events:
                access.debug("request", extra={name: getattr(event, name) for name in COLUMNS})
