"""Log lines: one for each record, parseable, and without secrets or prompts."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, get_args

import orjson
import pydantic
import pytest

from knapcache.errors import InvalidInput, Uncacheable
from knapcache.exchange.headers import SECRET_HEADERS
from knapcache.proxy.events import logs
from knapcache.proxy.events.logs import LogHandler, Redactor, configure
from knapcache.proxy.settings import Settings
from knapcache.proxy.upstream import ConnectionLost
from tests.support import ROOT
from tests.support.events import event

KNOWN = "Zq7-known-admin-token"
SECRETS = [
    KNOWN,
    "sk-proj-abcdefghijklmnop1234567890",
    "sk-ant-api03-AbCdEfGh_ijklmnop-1234",
    "c2VjcmV0OnNlY3JldA==",
    "hunter2hunter2",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "AIzaSyA1234567890abcdefghij",
    "s3cr3t-cookie-value",
]
PROMPT = "my grandmother's recipe for plum cake"
ours = logging.getLogger("knapcache.test")


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    loggers = {name: logging.getLogger(name) for name in ("", "knapcache", "uvicorn.access")}
    before = {name: (logger.level, logger.disabled) for name, logger in loggers.items()}
    hooks = threading.excepthook, sys.unraisablehook
    yield
    threading.excepthook, sys.unraisablehook = hooks
    for handler in [h for h in root.handlers if isinstance(h, LogHandler)]:
        root.removeHandler(handler)
        handler.close()
    for name, (level, disabled) in before.items():
        loggers[name].setLevel(level)
        loggers[name].disabled = disabled
    logging.captureWarnings(False)


def start(
    level: str = "info", format_name: str = "text", secrets: Iterable[str] = (), stream: TextIO | None = None
) -> LogHandler:
    """Configure logging, and remove pytest's handlers, which raise on records that ours accepts."""
    handler = configure(level, format_name, secrets, stream)
    logging.getLogger().handlers = [handler]
    return handler


class Output:
    """The log on a stream of its own."""

    def __init__(self, level: str = "info", format_name: str = "text", secrets: Iterable[str] = ()) -> None:
        self.stream = io.StringIO()
        self.handler = start(level, format_name, secrets, self.stream)

    def text(self) -> str:
        """Return what was written, and end the log."""
        self.handler.close()
        return self.stream.getvalue()


class Body(pydantic.BaseModel):
    prompt: int


def raise_error(kind: str) -> None:
    """Raise as libraries do, with their input in the message."""
    if kind == "pydantic":
        Body(prompt=PROMPT)  # type: ignore[arg-type]
    if kind == "orjson":
        orjson.loads('{"prompt": "' + PROMPT)
    if kind == "key":
        dict[str, str]()[PROMPT]
    if kind == "group":
        raise ExceptionGroup(PROMPT, [ValueError(PROMPT)])
    if kind == "chain":
        try:
            raise ValueError(PROMPT)
        except ValueError:
            raise RuntimeError(PROMPT) from None
    if kind == "context":
        try:
            raise ValueError(PROMPT)
        except ValueError:
            raise InvalidInput("our own message")  # noqa: B904 - with a context
    raise ValueError(PROMPT)


