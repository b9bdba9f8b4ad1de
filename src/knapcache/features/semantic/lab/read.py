"""Question logs: JSON lines, plain or compressed, with one request in each.

    text              the question alone; all such requests have the same frame
    request, body     the body of a request, as an object or as JSON text, as in request logs and OpenAI's batch files
    (none of these)   the line itself is the body: messages, input or prompt

    answer, response  the answer: a text, or the body of the provider's answer; for OpenAI's batches inside `body`
    url, path, endpoint    the path of the endpoint; default: by the fields of the body
    cost              what the request cost; `--cost` names another field
    outcome           `similar` in a proxy's log: the answer is that of another question, and no truth about this one.
                      Such a line is left out, unless a truth is named

The truth of a request is a field that `--truth` names, such as `intent`. Equal values mean the same question. Dots
select fields of nested objects.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from knapcache.errors import InvalidInput, Uncacheable
from knapcache.features.semantic.question import Question, read_question
from knapcache.keys.canonical import Keyer
from knapcache.keys.parse import ParsedBody, normalized_copy
from knapcache.lab.traces.base import BrokenLineError, Progress, TraceBuilder, number, short
from knapcache.lab.traces.calls import OBJECTS, at, body
from knapcache.lab.traces.json_lines import objects
from knapcache.lab.traces.read import file_progress, files
from knapcache.lab.traces.source import TraceSource
from knapcache.model import Endpoint
from knapcache.wire.answer_text import READERS
from knapcache.wire.registry import endpoint_of

STDIN = Path("-")
COST = "cost"
SIMILAR = "similar"
"""The outcome of a request that a proxy answered by similarity."""
_NAMES = """
    audio background best_of container conversation echo frequency_penalty function_call functions include input
    instructions logit_bias logprobs max_completion_tokens max_output_tokens max_tokens max_tool_calls messages metadata
    min_p modalities model n output_config parallel_tool_calls prediction presence_penalty previous_response_id prompt
    reasoning reasoning_effort repetition_penalty response_format safety_identifier seed service_tier stop
    stop_sequences store stream stream_options suffix system temperature text thinking tool_choice tools top_k
    top_logprobs top_p truncation user verbosity web_search_options"""
BODY_FIELDS = frozenset(_NAMES.split())
"""Fields of a body that is the line itself. All others belong to the log: they must not separate requests."""
KEYER = Keyer(b"knapcache question log")


class LoggedQuestion(NamedTuple):
    """One request of a log."""

    place: str
    """Such as `line 17`, with the name of the file if there are several."""
    key: bytes
    """Equal for equal requests."""
    frame: bytes
    """Equal for requests that differ in nothing but their text."""
    text: str
    excluded: str
    """Why the request is never matched; empty: it may be."""
    truth: str | None = None
    """What the question means, as canonical JSON."""
    answer: str | None = None
    """The text of the answer; None: it is not in the log, or is not plain text."""
    cost: float | None = None


@dataclass(frozen=True)
class QuestionFields:
    """The fields of a line that the user names."""

    truth: str | None = None
    cost: str | None = None
    """None: `cost`, where a line has it."""

    def __post_init__(self) -> None:
        for name, value in (("truth", self.truth), ("cost", self.cost)):
            if value == "":
                raise InvalidInput(f"{name} must name a field, not an empty text")


def read_questions(
    path: Path,
    fields: QuestionFields | None = None,
    *,
    max_temperature: float = 0.0,
    left_out: Counter[str] | None = None,
    progress: Progress | None = None,
) -> list[LoggedQuestion]:
    """Read a log, `-` for stdin, or the files of a directory, in the order of the lines.

    Raises InvalidInput with the place of a broken line.

    left_out   gets the number of lines that are not used, by reason
    """
    fields, found, skipped = fields or QuestionFields(), list[LoggedQuestion](), Counter[str]()
    paths = [path] if path == STDIN else files(path)
    for one, report in zip(paths, file_progress(paths, progress), strict=True):
        builder = TraceBuilder("stdin" if one == STDIN else one, None)
        with opened(one, report) as file:
            for line, row in objects(file, builder):
                if fields.truth is None and row.get("outcome") == SIMILAR:
                    skipped[SIMILAR] += 1
                    continue
                place = f"line {line}" if len(paths) == 1 else f"{one.name}, line {line}"
                try:
                    found.append(parse(place, row, fields, max_temperature))
                except BrokenLineError as error:
                    builder.broken(f"line {line}", str(error))
    if not found:
        only = ": all of them were answered by similarity" if skipped else ""
        raise InvalidInput(f"{'stdin' if path == STDIN else path} contains no requests{only}")
    if left_out is not None:
        left_out.update(skipped)
    return found


def opened(path: Path, progress: Progress | None) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if path == STDIN else TraceSource(path, progress).open()


def parse(place: str, row: Mapping[str, Any], fields: QuestionFields, max_temperature: float) -> LoggedQuestion:
    """Return the request of a line; raises BrokenLineError."""
    endpoint, request = request_of(row, fields)
    key, frame, text, reason = place.encode(), b"", "", "no cache key"
    with suppress(Uncacheable):
        parsed = ParsedBody(normalized_copy(dict(request)))
        key = KEYER.combine(KEYER.read(endpoint, parsed).keys).digest
        question = read_question(endpoint, parsed, max_temperature)
        if isinstance(question, Question):
            frame, text, reason = KEYER.read(endpoint, question.frame).keys[0].digest, question.text, ""
        else:
            reason = question
    return LoggedQuestion(
        place=place,
        key=key,
        frame=frame,
        text=text,
        excluded=reason,
        truth=truth_of(row, fields.truth),
        answer=answer_of(row, endpoint),
        cost=cost_of(row, fields.cost),
    )


def request_of(row: Mapping[str, Any], fields: QuestionFields) -> tuple[Endpoint, Mapping[str, Any]]:
    """Return the endpoint and the body of a line's request; raises BrokenLineError."""
    if isinstance(text := row.get("text"), str):
        if not text.strip():
            raise BrokenLineError("text is empty")
        return Endpoint.CHAT, {"messages": [{"role": "user", "content": text}]}
    for name in ("request", "body"):
        if request := body(row, name):
            break
    else:
        request = {name: value for name, value in row.items() if name in BODY_FIELDS - {fields.truth, fields.cost}}
    endpoint = endpoint_of_request(row, request)
    if endpoint is None:
        raise BrokenLineError("has no question: expected text, or a request with messages, input or prompt")
    return endpoint, request


