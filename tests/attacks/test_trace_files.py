"""Malicious trace files: `knapcache replay` and `plan` end with one clear line, in bounded memory."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from knapcache.cli.main import main
from knapcache.errors import InvalidInput
from knapcache.lab.traces.read import read_trace
from knapcache.lab.traces.source import MAX_LINE

HEADER = "time,key,size,cost\n"
SCRIPT = "<script>alert(1)</script>"
FILES: dict[str, bytes] = {
    "deep.jsonl": b'{"time":1,"key":%b1%b,"size":1,"cost":1}\n' % (b"[" * 100_000, b"]" * 100_000),
    "huge integer.jsonl": b'{"time":1,"key":"a","size":%b,"cost":1}\n' % (b"9" * 5000),
    "nan.jsonl": b'{"time":1,"key":"a","size":NaN,"cost":1}\n',
    "infinity.jsonl": b'{"time":1,"key":"a","size":1e999,"cost":1}\n',
    **{f"size {value}.csv": f"{HEADER}1,a,{value},1\n".encode() for value in ("NaN", "inf", "-1", "9" * 400)},
    **{f"cost {value}.csv": f"{HEADER}1,a,1,{value}\n".encode() for value in ("NaN", "-inf", "-1", "1e999")},
    "time.csv": f"{HEADER}NaN,a,1,1\n".encode(),
    "utf16.csv": f"{HEADER}1,a,1,1\n".encode("utf-16"),
    "latin.csv": f"{HEADER}1,\xe9,1,1\n".encode("latin-1"),
    "nul.csv": f"{HEADER}1,a\0b,1,1\n".encode(),
    "columns.csv": ",".join(f"c{k}" for k in range(300_000)).encode() + b"\n",
    "damaged.parquet": b"PAR1" + bytes(range(256)) * 8 + b"PAR1",
    "escapes.csv": f"{HEADER}1,a,1,\x1b]0;title\x07\x1b[2J\n".encode(),
    "escapes.jsonl": b'{"time":1,"key":"a","size":"\\u001b[2J","cost":1}\n',
    "header\x1b[31m.csv": b"time,key,size,\x1b[31mcost\n1,a,1,1\n",
    "records.oracleGeneral": bytes(100),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_malicious_file_is_one_clear_error(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / (name if len(name) < 100 else "file.csv")
    path.write_bytes(FILES[name])
    assert main(["replay", str(path), "--capacity", "1MB", "--policy", "lru"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("knapcache: error: ")
    assert shown.err.count("\n") == 1
    assert shown.err.rstrip("\n").isprintable()
    assert len(shown.err) < 1000


def test_a_compressed_line_without_end_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(HEADER.encode())
        for _ in range(5):
            file.write(b"0" * MAX_LINE)
    program = (
        "import re, sys; from knapcache.cli.main import main\n"
        f"code = main(['replay', {str(path)!r}, '--capacity', '1MB', '--policy', 'lru'])\n"
        # Not ru_maxrss, which begins with the memory of the process that started this one.
        r"print(int(re.search(r'VmHWM:\s+(\d+)', open('/proc/self/status').read())[1]) // 1024); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (2, f"knapcache: error: {path} has a line of more than 64 MiB\n")
    assert int(done.stdout) < 400, "MB of memory"


def test_a_pipe_and_a_loop_of_links_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InvalidInput, match="not a regular file"):
        read_trace(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match="cannot read"):
        read_trace(tmp_path / "loop")


@pytest.mark.long
def test_a_report_runs_no_script_of_a_trace(tmp_path: Path) -> None:
    path, report = tmp_path / f"{SCRIPT.replace('/', '')}.csv", tmp_path / "out" / "plan.html"
    rows = "".join(f"{k},{SCRIPT}{k % 7},100,0.5,{SCRIPT}\n" for k in range(60))
    path.write_text(f"time,key,size,cost,{SCRIPT}\n{rows}")
    assert main(["plan", str(path), "--out", str(report.parent), "--jobs", "1"]) == 0
    assert "<script>alert" not in report.read_text()
