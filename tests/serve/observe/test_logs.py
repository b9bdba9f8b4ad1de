"""The log: one line a record, machines can read it, and no secret comes through."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

import orjson
import pydantic
import pytest

from knapcache.errors import InvalidInput
from knapcache.serve.observe import logs
from knapcache.serve.observe.logs import Handler, Redactor, set_up
from knapcache.serve.upstream import ConnectionLost
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
def restored() -> Iterator[None]:
    root = logging.getLogger()
    loggers = {name: logging.getLogger(name) for name in ("", "knapcache", "uvicorn.access")}
    before = {name: (logger.level, logger.disabled) for name, logger in loggers.items()}
    yield
    for handler in [h for h in root.handlers if isinstance(h, Handler)]:
        root.removeHandler(handler)
        handler.close()
    for name, (level, disabled) in before.items():
        loggers[name].setLevel(level)
        loggers[name].disabled = disabled
    logging.captureWarnings(False)


def begin(
    level: str = "info", form: str = "text", secrets: Iterable[str] = (), stream: TextIO | None = None
) -> Handler:
    """Set up, and nobody else listens: pytest's own handlers raise on what ours puts up with."""
    handler = set_up(level, form, secrets, stream)
    logging.getLogger().handlers = [handler]
    return handler


def written(handler: Handler, stream: io.StringIO) -> str:
    handler.close()
    return stream.getvalue()


class Body(pydantic.BaseModel):
    prompt: int


def trouble(kind: str) -> None:
    """Raise what libraries raise, with what they say of their input."""
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
            raise InvalidInput("said by us")  # noqa: B904 - with the other behind it
    raise ValueError(PROMPT)


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_do_not_come_through(form: str) -> None:
    stream = io.StringIO()
    handler = begin("debug", form, [KNOWN], stream)
    plainly = [f"Authorization: Bearer {s}" for s in SECRETS]
    plainly += [f"x-api-key: {s}" for s in SECRETS] + [f"OPENAI_API_KEY={s}" for s in SECRETS]
    plainly += [repr({"authorization": f"Bearer {s}", "x-api-key": s, "cookie": s}) for s in SECRETS]
    plainly += [repr([(b"x-api-key", s.encode()), (b"authorization", b"Basic " + s.encode())]) for s in SECRETS]
    plainly += [json.dumps({"api_key": s, "admin_token": s}) for s in SECRETS]
    plainly += [f"cookie: a=b; session={s}; c={s}" for s in SECRETS] + [f"Authorization: Odd x={s}" for s in SECRETS]
    plainly += [f"https://user:{s}@host/v1" for s in SECRETS] + [f"/x?api_key={s}&b=1" for s in SECRETS]
    for text in plainly:
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
    found = written(handler, stream)
    assert len(found.splitlines()) >= 5 * len(plainly)
    for secret in SECRETS:
        assert secret not in found
    assert "[redacted]" in found
    assert "Authorization: [redacted]" in found, "what was there can still be seen"


def test_what_is_no_secret_stays() -> None:
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


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("kind", ["pydantic", "orjson", "key", "group", "chain", "context", "value"])
def test_prompts_do_not_come_through_what_libraries_say(kind: str, form: str) -> None:
    stream = io.StringIO()
    handler = begin("debug", form, (), stream)
    try:
        trouble(kind)
    except Exception:
        ours.exception("a request failed")
    found = written(handler, stream)
    assert "plum cake" not in found
    assert "test_logs.py" in found, "where it happened"
    assert "Error" in found or "InvalidInput: said by us" in found


def test_what_says_why_is_said() -> None:
    stream = io.StringIO()
    handler = begin(stream=stream)
    for error in (ConnectionRefusedError(111, "Connection refused"), ConnectionLost("gone away")):
        ours.error("upstream", exc_info=error)
    found = written(handler, stream)
    assert "ConnectionRefusedError: [Errno 111] Connection refused" in found
    assert "ConnectionLost: gone away" in found


def test_json_lines() -> None:
    stream = io.StringIO()
    handler = begin("info", "json", (), stream)
    ours.info("started\nnot a second line %s", "\u2028", extra={"port": 8080, "ok": True, "path": None, "x": "y" * 999})
    ours.debug("not at this level")
    logging.getLogger("another").info("nor is this")
    lines = [json.loads(line) for line in written(handler, stream).splitlines()]
    assert len(lines) == 1
    assert list(lines[0])[:4] == ["time", "level", "logger", "message"]
    assert lines[0]["level"] == "info"
    assert (lines[0]["port"], lines[0]["ok"], lines[0]["path"]) == (8080, True, None)
    assert lines[0]["message"] == "started\nnot a second line \u2028"
    assert len(lines[0]["x"]) == 200
    assert lines[0]["time"].endswith("Z")


def test_a_caller_cannot_write_lines_of_its_own() -> None:
    stream = io.StringIO()
    handler = begin("debug", "text", (), stream)
    logs.AccessLog().consume([event(model="a\n2026-01-01 error knapcache: forged\x1b[31m")])
    ours.info("%d", "not a number")
    found = written(handler, stream)
    assert found.count("\n") == 2
    assert "\x1b" not in found
    assert "%d" in found


def test_a_field_that_cannot_be_shown_costs_nothing() -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError(PROMPT)

    stream = io.StringIO()
    handler = begin("debug", "json", (), stream)
    ours.info("x", extra={"bad": Bad()})
    assert written(handler, stream) == "a line of knapcache.test could not be written: RuntimeError\n"


def test_one_line_a_request_only_at_debug() -> None:
    said: dict[str, list[dict[str, Any]]] = {}
    for level in ("debug", "info"):
        stream = io.StringIO()
        handler = begin(level, "json", (), stream)
        logs.AccessLog().consume([event("miss", status=201, trace="00-x"), event("hit")])
        said[level] = [json.loads(line) for line in written(handler, stream).splitlines()]
    assert said["info"] == []
    assert [line["outcome"] for line in said["debug"]] == ["miss", "hit"]
    first = said["debug"][0]
    assert (first["status"], first["tenant"], first["usd"], first["upstream"]) == (201, "team-a", 0.5, "openai")


def test_warnings_are_lines_too_and_a_second_set_up_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    begin(stream=first)
    handler = begin(stream=second)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old api_key=abcdefgh", stacklevel=1)
    found = written(handler, second)
    assert "py.warnings" in found
    assert "abcdefgh" not in found
    assert first.getvalue() == ""


def test_nobody_waits_for_a_pipe_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_LINES", 100)
    out, into = os.pipe()
    with os.fdopen(into, "w") as stream:
        handler = begin("info", "text", (), stream)
        start = time.perf_counter()
        for _ in range(3000):
            ours.info("x" * 1000)
        assert time.perf_counter() - start < 5.0
        assert handler.lost > 2000
        drain = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(out, 1 << 16), b"")])
        drain.start()
        handler.close()
    drain.join()
    os.close(out)


def test_bad_settings() -> None:
    with pytest.raises(InvalidInput, match="log_level must be one of debug, info, warning, error, not 'loud'"):
        set_up("loud")
    with pytest.raises(InvalidInput, match="log_format must be text or json, not 'xml'"):
        set_up(form="xml")


def test_the_fields_of_a_request_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "observability.md").read_text(encoding="utf-8")
    section = page.split("## The log")[1].split("\n## ")[0]
    sentence = section.split("with the fields")[1].split("Every line")[0]
    assert tuple(re.findall(r"`(\w+)`", sentence)) == logs.COLUMNS
    for word in (*logs.LEVELS, *logs.FORMATS, logs.REDACTED):
        assert f"`{word}`" in section
