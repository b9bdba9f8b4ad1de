"""The front door: which format is this, and read it.

The format is known by content: the magic bytes of Parquet, the columns of a CSV header, the fields of the first
object of JSON lines. Only oracleGeneral, bytes without a mark, is known by name. Where that is not enough the caller
says it; a doubtful file is refused, not tried.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from knapcache.errors import InvalidInput
from knapcache.sim.trace import Trace
from knapcache.sim.traces import csv_file, json_lines, mooncake, openai_log, oracle_general, parquet, token_logs
from knapcache.sim.traces.shape import Broken, BrokenLine, Progress, Requests, Rules
from knapcache.sim.traces.source import Source

SNIFF = 1 << 20
"""How much of a file is looked at to tell its format: the first line, which holds a whole prompt in some logs."""


@dataclass(frozen=True)
class Format:
    """A format and what may be chosen in reading it."""

    read: Callable[[Source, Rules, Requests], None]
    rules: frozenset[str]
    summary: str


FORMATS = {
    "csv": Format(csv_file.read, csv_file.RULES, "time,key,size,cost"),
    "parquet": Format(parquet.read, parquet.RULES, "the same columns in Parquet"),
    "jsonl": Format(json_lines.read, json_lines.RULES, "the same fields, an object a line"),
    "openai": Format(openai_log.read, openai_log.RULES, "request and response bodies, an object a line"),
    "mooncake": Format(mooncake.read, mooncake.RULES, "hash_ids of prefix blocks, an object a line"),
    "azure": Format(token_logs.AZURE.read, token_logs.RULES, "TIMESTAMP,ContextTokens,GeneratedTokens"),
    "burstgpt": Format(token_logs.BURSTGPT.read, token_logs.RULES, "Timestamp,Model,Request tokens,Response tokens,…"),
    "oracle-general": Format(oracle_general.read, oracle_general.RULES, "libCacheSim's records of 24 bytes"),
}


def read_trace(
    path: str | Path,
    rules: Rules = Rules(),  # noqa: B008 - frozen
    *,
    format: str | None = None,  # noqa: A002 - what the option is called
    on_broken: Callable[[BrokenLine], None] | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The requests of a file, keys numbered 0 … n − 1 in the order of their first appearance.

    A broken line raises InvalidInput, which says which line and why; with `on_broken` it is left out, and told to it.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise InvalidInput(f"unknown format {format!r}: allowed are {', '.join(FORMATS)}")
    chosen = format or detect(path)
    if void := sorted(rules.given - FORMATS[chosen].rules):
        allowed = ", ".join(f"--{rule}" for rule in sorted(FORMATS[chosen].rules))
        raise InvalidInput(f"--{void[0]} has no meaning for {path}, which is {chosen}: allowed are {allowed}")
    requests = Requests(path, on_broken)
    FORMATS[chosen].read(Source(path, progress), rules, requests)
    return requests.trace()


def detect(path: Path) -> str:
    """The format of a file, or one clear error."""
    with Source(path).open() as file:
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
        except Broken as error:
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
