"""Lines of the content log as other programs read them.

    jsonl     one object for each line, with `request` and `response`: `knapcache replay` and `plan` read it
    evals     {"input": [messages], "ideal": "answer"}: datasets of OpenAI's evals
    parquet   one row for each line, request and response as JSON texts; `replay` and `plan` read it, too

A format leaves out the lines that its readers cannot use; `why_left_out` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from knapcache.features.content_log.file import FIELDS
from knapcache.features.content_log.record import SYSTEM_ROLES, texts


def replayable(
    lines: Iterable[Mapping[str, Any]], left_out: dict[str, int], *, every: bool
) -> Iterator[Mapping[str, Any]]:
    """Yield the lines that a replay can use. every: also the others. left_out: gets the number of others by reason."""
    for line in lines:
        if reason := "" if every else why_left_out(line):
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            yield line


def jsonl_lines(lines: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield lines as JSON objects."""
    for line in lines:
        yield orjson.dumps({name: line[name] for name in ("id", *FIELDS, "request", "response")}) + b"\n"


def why_left_out(line: Mapping[str, Any]) -> str:
    """Return why a replay cannot use a line; empty: it can."""
    if not line["key"] or not line["size"]:
        return "not cacheable"
    if not line["request"] or not line["response"]:
        return "without the text of request or answer"
    return ""


def evals_lines(lines: Iterable[Mapping[str, Any]], left_out: dict[str, int]) -> Iterator[bytes]:
    """Yield samples of OpenAI's evals: each different request once, with the first answer."""
    seen: set[bytes] = set()
    for line in lines:
        messages = input_messages(line["request"])
        sample = orjson.dumps(messages)
        reason = ""
        if line["status"] != 200 or not line["answer"] or not messages:
            reason = "without a question or an answer in text"
        elif line["cut"]:
            reason = "with texts that were cut"
        elif sample in seen:
            reason = "repeated"
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        seen.add(sample)
        yield orjson.dumps({"input": messages, "ideal": line["answer"]}) + b"\n"


def input_messages(request: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the conversation of a request of any endpoint as chat messages with plain texts."""
    found = [("system", request[name]) for name in ("system", "instructions") if request.get(name)]
    conversation = next((request[name] for name in ("messages", "input", "prompt") if request.get(name)), None)
    if isinstance(conversation, list) and all(isinstance(each, dict) for each in conversation):
        for message in conversation:
            role = message.get("role")
            found.append(("system" if role in SYSTEM_ROLES else str(role or "user"), message))
    elif conversation:
        found.append(("user", conversation))
    messages = [{"role": role, "content": "\n".join(texts(value))} for role, value in found]
    return [message for message in messages if message["content"]]


def parquet_rows(lines: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield lines as flat JSON objects, from which Polars makes a Parquet file."""
    for line in lines:
        bodies = {name: orjson.dumps(line[name]).decode() if line[name] else None for name in ("request", "response")}
        known = {name: line[name] for name in ("id", *FIELDS, "prompt", "answer")}
        yield orjson.dumps(known | bodies | {"stream": bool(line["stream"]), "cut": bool(line["cut"])}) + b"\n"


COLUMNS = {
    "id": "Int64", "time": "Float64", "tenant": "String", "model": "String", "endpoint": "String", "route": "String",
    "outcome": "String", "status": "Int64", "stream": "Boolean", "key": "String", "upstream": "String",
    "usd": "Float64", "cost": "Float64", "tokens": "Int64", "size": "Int64", "seconds": "Float64",
    "upstream_seconds": "Float64", "cut": "Boolean", "prompt": "String", "answer": "String", "request": "String",
    "response": "String",
}  # fmt: skip
"""Columns of the Parquet file, and their types in Polars."""
