"""Lines for tests of the content log."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from knapcache.features.content_log.file import ContentFile, LogFilter
from knapcache.features.content_log.record import LoggedContent, make_record
from knapcache.features.content_log.redaction import TextRedactor
from knapcache.model import Endpoint
from knapcache.proxy.events.events import Event
from knapcache.wire import FORMATS

NOW = time.time()
RULES = TextRedactor(("emails", "keys", "cards"))


def finished(**fields: Any) -> Event:
    defaults = {
        "time": NOW, "endpoint": "chat/completions", "model": "gpt-4o", "tenant": "acme", "outcome": "miss",
        "status": 200, "seconds": 0.5, "ttfb": 0.1, "stream": False, "key": "ab" * 32, "usd": 0.01, "tokens": 12,
        "size": 400, "cost": 0.01,
    }  # fmt: skip
    return Event(**{**defaults, **fields})


def chat(text: str, answer: str = "Forty-two.", **fields: Any) -> LoggedContent:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    reply = {
        "object": "chat.completion",
        "usage": {"prompt_tokens": 9, "completion_tokens": 3},
        "choices": [{"message": {"role": "assistant", "content": answer}}],
    }
    return LoggedContent(
        event=finished(**fields),
        format=FORMATS[Endpoint.CHAT],
        body={"model": "gpt-4o", "messages": messages},
        payload=orjson.dumps(reply),
        form="json",
    )


def write(file: ContentFile, *contents: LoggedContent) -> None:
    file.append([make_record(content, RULES) for content in contents])


def logged(path: Path, **wanted: Any) -> list[dict[str, Any]]:
    """Return the lines of a log that meet conditions, oldest first."""
    with closing(ContentFile(path, create=False)) as file:
        return list(file.lines(LogFilter(**wanted)))
