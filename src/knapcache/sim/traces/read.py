"""The front door: which format is this, and read it.

The format is known by content: the magic bytes of Parquet, the columns of a CSV header, the fields of the first
object of JSON lines. Only oracleGeneral, bytes without a mark, is known by name. Where that is not enough the caller
says it; a doubtful file is refused, not tried.

Several files are one trace, read in the order given; a directory stands for its files, in the order of their names.
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
from knapcache.sim.traces.shape import BrokenLine, BrokenLineError, ColumnRules, Progress, TraceBuilder
from knapcache.sim.traces.source import TraceSource, file_errors

SNIFF = 1 << 20
"""How much of a file is looked at to tell its format: the first line, which holds a whole prompt in some logs."""

PACKED = (".gz", ".zst")


@dataclass(frozen=True)
class TraceFormat:
    """A format and what may be chosen in reading it."""

    read: Callable[[TraceSource, ColumnRules, TraceBuilder], None]
    rules: frozenset[str]
    summary: str
    several: bool = True
    """Whether files of it, one behind the other, are one trace."""


FORMATS = {
    "csv": TraceFormat(csv_file.read, csv_file.RULES, "time,key,size,cost"),
    "parquet": TraceFormat(parquet.read, parquet.RULES, "the same columns in Parquet"),
    "jsonl": TraceFormat(json_lines.read, json_lines.RULES, "the same fields, an object a line"),
    "openai": TraceFormat(openai_log.read, openai_log.RULES, "request and response bodies, an object a line"),
    "mooncake": TraceFormat(
        mooncake.read, mooncake.RULES, "hash_ids of prefix blocks, an object a line", several=False
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
    format: str | None = None,  # noqa: A002 - what the option is called
    on_broken: Callable[[BrokenLine], None] | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The requests of a file, of several, or of a directory's; keys numbered 0 … n − 1 as they first appear.

    A broken line raises InvalidInput, which says which line and why; with `on_broken` it is left out, and told to it.
    """
    if format is not None and format not in FORMATS:
        raise InvalidInput(f"unknown format {format!r}: allowed are {', '.join(FORMATS)}")
    paths = files(path)
    builder = TraceBuilder(paths[0], on_broken)
    chosen = format or detect(paths[0])
    if void := sorted(rules.given - FORMATS[chosen].rules):
        allowed = ", ".join(f"--{rule}" for rule in sorted(FORMATS[chosen].rules))
        raise InvalidInput(f"--{void[0]} has no meaning for {paths[0]}, which is {chosen}: allowed are {allowed}")
    if len(paths) > 1 and not FORMATS[chosen].several:
        raise InvalidInput(f"{paths[0]} is {chosen}, which is read one file at a time, not {len(paths)}")
    for one, told in zip(paths, shares(paths, progress), strict=True):
        if format is None and (other := detect(one)) != chosen:
            raise InvalidInput(f"{paths[0]} is {chosen} and {one} is {other}: the files of one trace are of one format")
        builder.path = one
        if len(paths) > 1 and on_broken is not None:
            builder.on_broken = naming(one, on_broken)
        FORMATS[chosen].read(TraceSource(one, told), rules, builder)
    if len(paths) > 1:
        builder.path = f"the {len(paths)} files from {paths[0]} to {paths[-1]}"
    return builder.trace()


def files(path: str | Path | Iterable[str | Path]) -> list[Path]:
    """The files meant, in their order. In a directory hidden ones are left out, and a packed one beside itself."""
    found: list[Path] = []
    for one in [path] if isinstance(path, str | Path) else path:
        one = Path(one)
        if not one.is_dir():
            found.append(one)
            continue
        with file_errors(one):
            names = {inner.name for inner in one.iterdir() if inner.is_file() and not inner.name.startswith(".")}
        found += [one / n for n in sorted(names) if not (n.endswith(PACKED) and n.rpartition(".")[0] in names)]
        if not names:
            raise InvalidInput(f"{one} is a directory without files")
    if not found:
        raise InvalidInput("no file was given: one is needed at least")
    return found


def shares(paths: list[Path], progress: Progress | None) -> list[Progress | None]:
    """The progress of each file, as a part of the whole."""
    if progress is None or len(paths) == 1:
        return [progress] * len(paths)
    sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
    return [partial(share, progress, sum(sizes[:k]), sum(sizes)) for k in range(len(sizes))]


def share(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    """Tell of one file's progress."""
    progress(before + done, max(total, before + done))


def naming(path: Path, on_broken: Callable[[BrokenLine], None]) -> Callable[[BrokenLine], None]:
    """The same, told in which file the line is."""
    return lambda line: on_broken(BrokenLine(f"{path.name}, {line.place}", line.reason))


def detect(path: Path) -> str:
    """The format of a file, or one clear error."""
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
        raise InvalidInput(f"cannot tell what {path} is; say so with --format: {', '.join(FORMATS)}")
    lines = text.splitlines()
    return detect_json(path, lines) if text.startswith(b"{") else detect_csv(path, lines[0])


def detect_json(path: Path, lines: list[bytes]) -> str:
    """JSON lines, by the fields of the first object that can be read."""
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
    raise InvalidInput(f"cannot tell what {path} is: its first line is {reason}")


def detect_csv(path: Path, first: bytes) -> str:
    """CSV, by its header."""
    try:
        header = set(next(csv.reader([first.decode()], strict=True)))
    except (UnicodeDecodeError, csv.Error, StopIteration):
        raise InvalidInput(f"cannot tell what {path} is; say so with --format: {', '.join(FORMATS)}") from None
    for log in (token_logs.AZURE, token_logs.BURSTGPT):
        if {log.time, log.input, log.output} <= header:
            return log.name
    return "csv"
