"""Detect the format of trace files and read them.

The format is detected by content: the magic bytes of Parquet, the columns of a CSV header, the fields of the first
object of JSON. Only oracleGeneral, which has no magic bytes, is detected by name. A file of unknown format raises
InvalidInput; the caller can name the format instead.

Several files form one trace, read in the given order. A directory means its files, in the order of their names. Exports
that have the newest request first are sorted by time.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.sampling import Sampler
from knapcache.lab.trace import Trace
from knapcache.lab.traces import (
    azure,
    call_lines,
    calls,
    csv_file,
    helicone,
    json_lines,
    litellm_log,
    mooncake,
    openai_batch,
    oracle_general,
    table,
)
from knapcache.lab.traces.base import BrokenLine, BrokenLineError, ColumnRules, Progress, TraceBuilder, short
from knapcache.lab.traces.source import TraceSource, file_errors

SNIFF = 1 << 20
"""Bytes read to detect the format. A first line can be long: in some logs it contains a whole prompt."""

COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True)
class TraceFormat:
    """A format, its reader, and the rules that apply to it."""

    read: Callable[[Iterable[TraceSource], ColumnRules, TraceBuilder], None]
    rules: frozenset[str]
    summary: str
    multiple_files: bool = True
    """Whether several files can form one trace."""
    by_time: bool = False
    """Whether requests are sorted by time, because an export may have the newest first."""


def one_by_one(
    read: Callable[[TraceSource, ColumnRules, TraceBuilder], None],
) -> Callable[[Iterable[TraceSource], ColumnRules, TraceBuilder], None]:
    """Return a reader of several files, from a reader of one."""

    def read_files(sources: Iterable[TraceSource], rules: ColumnRules, builder: TraceBuilder) -> None:
        for source in sources:
            read(source, rules, builder)

    return read_files


FORMATS = {
    "csv": TraceFormat(one_by_one(csv_file.read), table.RULES, "time,key,size,cost"),
    "parquet": TraceFormat(one_by_one(table.read_parquet), table.RULES, "the same columns in Parquet"),
    "jsonl": TraceFormat(one_by_one(json_lines.read), table.RULES, "the same fields, one object per line"),
    "openai": TraceFormat(
        one_by_one(call_lines.read_openai), calls.RULES, "request and response bodies, one object per line"
    ),
    "openai-batch": TraceFormat(openai_batch.read, calls.RULES, "input and output files of OpenAI's batch API"),
    "requests": TraceFormat(
        one_by_one(call_lines.read_requests), calls.RULES, "request bodies, one per line, with or without an answer"
    ),
    "helicone": TraceFormat(helicone.read, calls.RULES, "Helicone's exports: JSON lines, JSON or CSV", by_time=True),
    "litellm": TraceFormat(litellm_log.read, calls.RULES, "LiteLLM's spend logs or logging payloads", by_time=True),
    "mooncake": TraceFormat(
        one_by_one(mooncake.read),
        mooncake.RULES,
        "hash_ids of prefix blocks, one object per line",
        multiple_files=False,
    ),
    "azure": TraceFormat(one_by_one(azure.read), calls.RULES, "TIMESTAMP,ContextTokens,GeneratedTokens"),
    "oracle-general": TraceFormat(
        one_by_one(oracle_general.read), oracle_general.RULES, "libCacheSim's records of 24 bytes"
    ),
}


def read_trace(
    path: str | Path | Iterable[str | Path],
    rules: ColumnRules = ColumnRules(),  # noqa: B008 - frozen
    *,
    format: str | None = None,  # noqa: A002 - the name of the option
    on_broken: Callable[[BrokenLine], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
    progress: Progress | None = None,
    sampler: Sampler | None = None,
) -> Trace:
    """Read a file, several files, or the files of a directory. Keys are numbered 0 … n − 1 by first appearance.

    A broken line raises InvalidInput with its place and the reason. With `on_broken`, it is passed to that function and
    skipped. A line that is no request for a replay, such as a failed call, raises InvalidInput, too. With
    `on_notice`, it is left out and the reason is passed to that function, in words that are equal for equal reasons.

    With a `sampler`, the requests are passed to it while they are read, and the trace is its sample, without names.
    """
    if format is not None and format not in FORMATS:
        raise InvalidInput(f"unknown format {format!r}: allowed are {', '.join(FORMATS)}")
    paths = files(path)
    builder = TraceBuilder(paths[0], on_broken, on_notice, sampler)
    chosen = format or detect(paths[0], rules)
    if unused := sorted(rules.options - FORMATS[chosen].rules):
        allowed = ", ".join(f"--{rule}" for rule in sorted(FORMATS[chosen].rules))
        raise InvalidInput(f"--{unused[0]} does not apply to {paths[0]}, which is {chosen}: allowed are {allowed}")
    if len(paths) > 1 and not FORMATS[chosen].multiple_files:
        raise InvalidInput(f"{paths[0]} is {chosen}: only one file is allowed, not {len(paths)}")

    def sources() -> Iterator[TraceSource]:
        for source in open_sources(paths, chosen, lambda one: format or detect(one, rules), progress):
            builder.path = source.path
            if len(paths) > 1 and on_broken is not None:
                builder.on_broken = with_file_name(source.path, on_broken)
            yield source

    FORMATS[chosen].read(sources(), rules, builder)
    builder.path = paths[0] if len(paths) == 1 else f"the {len(paths)} files from {paths[0]} to {paths[-1]}"
    trace = builder.trace()
    return sorted_by_time(trace) if FORMATS[chosen].by_time else trace


def sorted_by_time(trace: Trace) -> Trace:
    """Return the requests in the order of their times; requests of the same time stay in their order."""
    if trace.times is None or (np.diff(trace.times) >= 0.0).all():
        return trace
    # A file with the newest first has it first among equals, too.
    newest_first = trace.times[0] > trace.times[-1]
    places = np.arange(len(trace))
    order = np.lexsort((-places if newest_first else places, trace.times))
    return replace(
        trace,
        keys=trace.keys[order],
        sizes=trace.sizes[order],
        costs=trace.costs[order],
        times=trace.times[order],
    )


def files(path: str | Path | Iterable[str | Path]) -> list[Path]:
    """Return the files in order. In a directory, hidden files are skipped, and compressed ones beside the plain
    file.
    """
    found: list[Path] = []
    for one in [path] if isinstance(path, str | Path) else path:
        one = Path(one)
        if not one.is_dir():
            found.append(one)
            continue
        with file_errors(one):
            names = {inner.name for inner in one.iterdir() if inner.is_file() and not inner.name.startswith(".")}
        found += [one / n for n in sorted(names) if not (n.endswith(COMPRESSED) and n.rpartition(".")[0] in names)]
        if not names:
            raise InvalidInput(f"{one} is a directory without files")
    if not found:
        raise InvalidInput("no file was given: at least one is needed")
    return found


def open_sources(
    paths: list[Path], chosen: str, format_of: Callable[[Path], str], progress: Progress | None
) -> Iterator[TraceSource]:
    """Yield the files of a trace. Raises InvalidInput at the first one whose format is not the chosen one."""
    for one, report in zip(paths, file_progress(paths, progress), strict=True):
        if (other := format_of(one)) != chosen:
            raise InvalidInput(
                f"{paths[0]} is {chosen} and {one} is {other}: all files of a trace must have the same format"
            )
        yield TraceSource(one, report)


def file_progress(paths: list[Path], progress: Progress | None) -> list[Progress | None]:
    """Return a progress function for each file, which reports it as a part of the whole."""
    if progress is None or len(paths) == 1:
        return [progress] * len(paths)
    sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
    return [partial(report_share, progress, sum(sizes[:k]), sum(sizes)) for k in range(len(sizes))]


def report_share(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    """Report the progress of one file."""
    progress(before + done, max(total, before + done))


def with_file_name(path: Path, on_broken: Callable[[BrokenLine], None]) -> Callable[[BrokenLine], None]:
    """Return a function that adds the file name to the line's place before it calls `on_broken`."""
    return lambda line: on_broken(BrokenLine(f"{path.name}, {line.place}", line.reason))


