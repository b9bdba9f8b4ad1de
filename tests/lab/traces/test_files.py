"""Compressed, truncated, damaged, empty, ambiguous and missing trace files."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.lab.traces import BrokenLine, ColumnRules, Prices, read_trace, source
from knapcache.lab.traces.read import detect

CSV = b"time,key,size,cost\n" + b"".join(b"%d,k%d,%d,1\n" % (i, i % 7, i % 7 + 1) for i in range(5000))
TRACES = Path(os.environ.get("KNAPCACHE_TRACES") or Path(__file__).parents[4] / "shared" / "data")

RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])

COMPRESSED = {
    "gzip": gzip.compress(CSV),
    "gzip, two members": gzip.compress(CSV[:1000]) + gzip.compress(CSV[1000:]),
    "zstd": zstandard.ZstdCompressor().compress(CSV),
    "zstd, two frames": zstandard.compress(CSV[:1000]) + zstandard.compress(CSV[1000:]),
}


@pytest.mark.parametrize("compression", COMPRESSED)
def test_compression_is_detected_by_content(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"  # the name has no suffix for compression
    path.write_bytes(COMPRESSED[compression])
    trace = read_trace(path)
    assert len(trace) == 5000
    assert trace.names == [f"k{i}" for i in range(7)]


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("compression", ["gzip", "zstd", "zstd, two frames"])
def test_a_truncated_file_is_an_error(compression: str, skip: bool, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    for length in (len(COMPRESSED[compression]) - 1, len(COMPRESSED[compression]) * 2 // 3):
        path.write_bytes(COMPRESSED[compression][:length])
        with pytest.raises(InvalidInput, match=r"is truncated: its compressed data ends too early"):
            read_trace(path, on_broken=(lambda _: None) if skip else None)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_damaged_files(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    content = bytearray(COMPRESSED[compression])
    content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    path.write_bytes(bytes(content))
    with pytest.raises(InvalidInput, match=r"is (damaged|truncated)|line \d+: "):
        read_trace(path)
    path.write_bytes(COMPRESSED["gzip"] + b"something else")
    with pytest.raises(InvalidInput, match="is damaged"):
        read_trace(path)


def test_zstd_without_a_decompressor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_bytes(COMPRESSED["zstd"])
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=re.escape(f"with zstd: decompress it, or run {install_command('lab')}")):
        read_trace(tmp_path / "t")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b" \r\n\n", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"time,key,size,cost\n", "contains no requests"),
        (b"time,key,size,cost", "contains no requests"),
        (b"key,size\na,1\n", "has no column 'time' among 'key', 'size'"),
        (b"\x00\x01\x02\x03", "cannot detect the format of"),
        (b"{not json\n", "cannot detect the format of"),
        ("time,key,size,cost\n1,a,1,1\n".encode("utf-16"), "cannot detect the format of"),
        (b"\x1f\x8b", "is truncated"),
    ],
)
def test_files_without_requests(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    for broken in (None, lambda _: None):
        with pytest.raises(InvalidInput, match=message) as caught:
            read_trace(path, on_broken=broken)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*nowhere.csv: No such file"):
        read_trace(tmp_path / "nowhere.csv")
    with pytest.raises(InvalidInput, match="is a directory without files"):
        read_trace(tmp_path)
    with pytest.raises(InvalidInput, match="no file was given"):
        read_trace([])


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_several_files_form_one_trace(tmp_path: Path) -> None:
    head = b"time,key,size,cost\n"
    first = write(tmp_path / "log-1.csv.gz", gzip.compress(head + b"1,a,5,1\n2,b,6,2\n"))
    second = write(tmp_path / "log-2.csv", head)
    last = write(tmp_path / "log.csv", head + b"3,c,7,3\n4,a,5,1\n")
    write(tmp_path / ".log.csv.part", b"half of")
    (tmp_path / "inner").mkdir()
    reports: list[tuple[int, int]] = []
    arguments: list[Path | list[str | Path]] = [[first, second, last], tmp_path, [tmp_path], [first, str(last)]]
    for argument in arguments:
        trace = read_trace(argument, progress=lambda done, total: reports.append((done, total)))
        assert trace.names == ["a", "b", "c"]
        assert trace.keys.tolist() == [0, 1, 2, 0]
        assert trace.times is not None
        assert trace.times.tolist() == [1, 2, 3, 4]
    assert reports[-1][0] == reports[-1][1] == sum(path.stat().st_size for path in (first, last))
    assert read_trace([last, first]).names == ["c", "a", "b"]
    write(tmp_path / "log-2.csv.gz", b"\x1f\x8b")  # being compressed: the plain file is read
    assert len(read_trace(tmp_path)) == 4


def test_files_of_a_trace_have_one_format_and_broken_lines_name_their_file(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", b"time,key,size,cost\n1,a,5,1\n2,b\n")
    last = write(tmp_path / "b.csv", b"time,key,size,cost\n1,a,0,1\n")
    with pytest.raises(InvalidInput, match=r"a.csv, line 3: 2 fields where the header has 4"):
        read_trace(tmp_path)
    broken: list[BrokenLine] = []
    assert len(read_trace(tmp_path, on_broken=broken.append)) == 1
    assert [line.place for line in broken] == ["a.csv, line 3", "b.csv, line 2"]
    other = write(tmp_path / "c.jsonl", b'{"time": 1, "key": "a", "size": 1, "cost": 1}\n')
    with pytest.raises(InvalidInput, match=r"a.csv is csv and .*c.jsonl is jsonl"):
        read_trace([first, other], on_broken=broken.append)
    blocks = write(tmp_path / "m", b'{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n')
    with pytest.raises(InvalidInput, match="is mooncake: only one file is allowed, not 2"):
        read_trace([blocks, blocks])
    with pytest.raises(InvalidInput, match=r"cannot read .*nowhere"):
        read_trace([last, tmp_path / "nowhere"], on_broken=broken.append)
    empty = write(tmp_path / "e.csv", b"time,key,size,cost\n")
    with pytest.raises(InvalidInput, match=r"the 2 files from .*e.csv to .*e.csv contains? no requests"):
        read_trace([empty, empty])


@pytest.mark.parametrize("polars", [True, False])
@pytest.mark.parametrize("rows", [1, 511, 512, 513])
def test_a_line_that_is_still_being_written_is_ignored(
    rows: int, polars: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not polars:
        monkeypatch.setitem(sys.modules, "polars", None)
    whole = b"time,key,size,cost,outcome\n" + b"".join(b"%d,k%d,5,1.25,hit\n" % (k, k) for k in range(rows))
    line = b"9,last,5,1.25,hit"
    for cut in range(len(line) + 1):
        path = write(tmp_path / "t.csv", whole + line[:cut])
        expected = rows + (line[:cut].count(b",") == 4)
        assert len(read_trace(path)) == expected
        write(path, whole + line[:cut] + b"\n")
        if cut and expected == rows:  # with a newline it is a broken line
            with pytest.raises(InvalidInput, match="fields where the header has 5"):
                read_trace(path)
    with pytest.raises(InvalidInput, match=f"line {rows + 2}: 6 fields"):
        read_trace(write(tmp_path / "t.csv", whole + line + b",more"))


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (b"time,key,size,cost\n", "csv"),
        (b"a;b\n", "csv"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "azure"),
        (b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n", "csv"),
        (b'{"key": 1}\n', "jsonl"),
        (b'\xef\xbb\xbf\n {"hash_ids": []}\n', "mooncake"),
        (b'{broken\n{"request": {}, "response": {}}\n', "openai"),
        (b"PAR1....", "parquet"),
    ],
)
def test_formats_are_detected_by_content(content: bytes, format: str, tmp_path: Path) -> None:  # noqa: A002
    for compressed in (content, gzip.compress(content)):
        (tmp_path / "x").write_bytes(compressed)
        assert detect(tmp_path / "x") == format


def test_formats_and_rules_that_do_not_match(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(CSV)
    with pytest.raises(InvalidInput, match="unknown format 'xml': allowed are csv, parquet"):
        read_trace(tmp_path / "t", format="xml")
    with pytest.raises(InvalidInput, match=r"--prices does not apply to .*, which is csv: allowed are --cost"):
        read_trace(tmp_path / "t", ColumnRules(prices=Prices(1, 2)))
    with pytest.raises(InvalidInput, match="only one of"):
        ColumnRules(cost="x", prices=Prices(1, 2))
    with pytest.raises(InvalidInput, match="only one of"):
        ColumnRules(time="x", no_time=True)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="finite and not negative"):
            ColumnRules(cost_each=wrong)
        with pytest.raises(InvalidInput, match="finite and not negative"):
            Prices(1.0, wrong)
    for key in ((), ("",), ("a", "")):
        with pytest.raises(InvalidInput, match="key must name at least one field"):
            ColumnRules(key=key)


@pytest.mark.parametrize("content", [CSV, COMPRESSED["gzip"], COMPRESSED["zstd"]], ids=["csv", "gzip", "zstd"])
def test_progress_ends_at_the_end(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(content)
    seen: list[tuple[int, int]] = []
    read_trace(tmp_path / "t", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(content), len(content))
    assert seen == sorted(seen)


# oracleGeneral -----------------------------------------------------------------------------------------------------


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**63, 2**64 - 1]), st.integers(1, 2**32 - 1)),
        min_size=1,
        max_size=40,
    ),
    compressed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_oracle_general(
    rows: list[tuple[int, int, int]], compressed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("o") / "w01.oracleGeneral.bin"
    np.array([(*row, -1) for row in rows], RECORD).tofile(path)
    assert path.stat().st_size == 24 * len(rows)
    if compressed:
        path.write_bytes(zstandard.compress(path.read_bytes()))
    trace = read_trace(path)
    assert trace.names is not None
    assert trace.times is not None
    names = [trace.names[key] for key in trace.keys.tolist()]
    assert list(zip(trace.times.tolist(), names, trace.sizes.tolist(), strict=True)) == rows
    assert trace.costs.tolist() == [1.0] * len(rows)
    assert read_trace(path, ColumnRules(cost="size")).costs.tolist() == [float(row[2]) for row in rows]
    assert read_trace(path, ColumnRules(cost_each=0.5)).total_cost == 0.5 * len(rows)


def test_invalid_oracle_general(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    np.array([(0, 5, 10, 1), (1, 5, 0, 2), (2, 6, 7, -1)], RECORD).tofile(path)
    with pytest.raises(InvalidInput, match="record 2: size must be at least 1"):
        read_trace(path, format="oracle-general")
    broken: list[BrokenLine] = []
    assert read_trace(path, format="oracle-general", on_broken=broken.append).names == [5, 6]
    assert [b.place for b in broken] == ["record 2"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidInput, match="is truncated, or not oracleGeneral: 23 bytes are left after record 2"):
        read_trace(path, format="oracle-general")
    with pytest.raises(InvalidInput, match="--cost must be `size` for oracleGeneral, not 'latency'"):
        read_trace(path, ColumnRules(cost="latency"), format="oracle-general")
    path.write_bytes(b"")
    with pytest.raises(InvalidInput, match="contains no requests"):
        read_trace(path, format="oracle-general")


# Open traces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "requests", "ids"),
    [
        ("oasst_zipf_0.6.csv.gz", 100_000, 350),
        ("oasst_zipf_1.0.csv.gz", 100_000, 350),
        ("mooncake_conversation.csv.gz", 37_454, 15_787),
        ("adaptsize_camp.csv.gz", 66_987, None),
    ],
)
def test_open_traces(name: str, requests: int, ids: int | None) -> None:
    if not (TRACES / name).exists():
        pytest.skip(f"no {name}: set KNAPCACHE_TRACES to the directory with the open traces")
    trace = read_trace(TRACES / name)
    assert len(trace) == requests
    assert ids in (None, trace.ids)
    ours = zip(trace.keys.tolist(), trace.sizes.tolist(), trace.costs.tolist(), strict=True)
    with gzip.open(TRACES / name, "rt") as lines:
        next(lines)
        for (key, size, cost), line in zip(ours, lines, strict=True):
            assert trace.names is not None
            assert [trace.names[key], str(size), cost] == [*line.split(",")[1:3], float(line.split(",")[3])]


@pytest.mark.parametrize("before", [b"", b"short\n"])
def test_the_length_of_a_line_is_limited(before: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_LINE", 100)

    def read(content: bytes) -> bytes:
        lines, buffer, found = source.LimitedLines(Path("trace"), io.BytesIO(content)), bytearray(1), b""
        while lines.readinto(buffer):
            found += buffer
        return found

    longest = before + b"x" * 100 + b"\n"
    assert read(longest) == longest
    with pytest.raises(InvalidInput, match="a line of more than"):
        read(before + b"x" * 101)