@pytest.mark.parametrize("format_name", ["text", "json"])
def test_secrets_are_redacted(format_name: str) -> None:
    output = Output("debug", format_name, [KNOWN])
    texts = [f"Authorization: Bearer {s}" for s in SECRETS]
    texts += [f"x-api-key: {s}" for s in SECRETS] + [f"OPENAI_API_KEY={s}" for s in SECRETS]
    texts += [repr({"authorization": f"Bearer {s}", "x-api-key": s, "cookie": s}) for s in SECRETS]
    texts += [repr([(b"x-api-key", s.encode()), (b"authorization", b"Basic " + s.encode())]) for s in SECRETS]
    texts += [json.dumps({"api_key": s, "admin_token": s}) for s in SECRETS]
    texts += [f"{name}: Bearer {s}" for s in SECRETS for name in SECRET_HEADERS]
    texts += [repr({name: s}) for s in SECRETS for name in SECRET_HEADERS]
    texts += [f"cookie: a=b; session={s}; c={s}" for s in SECRETS] + [f"Authorization: Odd x={s}" for s in SECRETS]
    texts += [f"https://user:{s}@host/v1" for s in SECRETS] + [f"/x?api_key={s}&b=1" for s in SECRETS]
    for text in texts:
        ours.info(text)
        ours.warning("of %s", text)
        ours.info("field", extra={"detail": text, "deep": {"inner": [text]}})
        try:
            raise OSError(text)
        except OSError:
            ours.exception("failed")
        logging.getLogger("another.library").error("it says %r", text)
    ours.info("bare %s %s", SECRETS[0], SECRETS[1])
    logs.AccessLog().consume([event(model=f"Bearer {s}", tenant=f"token={s}") for s in SECRETS])
    found = output.text()
    assert len(found.splitlines()) >= 5 * len(texts)
    for secret in SECRETS:
        assert secret not in found
    assert "[redacted]" in found
    assert "Authorization: [redacted]" in found, "the name of the field stays"


class Failing:
    """Fails in its destructor."""

    def __del__(self) -> None:
        raise_error("")


@pytest.mark.parametrize("format_name", ["text", "json"])
def test_what_an_exception_quotes_is_not_logged(format_name: str) -> None:
    output = Output("debug", format_name)
    try:
        raise_error("")
    except ValueError as error:
        ours.error("Not done: %s", error)
        ours.error("Not done: %(why)s", {"why": error})
        ours.error("Not done", extra={"why": error})
        ours.error(error)
    ours.error("Not cached: %s", Uncacheable("duplicate name", PROMPT))
    thread = threading.Thread(target=raise_error, args=("key",))
    thread.start()
    thread.join()
    Failing()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        failed = loop.create_task(asyncio.to_thread(raise_error, "orjson"))
        await asyncio.wait([failed])
        del failed  # its exception was never retrieved
        loop.call_soon(lambda _: raise_error(""), PROMPT)
        await asyncio.sleep(0)

    asyncio.run(run())
    gc.collect()
    found = output.text()
    assert PROMPT.split()[1] not in found
    assert found.count("ValueError at test_logs.py:") == 4
    for line in ("Not cached: duplicate name", "A thread ended with an exception", "An exception was ignored",
                 "Task exception was never retrieved", "Exception in callback"):  # fmt: skip
        assert line in found
    assert found.count("in raise_error") >= 4, "the places of the exceptions are logged"


def test_other_texts_stay_as_they_are() -> None:
    redact = Redactor([KNOWN, "short"])
    for text in (
        "listening on http://127.0.0.1:8080/dashboard",
        "max_tokens=4096 total_tokens: 12345",
        "key=" + "ab" * 32,
        "upstream openai: 429 Too Many Requests, Retry-After: 20",
        "model claude-sonnet-4-5-20250929 sk-1",
        "a short one",
    ):
        assert redact(text) == text


@pytest.mark.parametrize("format_name", ["text", "json"])
@pytest.mark.parametrize("kind", ["pydantic", "orjson", "key", "group", "chain", "context", "value"])
def test_prompts_in_exceptions_are_not_logged(kind: str, format_name: str) -> None:
    output = Output("debug", format_name)
    try:
        raise_error(kind)
    except Exception:
        ours.exception("a request failed")
    found = output.text()
    assert "plum cake" not in found
    assert "test_logs.py" in found, "the traceback's locations"
    assert "Error" in found or "InvalidInput: our own message" in found


def test_texts_of_safe_exceptions_are_logged() -> None:
    output = Output()
    for error in (ConnectionRefusedError(111, "Connection refused"), ConnectionLost("gone away")):
        ours.error("upstream", exc_info=error)
    found = output.text()
    assert "ConnectionRefusedError: [Errno 111] Connection refused" in found
    assert "ConnectionLost: gone away" in found


