"""CSV, JSON lines and Parquet: rows are read back unchanged, and broken rows are reported."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.lab.trace import Trace
from knapcache.lab.traces import BrokenLine, ColumnRules, csv_file, read_trace
from tests.support.examples import examples

Row = tuple[float, Any, int, float]
HEADER = ("time", "key", "size", "cost")


def csv_bytes(rows: list[Row], end: str = "\n") -> bytes:
    text = io.StringIO(newline="")
    # Quote everything: before Python 3.13 the writer leaves a bare \r unquoted if lines end in \n, which is ambiguous.
    bare = any("\r" in str(cell) for row in rows for cell in row)
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL if bare else csv.QUOTE_MINIMAL)
    writer.writerow(HEADER)
    writer.writerows(rows)
    return text.getvalue().encode()


def json_bytes(rows: list[Row], end: str = "\n") -> bytes:
    return "".join(json.dumps(dict(zip(HEADER, row, strict=True))) + end for row in rows).encode()


def parquet_bytes(rows: list[Row], end: str = "") -> bytes:  # noqa: ARG001 - the signature of all writers
    file = io.BytesIO()
    polars.DataFrame(dict(zip(HEADER, zip(*rows, strict=True), strict=True)), strict=False).write_parquet(file)
    return file.getvalue()


WRITERS: dict[str, Callable[..., bytes]] = {"csv": csv_bytes, "jsonl": json_bytes, "parquet": parquet_bytes}


def rows_of(trace: Trace) -> list[Row]:
    assert trace.times is not None
    assert trace.names is not None
    names = [trace.names[key] for key in trace.keys.tolist()]
    return list(zip(trace.times.tolist(), names, trace.sizes.tolist(), trace.costs.tolist(), strict=True))


def in_order_of_appearance(trace: Trace) -> bool:
    return list(dict.fromkeys(trace.keys.tolist())) == list(range(trace.ids))


NUMBERS = st.floats(0.0, 1e300)
TIMES = st.floats(0.0, 1e11, exclude_max=True)
"""Larger numbers are not seconds."""
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Draw rows with few keys, so that some repeat; all keys are texts, or all are integers."""
    kind = draw(st.sampled_from([TEXTS, st.integers(-(2**63), 2**63 - 1), st.sampled_from("abc")]))
    keys = draw(st.lists(kind, min_size=1, max_size=6, unique=True))
    row = st.tuples(TIMES, st.sampled_from(keys), st.integers(1, 2**62 - 1), NUMBERS)
    return draw(st.lists(row, min_size=1, max_size=30))


@pytest.mark.parametrize("kind", WRITERS)
@given(rows=tables(), small=st.integers(1, 90), end=st.sampled_from(["\n", "\r\n"]), packed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_rows_are_read_back(
    kind: str, end: str, packed: bool, rows: list[Row], small: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "trace"
    content = WRITERS[kind](rows, end)
    packed = packed and kind != "parquet"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_file, "BLOCK", small)  # many block and chunk boundaries
        patch.setattr(csv_file, "ROWS", 1 + small % 5)
        trace = read_trace(path)
    expected = [(t, str(k) if kind == "csv" else k, s, c) for t, k, s, c in rows]
    assert rows_of(trace) == expected
    assert in_order_of_appearance(trace)


MESSY = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("0123456789"), st.sampled_from("abc"), st.just("5"), st.just("1.5")).map(",".join),
        st.text(st.sampled_from('19.,-+_ "\r\nabxeE'), max_size=14),
        st.sampled_from(
            ["1,a,2,nan", "1,a,0,1", "1,a,2,-1", "1,,2,3", "1,a,2", "1,a,2,3,4", "1,a,2,1e999", " 1, a , 2 ,3"]
        ),
    ),
    max_size=12,
)


