"""OpenAI's batch files: input lines with the requests, output and error lines with the answers, joined by `custom_id`.

    input    {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}
    output   {"id": …, "custom_id": …, "response": {"status_code": 200, "body": {…}}, "error": null}

A `custom_id` is unique in its batch only. So each file of answers belongs to the file of requests that has the most of
its ids still without an answer. Requests without an answer, and failed ones, are left out. Files of requests alone can
be replayed like a bare request log: then the size is that of the request.

Calls are in the order of the input, because the order of the output is arbitrary. Their cost is the provider's price
for batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.lab.traces.base import BrokenLineError, ColumnRules, TraceBuilder, short, whole
from knapcache.lab.traces.calls import FAILED, CallReader, LoggedCall, body
from knapcache.lab.traces.json_lines import objects
from knapcache.lab.traces.source import TraceSource


@dataclass
class BatchFile:
    """The requests of one input file, or the answers of one output file, by `custom_id`."""

    path: object
    lines: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The output line of each request, in an input file."""


def read(sources: Iterable[TraceSource], rules: ColumnRules, builder: TraceBuilder) -> None:
    """Add the calls of all files to `builder`."""
    inputs, outputs = [], []
    for source in sources:
        requests, answers = BatchFile(source.path), BatchFile(source.path)
        for place, name, row in lines(source, builder):
            (requests if "body" in row else answers).lines[name] = place, row
        inputs += [requests] if requests.lines else []
        outputs += [answers] if answers.lines else []
    if outputs and not inputs:
        raise InvalidInput(
            f"{builder.path} has the answers of a batch: give its input file, with the requests, as well"
        )
    for answers in outputs:
        assign(answers, inputs, builder)
    reader = CallReader(rules, builder, needs_response=bool(outputs))
    for requests in inputs:
        builder.path = requests.path
        for name, (place, row) in requests.lines.items():
            answer = requests.answers.get(name)
            if answer is None and outputs:
                builder.left_out(f"line {place}", "request without an answer")
                continue
            try:
                response = None if answer is None else response_of(answer)
            except BrokenLineError as error:
                builder.broken(f"line {place}", f"its answer: {error}")
                continue
            if answer is not None and response is None:
                builder.left_out(f"line {place}", FAILED)
                continue
            line = {**row, "response": response} if response is not None else row
            path = row["url"] if isinstance(row.get("url"), str) else ""
            call = LoggedCall(line=line, request=row["body"], response=response, path=path, batch=True)
            reader.add(f"line {place}", call)


def lines(source: TraceSource, builder: TraceBuilder) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the number, the `custom_id` and the object of each valid line."""
    seen: set[str] = set()
    with source.open() as file:
        for place, row in objects(file, builder):
            name = row.get("custom_id")
            problem = ""
            if not isinstance(name, str) or not name:
                problem = f"custom_id must be a text, not {short(name)}"
            elif name in seen:
                problem = f"custom_id {short(name)} is used twice"
            elif "body" in row and (not isinstance(row["body"], dict) or not row["body"]):
                problem = f"body must be an object, not {short(row['body'])}"
            elif "body" not in row and "response" not in row:
                problem = "neither a request (body) nor an answer (response)"
            if problem:
                builder.broken(f"line {place}", problem)
                continue
            assert isinstance(name, str)
            seen.add(name)
            yield place, name, row


def assign(answers: BatchFile, inputs: list[BatchFile], builder: TraceBuilder) -> None:
    """Give answers to the requests of the input file that has the most of them, and none for it yet."""
    names = answers.lines.keys()
    best = max(inputs, key=lambda each: len(names & (each.lines.keys() - each.answers.keys())))
    for name, (place, row) in answers.lines.items():
        if name in best.lines:
            best.answers[name] = row
        else:
            builder.path = answers.path
            builder.left_out(f"line {place}", "answer without a request")


def response_of(answer: dict[str, Any]) -> dict[str, Any] | None:
    """Return the body of an answer; None if the call failed."""
    outer = answer.get("response")
    if answer.get("error") is not None or not isinstance(outer, dict):
        return None
    status = outer.get("status_code")
    if status is not None and whole("response.status_code", status) >= 400:
        return None
    return body(outer, "body")