def endpoint_of_request(row: Mapping[str, Any], request: Mapping[str, Any]) -> Endpoint | None:
    """Return the endpoint by the path of the line, or by the fields of the body; None if it is no request."""
    for name in ("url", "path", "endpoint"):
        if isinstance(path := row.get(name), str) and (endpoint := endpoint_of(path)):
            return endpoint
    if "messages" in request:
        anthropic = "system" in request or str(request.get("model")).startswith("claude")
        return Endpoint.MESSAGES if anthropic else Endpoint.CHAT
    if "input" in request:
        return Endpoint.RESPONSES
    return Endpoint.COMPLETIONS if "prompt" in request else None


def truth_of(row: Mapping[str, Any], name: str | None) -> str | None:
    if name is None:
        return None
    return json.dumps(at(row, name), sort_keys=True, separators=(",", ":"))


def answer_of(row: Mapping[str, Any], endpoint: Endpoint) -> str | None:
    """Return the text of a line's answer, if it has one."""
    for name in ("answer", "response"):
        answer = row.get(name)
        if isinstance(answer, str):
            if not answer.lstrip().startswith("{"):
                return answer.strip() or None
            try:
                answer = body(row, name)
            except BrokenLineError:  # a text that starts with a brace
                return str(row[name])
        if isinstance(answer, Mapping):
            inner = answer.get("body")
            answer = inner if isinstance(inner, Mapping) else answer
            kind = answer.get("object") or answer.get("type")
            read = READERS.get(OBJECTS.get(kind, endpoint) if isinstance(kind, str) else endpoint)
            return (read(answer) or None) if read else None
        if answer is not None:
            raise BrokenLineError(f"{name} must be a text or an object, not {short(answer)}")
    return None


def cost_of(row: Mapping[str, Any], name: str | None) -> float | None:
    """Return the cost of a line; None if it has none and no field was named."""
    if name is None:
        value = row.get(COST)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    cost = number(name, at(row, name))
    if cost < 0.0:
        raise BrokenLineError(f"{name} must not be negative, not {cost}")
    return cost
