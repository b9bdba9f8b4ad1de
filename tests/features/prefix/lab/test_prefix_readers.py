"""Readers of prefix traces: CSV of sessions, the proxy's request log, and broken files."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.features.prefix.lab import PrefixTrace, read_prefix_trace
from knapcache.features.prefix.request import Position, PrefixRequest
from knapcache.features.prefix.tariff import ANTHROPIC
from knapcache.lab.traces.sessions import COLUMNS

HEADER = ",".join(COLUMNS)


def read(path: Path) -> PrefixTrace:
    return read_prefix_trace(path, ANTHROPIC.minimum_of)


def sessions(path: Path, *lines: str) -> Path:
    path.write_text("\n".join((HEADER, *lines)) + "\n")
    return path


def lengths(trace: PrefixTrace) -> list[list[int]]:
    """Return the lengths of the positions of each request."""
    return [[position.tokens for position in request.positions] for request in trace.requests]


# Sessions ---------------------------------------------------------------------------------------------------------


def test_a_request_has_the_shared_positions_of_its_parent_and_its_own(tmp_path: Path) -> None:
    file = sessions(
        tmp_path / "t.csv",
        "0,s,0,-1,0,5000,9,2000,text,claude-opus-4-5-20251101",
        "5,s,1,0,5000,7001,9,2000,tool,claude-opus-4-5-20251101",
        "6,s,2,1,6001,9000,9,2000,tool,claude-sonnet-4-20250514",
        "7,other,2,-1,0,3000,9,0,text,",
        "8,s,3,2,1001,4000,9,1500,text,",
    )
    trace = read(file)
    assert lengths(trace) == [[2000, 5000], [2000, 5000, 7001], [2000, 5000, 9000], [3000], [1500, 4000]]
    first, second, third, other, fourth = trace.requests
    assert second.positions[:2] == first.positions
    assert third.positions[1] == first.positions[1]
    assert third.positions[2] != second.positions[2]
    assert {p.id for p in (*fourth.positions, *other.positions)}.isdisjoint(p.id for p in third.positions)
    assert [request.system for request in trace.requests] == [0, 0, 0, -1, 0]
    assert [request.kind for request in trace.requests] == ["text", "tool", "tool", "text", "text"]
    assert [request.minimum for request in trace.requests] == [4096, 4096, 1024, 1024, 1024]
    assert [request.tokens for request in trace.requests] == [5000, 7001, 9000, 3000, 4000]
    assert (trace.format, trace.input_tokens) == ("sessions", 28_001)


def test_shared_blocks_are_completed_to_the_position_that_ends_in_the_next_block(tmp_path: Path) -> None:
    file = sessions(
        tmp_path / "t.csv",
        "0,s,0,-1,0,1000,9,0,text,",
        "1,s,1,0,960,2000,9,0,text,",  # continues request 0
        "2,s,2,1,1984,2010,9,0,text,",  # continues request 1
        "3,s,3,2,960,999,9,0,text,",  # too short for the end of request 0
        "4,s,4,2,1024,3000,9,0,text,",  # leaves before the end of request 1
        "5,s,5,4,896,3000,9,0,text,",  # leaves before the end of request 0
    )
    assert lengths(read(file)) == [[1000], [1000, 2000], [1000, 2000, 2010], [999], [1000, 3000], [3000]]


def test_shared_lengths_that_are_whole_requests_do_not_change_the_block(tmp_path: Path) -> None:
    file = sessions(
        tmp_path / "t.csv",
        "0,s,0,-1,0,1001,9,0,text,",
        "1,s,1,0,1001,1001,9,0,text,",
        "2,s,2,1,512,1500,9,0,text,",
        "3,s,3,1,1001,2003,9,0,text,",
        "4,s,4,3,1536,2500,9,0,text,",
    )
    trace = read(file)
    assert lengths(trace) == [[1001], [1001], [1001, 1500], [1001, 2003], [1001, 2003, 2500]]
    assert trace.requests[0].positions == trace.requests[1].positions


def test_the_block_of_a_few_values_is_a_usual_one(tmp_path: Path) -> None:
    """With a block of 1,000 tokens, the second request would continue the first."""
    file = sessions(tmp_path / "t.csv", "0,s,0,-1,0,1500,9,0,text,", "1,s,1,0,1000,2000,9,0,text,")
    assert lengths(read(file)) == [[1500], [2000]]
    rows = [
        "0,s,0,-1,0,1500,9,0,text,",
        *(f"{k},s,{k},{k - 1},{1000 * k},{1000 * k + 1500},9,0,text," for k in range(1, 18)),
    ]
    assert lengths(read(sessions(tmp_path / "t.csv", *rows)))[-1] == [1000 * k + 1500 for k in range(18)]


def test_a_parent_without_shared_tokens_gives_no_position(tmp_path: Path) -> None:
    file = sessions(tmp_path / "t.csv", "0,s,0,-1,0,300,9,0,text,", "1,s,1,0,0,2000,9,0,text,")
    assert lengths(read(file)) == [[300], [2000]]


def test_a_system_prompt_that_is_the_whole_request_or_longer(tmp_path: Path) -> None:
    file = sessions(
        tmp_path / "t.csv",
        "0,s,0,-1,0,1000,9,1000,text,",
        "1,s,1,0,1000,3001,9,1000,text,",
        "2,t,0,-1,0,700,9,900,text,",
    )
    trace = read(file)
    assert lengths(trace) == [[1000], [1000, 3001], [700]]
    assert [request.system for request in trace.requests] == [0, 0, 0]


def test_requests_are_sorted_by_time_over_several_compressed_files(tmp_path: Path) -> None:
    first = sessions(tmp_path / "one.csv", "9,s,1,0,900,2000,9,0,text,", "9,s,2,1,2000,2500,9,0,text,")
    second = sessions(tmp_path / "two.csv", "3,s,0,-1,0,900,9,0,text,")
    for file in (first, second):
        file.with_suffix(".csv.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    trace = read(tmp_path)
    assert [request.time for request in trace.requests] == [3.0, 9.0, 9.0]
    assert lengths(trace) == [[900], [900, 2000], [900, 2000, 2500]]


def test_times_may_be_dates_or_milliseconds(tmp_path: Path) -> None:
    file = sessions(
        tmp_path / "t.csv",
        "1970-01-01T00:00:10Z,s,0,-1,0,900,9,0,text,",
        "1700000000000,s,1,0,900,1000,9,0,text,",
    )
    assert [request.time for request in read(file).requests] == [10.0, 1.7e9]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x,s,1,0,64,99,9,0,text,", "time must be a number or a date and time, not 'x'"),
        ("inf,s,1,0,64,99,9,0,text,", "time must be finite, not inf"),
        ("1,s,-1,0,64,99,9,0,text,", "request must be at least 0 and below 2^53, not -1"),
        ("1,s,1,-2,64,99,9,0,text,", "parent must be the number of a request, or -1, not '-2'"),
        ("1,s,1,-1,64,99,9,0,text,", "shared_tokens must be 0 without a parent, not 64"),
        ("1,s,1,0,6_4,99,9,0,text,", "shared_tokens must be a whole number, not '6_4'"),
        ("1,s,1,0,64,0,9,0,text,", "input_tokens must be at least 1 and below 2^53, not 0"),
        ("1,s,1,0,64,63,9,0,text,", "shared_tokens is 64, and the request has only 63 tokens"),
        ("1,s,1,0,101,200,9,0,text,", "shared_tokens is 101, and the parent has only 100 tokens"),
        ("1,s,1,0,64,99,9,-5,text,", "system_tokens must be at least 0 and below 2^53, not -5"),
        ("1,s,1,0,64,99,9,0,image,", "kind must be tool or text, not 'image'"),
        ("1,s,1,7,64,99,9,0,text,", "parent 7 of session s is not an earlier request"),
        ("1,s,1,1,64,99,9,0,text,", "parent 1 of session s is not an earlier request"),
        ("1,t,1,0,64,99,9,0,text,", "parent 0 of session t is not an earlier request"),
        ("0,s,0,-1,0,99,9,0,text,", "request 0 of session s occurs twice"),
        ("1,s,1,0,64,99,9,0,text", "9 fields where the header has 10"),
    ],
)
def test_a_broken_row_is_named_by_its_line(line: str, message: str, tmp_path: Path) -> None:
    file = sessions(tmp_path / "t.csv", "0,s,0,-1,0,100,9,0,text,", line)
    with pytest.raises(InvalidInput) as raised:
        read(file)
    assert str(raised.value) == f"{file}, line 3: {message}"


# The request log --------------------------------------------------------------------------------------------------

PREFIX = {"positions": [["a", 1200], ["b", 3000]], "tokens": 3007, "system": 0, "kind": "tool"}


def as_csv(*prefixes: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["time", "key", "size", "cost", "usd", "seconds", "prefix", "outcome"])
    for k, prefix in enumerate(prefixes):
        shown = prefix if isinstance(prefix, str) else json.dumps(prefix)
        writer.writerow([k, "k", 1, 1.0, "unknown", 0.5, shown, "miss"])
    return text.getvalue()


def as_json_lines(*prefixes: Any) -> str:
    rows = ({"time": k, "key": "k"} | ({"prefix": prefix} if prefix else {}) for k, prefix in enumerate(prefixes))
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("written", [as_csv, as_json_lines])
def test_a_request_log_with_prefixes(written: Any, tmp_path: Path) -> None:
    later = PREFIX | {"positions": [["a", 1200], ["b", 3000], ["c", 5000]], "tokens": 5000, "kind": "text"}
    (tmp_path / "requests.csv").write_text(written(PREFIX, "", later))
    trace = read(tmp_path)
    a, b, c = Position("a", 1200), Position("b", 3000), Position("c", 5000)
    assert trace.requests == [
        PrefixRequest(time=0.0, positions=[a, b], tokens=3007, system=0, kind="tool", minimum=1024),
        PrefixRequest(time=2.0, positions=[a, b, c], tokens=5000, system=0, kind="text", minimum=1024),
    ]
    assert trace.format == "log"


def test_the_model_of_a_log_line_decides_the_minimum(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps({"time": 1, "model": "claude-3-5-haiku", "prefix": PREFIX}) + "\n")
    assert read(file).requests[0].minimum == 2048


@pytest.mark.parametrize("written", [as_csv, as_json_lines])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": []}, "positions must be a list of [id, tokens], not []"),
        ({"positions": [["a"]]}, "a position must be [id, tokens], not ['a']"),
        ({"positions": [["a", -1]]}, "tokens of a position must be at least 0 and below 2^53, not -1"),
        ({"positions": [["a", 2000], ["b", 1000]]}, "positions must ascend, and 1000 tokens come after 2000"),
        ({"tokens": 2999}, "the last position is 3000 tokens, and the request has only 2999"),
        ({"tokens": None}, "tokens is missing"),
        ({"system": 2}, "system must be an index of the 2 positions, or -1, not 2"),
        ({"kind": "image"}, "kind must be tool or text, not 'image'"),
    ],
)
def test_a_broken_prefix_is_named_by_its_line(
    written: Any, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "log"
    file.write_text(written(PREFIX, PREFIX | change))
    with pytest.raises(InvalidInput) as raised:
        read(file)
    assert str(raised.value) == f"{file}, line {3 if written is as_csv else 2}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (as_csv("[1"), "line 2: prefix is not JSON: "),
        (as_json_lines(5), "line 1: prefix must be an object, not 5"),
        (as_csv("", ""), "contains no prefixes: the proxy logs them in the folder `prefixes`, unless"),
        (
            "time,key,size,cost,usd,seconds,outcome\n1,k,1,1,1,1,hit\n",
            "contains no prefixes: the proxy logs them in the folder",
        ),
    ],
)
def test_a_request_log_without_prefixes(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    file.write_text(text)
    with pytest.raises(InvalidInput) as raised:
        read(file)
    assert str(raised.value).removeprefix(f"{file}").lstrip(", ").startswith(message)


def test_estimated_lengths_may_be_zero(tmp_path: Path) -> None:
    short = {"positions": [["a", 0], ["b", 0]], "tokens": 0, "system": 0, "kind": "text"}
    file = tmp_path / "requests.csv"
    file.write_text(as_csv(short, PREFIX))
    assert lengths(read(file)) == [[0, 0], [1200, 3000]]
    file.write_text(as_csv(short))
    with pytest.raises(InvalidInput, match=r"requests.csv contains no input tokens"):
        read(file)


# All formats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", " is empty"),
        (HEADER.encode() + b"\n", " contains no requests"),
        (HEADER.replace(",kind", "").encode() + b"\n", " has no column 'kind': needed are time,session,"),
        (HEADER.encode() + b",kind\n", " has more than one column 'kind'"),
        (
            b"time,key,size,cost\n1,2,3,4\n",
            " is not a trace of prefixes, but has the fields 'cost', 'key', 'size', 'time'; allowed are: CSV with the ",
        ),
        (
            b'{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n',  # Mooncake's
            " is not a trace of prefixes, but has the fields 'hash_ids', 'input_length',",
        ),
        (b'{"time": 1}\n', " is not a trace of prefixes"),
        (b"{\n", " is not a trace of prefixes"),
        (b"\xff\xfe\n", " is not a trace of prefixes"),
        (gzip.compress(HEADER.encode() * 99)[:-9], " is truncated"),
    ],
)
def test_a_file_that_is_no_trace_of_prefixes(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(content)
    with pytest.raises(InvalidInput) as raised:
        read(file)
    assert str(raised.value).startswith(f"{file}{message}")
    assert "\n" not in str(raised.value)


def test_files_of_a_trace_have_the_same_format(tmp_path: Path) -> None:
    files = [sessions(tmp_path / "a", "0,s,0,-1,0,9,9,0,text,"), tmp_path / "b"]
    files[1].write_text(as_csv(PREFIX))
    with pytest.raises(InvalidInput, match=r"a is sessions and .*b is log: all files of a trace must have the same"):
        read_prefix_trace(files, ANTHROPIC.minimum_of)


def test_a_missing_file_and_progress(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*nowhere: No such file"):
        read(tmp_path / "nowhere")
    file, reports = sessions(tmp_path / "a", "0,s,0,-1,0,9,9,0,text,"), []
    read_prefix_trace(file, ANTHROPIC.minimum_of, progress=lambda done, total: reports.append((done, total)))
    assert reports[-1] == (file.stat().st_size,) * 2