@pytest.mark.parametrize(("kind", "causes"), [("context", 1), ("group", 1), ("chain", 0), ("value", 0)])
def test_the_causes_of_an_exception_are_logged(kind: str, causes: int) -> None:
    """The kind "chain" raises `from None`, which hides its context."""
    output = Output()
    try:
        raise_error(kind)
    except Exception:
        ours.exception("a request failed")
    found = output.text()
    assert found.count("after ValueError") == causes
    assert found.count("in raise_error") == (2 if kind == "context" else 1), "the place of each that was raised"


def test_json_lines() -> None:
    output = Output("info", "json")
    ours.info("started\nnot a second line %s", "\u2028", extra={"port": 8080, "ok": True, "path": None, "x": "y" * 999})
    ours.debug("not at this level")
    logging.getLogger("another").info("nor is this")
    lines = [json.loads(line) for line in output.text().splitlines()]
    assert len(lines) == 1
    assert list(lines[0])[:4] == ["time", "level", "logger", "message"]
    assert lines[0]["level"] == "info"
    assert (lines[0]["port"], lines[0]["ok"], lines[0]["path"]) == (8080, True, None)
    assert lines[0]["message"] == "started\nnot a second line \u2028"
    assert len(lines[0]["x"]) == 200
    assert lines[0]["time"].endswith("Z")


def test_a_client_cannot_forge_lines() -> None:
    output = Output("debug", "text")
    logs.AccessLog().consume([event(model="a\n2026-01-01 error knapcache: forged\x1b[31m")])
    ours.info("%d", "not a number")
    found = output.text()
    assert found.count("\n") == 2
    assert "\x1b" not in found
    assert "%d" in found


def test_a_field_without_a_text_does_not_raise() -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError(PROMPT)

    output = Output("debug", "json")
    ours.info("x", extra={"bad": Bad()})
    assert output.text() == "Line of knapcache.test not written: RuntimeError\n"


def test_requests_are_logged_at_debug_only() -> None:
    lines: dict[str, list[dict[str, Any]]] = {}
    for level in ("debug", "info"):
        output = Output(level, "json")
        logs.AccessLog().consume([event("miss", status=201, trace="00-x"), event("hit")])
        lines[level] = [json.loads(line) for line in output.text().splitlines()]
    assert lines["info"] == []
    assert [line["outcome"] for line in lines["debug"]] == ["miss", "hit"]
    first = lines["debug"][0]
    assert (first["status"], first["tenant"], first["usd"], first["upstream"]) == (201, "team-a", 0.5, "openai")


def test_warnings_are_logged_and_a_second_call_replaces_the_handler() -> None:
    first, second = Output(), Output()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old api_key=abcdefgh", stacklevel=1)
    found = second.text()
    assert "py.warnings" in found
    assert "abcdefgh" not in found
    assert first.text() == ""
    third = configure(stream=io.StringIO())
    assert [handler for handler in logging.getLogger().handlers if isinstance(handler, LogHandler)] == [third]


def test_a_pipe_that_is_not_read_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING_LINES", 100)
    out, into = os.pipe()
    drain = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(out, 1 << 16), b"")])
    with os.fdopen(into, "w") as stream:
        handler = start("info", "text", (), stream)

        def log_lines() -> None:
            for _ in range(3000):
                ours.info("x" * 1000)

        logging_thread = threading.Thread(target=log_lines, daemon=True)
        logging_thread.start()
        logging_thread.join(60)
        blocked, dropped, reported = logging_thread.is_alive(), handler.dropped, logs.dropped_lines()
        drain.start()  # before any assert: the stream cannot be closed while the handler waits for the pipe
        handler.close()
    drain.join()
    os.close(out)
    assert not blocked
    assert dropped > 2000
    assert reported == dropped


def test_the_fields_of_a_request_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "observability.md").read_text(encoding="utf-8")
    section = page.split("## Log")[1].split("\n## ")[0]
    sentence = section.split("with the fields")[1].split("Credentials are")[0]
    assert tuple(re.findall(r"`(\w+)`", sentence)) == logs.ACCESS_FIELDS
    choices = [get_args(Settings.model_fields[name].annotation) for name in ("log_level", "log_format")]
    for word in (*choices[0], *choices[1], logs.REDACTED):
        assert f"`{word}`" in section