@given(lines=MESSY, small=st.integers(1, 60))
@settings(max_examples=examples(150, 400), deadline=None)
def test_polars_and_the_csv_module_agree(
    lines: list[str], small: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With and without Polars, the rows and the broken lines are equal."""
    path = tmp_path_factory.mktemp("agree") / "trace.csv"
    path.write_bytes("\n".join(["time,key,size,cost", *lines]).encode())

    def outcome() -> Any:
        broken: list[BrokenLine] = []
        try:
            trace = read_trace(path, format="csv", on_broken=broken.append)
        except InvalidInput as error:
            return str(error), broken
        return rows_of(trace), broken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_file, "BLOCK", small)
        fast = outcome()
        patch.setitem(sys.modules, "polars", None)
        assert fast == outcome()


def test_polars_reads_clean_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above compares the csv module with itself."""
    (tmp_path / "trace.csv").write_bytes(csv_bytes([(float(k), f"é{k % 3}", 1, 1.0) for k in range(2000)]))
    monkeypatch.setattr(csv_file, "BLOCK", 999)

    def no_row(_: Any, columns: Any, values: Any, place: Any) -> None:  # noqa: ARG001
        raise AssertionError("the csv module read a row")

    monkeypatch.setattr(csv_file, "add_chunk", no_row)
    trace = read_trace(tmp_path / "trace.csv")
    assert (len(trace), trace.names) == (2000, ["é0", "é1", "é2"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2,b,0,1", "size must be at least 1 and below 2^62, not 0"),
        ("2,b,-3,1", "size must be at least 1 and below 2^62, not -3"),
        ("2,b,4611686018427387904,1", "size must be at least 1 and below 2^62, not 4611686018427387904"),
        ("2,b,99999999999999999999999999,1", "size must be at least 1 and below 2^62"),
        (f"2,b,{'9' * 5000},1", "size must be a whole number, not '999"),
        ("2,b,1.0,1", "size must be a whole number, not '1.0'"),
        ("2,b,1_0,1", "size must be a whole number, not '1_0'"),
        ("2,b,٣,1", "size must be a whole number"),
        ("2,b,,1", "size is missing"),
        ("2,b,3,-1", "cost must be finite and not negative, not -1.0"),
        ("2,b,3,nan", "cost must be finite and not negative, not nan"),
        ("2,b,3,inf", "cost must be finite and not negative, not inf"),
        ("2,b,3,1e999", "cost must be finite and not negative, not inf"),
        ("2,b,3,dear", "cost must be a number, not 'dear'"),
        ("2,b,3,", "cost is missing"),
        ("2,,3,1", "key is missing"),
        ("soon,b,3,1", "time must be a number or a date and time, not 'soon'"),
        ("nan,b,3,1", "time must be finite, not nan"),
        (",b,3,1", "time is missing"),
        ("2,b,3", "3 fields where the header has 4"),
        ("2,b,3,1,5", "5 fields where the header has 4"),
        ('2,"b"c,3,1', "',' expected after '\"'"),
    ],
)
@pytest.mark.parametrize("before", [1, 700])
def test_a_broken_line_of_csv(line: str, message: str, before: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    good = ["1,a,3,1"] * before
    path.write_text("\n".join(["time,key,size,cost", *good, line, "9,z,3,1", ""]))
    with pytest.raises(InvalidInput) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}, line {before + 2}: {message}")
    assert "\n" not in str(caught.value)
    broken: list[BrokenLine] = []
    trace = read_trace(path, on_broken=broken.append)
    assert trace.names == ["a", "z"]  # nothing of the broken line was added
    assert [b.place for b in broken] == [f"line {before + 2}"]


def test_invalid_utf8_breaks_only_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"time,key,size,cost\n1,a,3,1\n2,\xff\xfe,3,1\n3,\xc3\xa9,3,1\n")
    with pytest.raises(InvalidInput, match="line 3: key is not valid UTF-8"):
        read_trace(path)
    broken: list[BrokenLine] = []
    assert read_trace(path, on_broken=broken.append).names == ["a", "é"]
    assert len(broken) == 1


def test_lines_are_counted_across_quoted_breaks_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b'time,key,size,cost\n1,"a\nb\r\nc",3,1\n\n\r\n2,b,0,1\n')
    with pytest.raises(InvalidInput, match="line 7: size"):
        read_trace(path)


def test_an_open_quote_is_one_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text('time,key,size,cost\n1,a,3,1\n2,"b,3,1\n3,c,3,1\n')
    broken: list[BrokenLine] = []
    assert read_trace(path, on_broken=broken.append).names == ["a"]
    assert broken == [("line 3", "unexpected end of data")]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_byte_order_marks_blank_lines_and_a_missing_last_newline(kind: str, tmp_path: Path) -> None:
    rows: list[Row] = [(0.0, "a", 1, 2.0), (1.0, "b", 3, 0.5)]
    path = tmp_path / "trace"
    path.write_bytes(b"\xef\xbb\xbf\n" + WRITERS[kind](rows).replace(b"\n", b"\n\n").rstrip())
    assert rows_of(read_trace(path)) == rows