def detect(path: Path, rules: ColumnRules = ColumnRules()) -> str:  # noqa: B008 - frozen
    """Return the format of a file; raises InvalidInput if it is unknown."""
    if path.exists() and not path.is_file():
        raise InvalidInput(f"{path} is not a regular file, so its format cannot be detected: name it with --format")
    with TraceSource(path).open(lines=False) as file:
        start = file.read(SNIFF)
    if "oraclegeneral" in path.name.lower():
        return "oracle-general"
    if start.startswith(b"PAR1"):
        return "parquet"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise InvalidInput(f"{path} is empty")
    if b"\0" in start:
        raise unknown_format(path)
    if text.startswith(b"["):
        return detect_array(path, text)
    lines = text.splitlines()
    return detect_json(path, lines, rules) if text.startswith(b"{") else detect_csv(path, lines[0])


def unknown_format(path: Path, reason: str = "") -> InvalidInput:
    """Return the error for a file whose format is not recognised."""
    return InvalidInput(
        f"cannot detect the format of {path}{reason and ': '}{reason}; name it with --format: {', '.join(FORMATS)}"
    )


def detect_json(path: Path, lines: list[bytes], rules: ColumnRules) -> str:
    """Detect a format of JSON lines by the fields of the first valid object."""
    reason = ""
    for line in lines:
        try:
            fields = json_lines.parse(line) or {}
        except BrokenLineError as error:
            reason = reason or str(error)
            continue
        found = format_of_object(fields)
        if found == "jsonl" and rules.key is None and "key" not in fields:
            names = ", ".join(list(fields)[:12])
            raise unknown_format(
                path, f"its first object has the fields {names}, and --key-fields does not name one of them"
            )
        return found
    raise unknown_format(path, f"its first line is {reason}")


