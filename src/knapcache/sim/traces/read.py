"""Detect the format of trace files and read them.

The format is detected by content: the magic bytes of Parquet, the columns of a CSV header, the fields of the first
object of JSON lines. Only oracleGeneral, which has no magic bytes, is detected by name. A file of unknown format raises
InvalidInput; the caller can name the format instead.

Several files form one trace, read in the given order. A directory means its files, in the order of their names.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from knapcache.errors import InvalidInput
from knapcache.sim.trace import Trace
from knapcache.sim.traces import csv_file, json_lines, mooncake, openai_log, oracle_general, parquet, token_logs
from knapcache.sim.traces.base import BrokenLine, BrokenLineError, ColumnRules, Progress, TraceBuilder
from knapcache.sim.traces.source import TraceSource, file_errors

SNIFF = 1 << 20
"""Bytes read to detect the format. A first line can be long: in some logs it contains a whole prompt."""

COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True)
class TraceFormat:
    """A format, its reader, and the rules that apply to it."""

    read: Callable[[TraceSource, ColumnRules, TraceBuilder], None]
    rules: frozenset[str]
    summary: str
    multiple_files: bool = True
    """Whether several files can form one trace."""


FORMATS = {
    "csv": TraceFormat(csv_file.read, csv_file.RULES, "time,key,size,cost"),
    "parquet": TraceFormat(parquet.read, parquet.RULES, "the same columns in Parquet"),
    "jsonl": TraceFormat(json_lines.read, json_lines.RULES, "the same fields, one object per line"),
    "openai": TraceFormat(openai_log.read, openai_log.RULES, "request and response bodies, one object per line"),
    "mooncake": TraceFormat(
        mooncake.read, mooncake.RULES, "hash_ids of prefix blocks, one object per line", multiple_files=False
    ),
    "azure": TraceFormat(token_logs.AZURE.read, token_logs.RULES, "TIMESTAMP,ContextTokens,GeneratedTokens"),
    "burstgpt": TraceFormat(
        token_logs.BURSTGPT.read, token_logs.RULES, "Timestamp,Model,Request tokens,Response tokens,…"
    ),
    "oracle-general": TraceFormat(oracle_general.read, oracle_general.RULES, "libCacheSim's records of 24 bytes"),
}


def read_trace(
    path: str | Path | Iterable[str | Path],
    rules: ColumnRules = ColumnRules(),  # noqa: B008 - frozen
    *,
    format: str | None = None,  # noqa: A002 - the name of the option
    on_broken: Callable[[BrokenLine], None] | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read a file, several files, or the files of a directory. Keys are numbered 0 … n − 1 by first appearance.

    A broken line raises InvalidInput with its place and the reason. With `on_broken`, it is passed to that function and
    skipped.
    """
    if format is not None and format not in FORMATS:
        raise InvalidInput(f"unknown format {format!r}: allowed are {', '.join(FORMATS)}")
    paths = files(path)
    builder = TraceBuilder(paths[0], on_broken)
    chosen = format or detect(paths[0])
    if unused := sorted(rules.options - FORMATS[chosen].rules):
        allowed = ", ".join(f"--{rule}" for rule in sorted(FORMATS[chosen].rules))
        raise InvalidInput(f"--{unused[0]} does not apply to {paths[0]}, which is {chosen}: allowed are {allowed}")
    if len(paths) > 1 and not FORMATS[chosen].multiple_files:
        raise InvalidInput(f"{paths[0]} is {chosen}: only one file is allowed, not {len(paths)}")
    for one, report in zip(paths, file_progress(paths, progress), strict=True):
        if format is None and (other := detect(one)) != chosen:
            raise InvalidInput(
                f"{paths[0]} is {chosen} and {one} is {other}: all files of a trace must have the same format"
            )
        builder.path = one
        if len(paths) > 1 and on_broken is not None:
            builder.on_broken = with_file_name(one, on_broken)
        FORMATS[chosen].read(TraceSource(one, report), rules, builder)
    if len(paths) > 1:
        builder.path = f"the {len(paths)} files from {paths[0]} to {paths[-1]}"
    return builder.trace()


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


def detect(path: Path) -> str:
    """Return the format of a file; raises InvalidInput if it is unknown."""
    with TraceSource(path).open() as file:
        start = file.read(SNIFF)
    if "oraclegeneral" in path.name.lower():
        return "oracle-general"
    if start.startswith(b"PAR1"):
        return "parquet"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise InvalidInput(f"{path} is empty")
    if b"\0" in start:
        raise InvalidInput(f"cannot detect the format of {path}; name it with --format: {', '.join(FORMATS)}")
    lines = text.splitlines()
    return detect_json(path, lines) if text.startswith(b"{") else detect_csv(path, lines[0])


def detect_json(path: Path, lines: list[bytes]) -> str:
    """Detect a format of JSON lines by the fields of the first valid object."""
    reason = ""
    for line in lines:
        try:
            fields = json_lines.parse(line) or {}
        except BrokenLineError as error:
            reason = reason or str(error)
        else:
            if "hash_ids" in fields:
                return "mooncake"
            return "openai" if {"request", "response"} <= fields.keys() else "jsonl"
    raise InvalidInput(f"cannot detect the format of {path}: its first line is {reason}")


def detect_csv(path: Path, first: bytes) -> str:
    """Detect a format of CSV by its header."""
    try:
        header = set(next(csv.reader([first.decode()], strict=True)))
    except (UnicodeDecodeError, csv.Error, StopIteration):
        raise InvalidInput(f"cannot detect the format of {path}; name it with --format: {', '.join(FORMATS)}") from None
    for log in (token_logs.AZURE, token_logs.BURSTGPT):
        if {log.time, log.input, log.output} <= header:
            return log.name
    return "csv"
