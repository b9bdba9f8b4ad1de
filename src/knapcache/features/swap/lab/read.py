"""Logs of answer pairs: JSON lines, plain or compressed, with the answers of several models to one request in each.

    frame    the kind of request: requests of one frame are certified together
    score    quality of the asked model's answer, from 0 to 1
    cost     what that answer cost, in any unit
    cheap    the cheaper models, by name: {"score": …, "cost": …} of each one's answer to the same request

Other fields, such as `question`, are not used. A line need not have all cheaper models.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.trace import Floats
from knapcache.lab.traces.base import BrokenLineError, Progress, TraceBuilder, number, short
from knapcache.lab.traces.json_lines import objects
from knapcache.lab.traces.read import file_progress, files
from knapcache.lab.traces.source import TraceSource

STDIN = Path("-")


class ScoredAnswer(NamedTuple):
    """The quality and the cost of one model's answer."""

    score: float
    cost: float


class ScoredRequest(NamedTuple):
    """One line of a log."""

    frame: str
    asked: ScoredAnswer
    cheap: dict[str, ScoredAnswer]
    """By model."""


@dataclass(frozen=True, eq=False)
class FramePairs:
    """The requests of one frame that have an answer of one cheaper model, as arrays of equal length."""

    frame: str
    asked_costs: Floats
    cheap_costs: Floats
    losses: Floats
    """Score of the asked model minus score of the cheaper one."""


def read_requests(path: Path, *, progress: Progress | None = None) -> list[ScoredRequest]:
    """Read a log, `-` for stdin, or the files of a directory, in the order of the lines.

    Raises InvalidInput with the place of a broken line.
    """
    found: list[ScoredRequest] = []
    paths = [path] if path == STDIN else files(path)
    for one, report in zip(paths, file_progress(paths, progress), strict=True):
        builder = TraceBuilder("stdin" if one == STDIN else one, None)
        with opened(one, report) as file:
            for line, row in objects(file, builder):
                try:
                    found.append(parse(row))
                except BrokenLineError as error:
                    builder.broken(f"line {line}", str(error))
    name = "stdin" if path == STDIN else path
    if not found:
        raise InvalidInput(f"{name} contains no requests")
    if not any(request.asked.cost for request in found):
        raise InvalidInput(
            f"{name}: the answers of the asked model cost nothing, so a cheaper model cannot save anything"
        )
    return found


def opened(path: Path, progress: Progress | None) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if path == STDIN else TraceSource(path, progress).open()


def parse(row: Mapping[str, Any]) -> ScoredRequest:
    """Return the request of a line; raises BrokenLineError."""
    frame, cheap = present(row, "frame"), present(row, "cheap")
    if not isinstance(frame, str):
        raise BrokenLineError(f"frame must be a text, not {short(frame)}")
    if not isinstance(cheap, Mapping):
        raise BrokenLineError(f"cheap must be an object with the cheaper models, not {short(cheap)}")
    answers = {}
    for model, answer in cheap.items():
        if not isinstance(answer, Mapping):
            raise BrokenLineError(
                f"cheap model {short(model)} must be an object with score and cost, not {short(answer)}"
            )
        answers[model] = scored_answer(answer, f"cheap model {short(model)}: ")
    if not answers:
        raise BrokenLineError("cheap names no model")
    return ScoredRequest(frame, scored_answer(row), answers)


def scored_answer(row: Mapping[str, Any], prefix: str = "") -> ScoredAnswer:
    """Return the score and the cost of an answer; raises BrokenLineError. prefix: the start of the message."""
    score, cost = (number(prefix + name, present(row, name, prefix)) for name in ("score", "cost"))
    if not 0.0 <= score <= 1.0:
        raise BrokenLineError(f"{prefix}score must be from 0 to 1, not {score}")
    if not 0.0 <= cost < math.inf:
        raise BrokenLineError(f"{prefix}cost must be finite and not negative, not {cost}")
    return ScoredAnswer(score, cost)


def present(row: Mapping[str, Any], name: str, prefix: str = "") -> Any:
    value = row.get(name)
    if value is None or value == "":
        raise BrokenLineError(f"{prefix}{name} is missing")
    return value


def models_of(requests: Sequence[ScoredRequest]) -> list[str]:
    """Return the cheaper models in the order of their first line."""
    return list(dict.fromkeys(model for request in requests for model in request.cheap))


def pairs_of(requests: Sequence[ScoredRequest], model: str) -> list[FramePairs]:
    """Return the pairs of the asked model and a cheaper one by frame, in the order of the frames' first lines."""
    frames: dict[str, list[tuple[float, float, float]]] = {}
    for frame, asked, cheap in requests:
        if answer := cheap.get(model):
            frames.setdefault(frame, []).append((asked.cost, answer.cost, asked.score - answer.score))
    return [FramePairs(frame, *np.array(rows).T) for frame, rows in frames.items()]