def format_of_object(fields: Mapping[str, Any]) -> str:
    """Return the format of an object by its fields; `jsonl` for any object that is not of another format."""
    if "hash_ids" in fields:
        return "mooncake"
    if "custom_id" in fields and ("body" in fields or "response" in fields):
        return "openai-batch"
    if {"request", "response"} <= fields.keys():
        return "openai"
    if helicone.is_export(fields):
        return "helicone"
    if litellm_log.is_log(fields):
        return "litellm"
    return "requests" if call_lines.is_request(fields) else "jsonl"


def detect_array(path: Path, text: bytes) -> str:
    """Detect the format of a JSON array by its first object. Only exports of other programs are arrays."""
    try:
        first, _ = json_lines.DECODER.raw_decode(text[1:].decode("utf-8", "replace").lstrip())
    except ValueError:
        first = None
    found = format_of_object(first) if isinstance(first, dict) else ""
    if found not in ("helicone", "litellm"):
        raise unknown_format(path, "it is a JSON array, which only exports of Helicone and LiteLLM may be")
    return found


def detect_csv(path: Path, first: bytes) -> str:
    """Detect a format of CSV by its header."""
    try:
        header = set(next(csv.reader([first.decode()], strict=True)))
    except (UnicodeDecodeError, csv.Error, StopIteration):
        raise unknown_format(path) from None
    if {azure.TIME, azure.INPUT, azure.OUTPUT} <= header:
        return "azure"
    if helicone.is_export(header):
        return "helicone"
    return "litellm" if litellm_log.is_log(header) else "csv"


def not_a_trace(path: Path, content: str, names: set[str], formats: Mapping[str, str]) -> InvalidInput:
    """Return the error for a file with other fields than those of the formats. content: what a trace would have."""
    found = f", but has the fields {', '.join(map(short, sorted(names)[:12]))}" if names else ""
    return InvalidInput(f"{path} is not a trace of {content}{found}; allowed are: {'; '.join(formats.values())}")


def first_fields(path: Path) -> set[str]:
    """Return the fields of the first line of a file: of a JSON object, or of the header of CSV. None if it is neither.

    Raises InvalidInput if the file is empty.
    """
    with TraceSource(path).open() as file:
        lines = file.read(SNIFF).removeprefix(b"\xef\xbb\xbf").lstrip().splitlines()
    if not lines:
        raise InvalidInput(f"{path} is empty")
    try:
        if lines[0].startswith(b"{"):
            return set(json_lines.parse(lines[0]) or ())
        return set(next(csv.reader([lines[0].decode()], strict=True), ()))
    except (BrokenLineError, UnicodeDecodeError, csv.Error):
        return set()