def test_times_may_be_dates(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,key,size,cost\n1970-01-01 00:01:00.5000000,a,1,1\n1970-01-01T01:00:00+01:00,a,1,1\n7,a,1,1\n")
    times = read_trace(path).times
    assert times is not None
    assert times.tolist() == [60.5, 0.0, 7.0]


def test_columns_by_other_names(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("model,prompt,bytes,usd\nm,p,3,0.5\nm,q,4,0.25\nn,p,5,0.5\nm,p,3,1\n")
    trace = read_trace(path, ColumnRules(no_time=True, key=("model", "prompt"), size="bytes", cost="usd"))
    assert trace.times is None
    assert trace.names == [("m", "p"), ("m", "q"), ("n", "p")]
    assert trace.keys.tolist() == [0, 1, 2, 0]
    assert (
        read_trace(path, ColumnRules(no_time=True, key=("prompt",), size="bytes", cost_each=2.0)).costs.tolist()
        == [2.0] * 4
    )
    by_size = read_trace(path, ColumnRules(no_time=True, key=("bytes",), size="bytes", cost="bytes"))
    assert (by_size.names, by_size.costs.tolist()) == (["3", "4", "5"], [3.0, 4.0, 5.0, 3.0])


@pytest.mark.parametrize("kind", WRITERS)
def test_missing_columns(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(WRITERS[kind]([(0.0, "a", 1, 2.0)]))
    message = "cost_usd is missing" if kind == "jsonl" else "has no column 'cost_usd' among .*name another with --cost"
    with pytest.raises(InvalidInput, match=message):
        read_trace(path, ColumnRules(cost="cost_usd"))


def test_a_duplicate_column(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,key,key,size,cost\n1,a,b,3,1\n")
    with pytest.raises(InvalidInput, match="more than one column 'key'"):
        read_trace(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"time": 1, "key": "a", "size": 1', "not JSON"),
        ("[1, 2]", "must be an object, not [1, 2]"),
        ("null", "must be an object"),
        ('{"time": 1, "key": "a", "size": 1, "cost": NaN}', "not JSON: NaN is not a valid number"),
        ('{"time": 1, "key": "a", "size": 1, "cost": Infinity}', "not JSON: Infinity is not a valid number"),
        ('{"time": 1, "key": "a", "size": true, "cost": 1}', "size must be a whole number, not True"),
        ('{"time": 1, "key": "a", "size": 1.0, "cost": 1}', "size must be a whole number, not 1.0"),
        ('{"time": 1, "key": "a", "size": 1, "cost": true}', "cost must be a number, not True"),
        ('{"time": 1, "key": "a", "size": 1, "cost": 1' + "0" * 400 + "}", "cost must be a number"),
        ('{"time": 1, "key": "a", "size": 1, "cost": ' + "1" * 5000 + "}", "not JSON"),
        ('{"time": 1, "key": 1.0, "size": 1, "cost": 1}', "key must be a text or a whole number, not 1.0"),
        ('{"time": 1, "key": true, "size": 1, "cost": 1}', "key must be a text or a whole number, not True"),
        ('{"time": 1, "key": null, "size": 1, "cost": 1}', "key is missing"),
        ('{"time": 1, "key": ["a"], "size": 1, "cost": 1}', "key must be a text or a whole number"),
        ('{"time": 1, "key": "\\ud800", "size": 1, "cost": 1}', "key is not valid UTF-8"),
        ('{"time": 1, "size": 1, "cost": 1}', "key is missing"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_broken_line_of_json(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    good = '{"time": 1, "key": "g", "size": 1, "cost": 1}'
    path.write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(InvalidInput) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert message in str(caught.value)
    broken: list[BrokenLine] = []
    assert len(read_trace(path, on_broken=broken.append)) == 2
    assert [b.place for b in broken] == ["line 2"]


def test_numbers_and_texts_are_different_keys(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    keys = [7, "7", 2**200, 2**200 + 1, 7]  # as floats two of them would be equal
    path.write_bytes(json_bytes([(0.0, key, 1, 1.0) for key in keys]))
    assert read_trace(path).keys.tolist() == [0, 1, 2, 3, 0]


def test_broken_rows_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    table = {
        "time": [0, 1, 2, 3],
        "key": ["a", None, "c", "d"],
        "size": [1, 1, 0, 1],
        "cost": [1.0, 1.0, 1.0, math.nan],
    }
    polars.DataFrame(table).write_parquet(path)
    with pytest.raises(InvalidInput, match="row 2: key is missing"):
        read_trace(path)
    broken: list[BrokenLine] = []
    assert read_trace(path, on_broken=broken.append).names == ["a"]
    assert [b.place for b in broken] == ["row 2", "row 3", "row 4"]


def test_damaged_parquet(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(parquet_bytes([(0.0, "a", 1, 1.0)])[:-20] + b"PAR1")
    with pytest.raises(InvalidInput, match="is damaged") as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


def test_parquet_without_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(parquet_bytes([(0.0, "a", 1, 1.0)]))
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingExtra, match=re.escape(f"Parquet, which needs Polars: {install_command('lab')}")):
        read_trace(path)


def test_parquet_of_many_slices(tmp_path: Path) -> None:
    n = 150_000
    keys = np.random.default_rng(0).integers(0, 999, n)
    table = {"time": np.arange(n), "key": keys, "size": keys + 1, "cost": keys / 8}
    polars.DataFrame(table).write_parquet(tmp_path / "t", row_group_size=10_000)
    seen: list[tuple[int, int]] = []
    trace = read_trace(tmp_path / "t", progress=lambda done, total: seen.append((done, total)))
    assert trace.names is not None
    assert np.array_equal(np.array(trace.names)[trace.keys], keys)
    assert np.array_equal(trace.sizes, keys + 1)
    assert seen[-1] == (n, n)
