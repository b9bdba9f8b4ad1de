"""Traces as chains of blocks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from knapcache.errors import InvalidInput
from knapcache.lab.kv import read_block_trace
from knapcache.lab.traces.sessions import COLUMNS

HEADER = ",".join(COLUMNS)


def mooncake(*requests: tuple[float, int, list[int]]) -> str:
    rows = [{"timestamp": time, "input_length": n, "output_length": 1, "hash_ids": ids} for time, n, ids in requests]
    return "".join(json.dumps(row) + "\n" for row in rows)


def chains(path: Path, block: int) -> list[list[int]]:
    return [chain.tolist() for chain in read_block_trace(path, block).chains]


def test_mooncake(tmp_path: Path) -> None:
    """Only full blocks, in the order of time; equal ids are equal blocks."""
    path = tmp_path / "trace.jsonl.gz"
    lines = mooncake((2000, 1100, [7, 8, 9]), (1000, 1024, [7, 5]), (3000, 2048, [7, 8, 4, 3]), (3000, 511, [6]))
    path.write_bytes(gzip.compress(lines.encode()))
    assert chains(path, 512) == [[0, 2], [0, 1], [0, 1, 3, 4]]
    assert chains(path, 1024) == [[1], [0], [0, 2]]
    trace = read_block_trace(path, 512)
    assert (trace.block, trace.blocks, trace.offered) == (512, 5, 8)


def test_sessions(tmp_path: Path) -> None:
    """A block in common is in common whole; files are merged by time."""
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text(f"{HEADER}\n0,s,0,-1,0,300,1,0,text,m\n20,s,1,0,256,450,1,0,text,m\n30,s,2,1,199,250,1,0,tool,m\n")
    second.write_text(f"{HEADER}\n10,t,0,-1,0,100,1,0,text,m\n11,t,1,0,64,99,1,0,text,m\n")
    assert chains(first, 100) == [[0, 1, 2], [0, 1, 3, 4], [0, 5]]
    trace = read_block_trace([first, second], 100)
    assert [chain.tolist() for chain in trace.chains] == [[0, 1, 2], [3], [0, 1, 4, 5], [0, 6]]
    assert trace.blocks == 7


@pytest.mark.parametrize(
    ("text", "block", "message"),
    [
        ("", 512, "is empty"),
        ("a,b\n1,2\n", 512, "is not a trace of prompts, but has the fields 'a', 'b'; allowed are: JSON lines with"),
        (mooncake((0, 512, [1])), 0, "a block must have at least 1 token, not 0"),
        (mooncake((0, 512, [1])), 100, "has blocks of 512 tokens: --block must be a multiple of it, not 100"),
        (mooncake((0, 512, [1])), 1024, "has no request of at least one block of 1024 tokens"),
        (mooncake((0, 512, [1]), (0, 2, [1, 2])), 512, "line 2: input_length is 2, which is not 2 blocks"),
        (f"{HEADER}\n0,s,0,5,0,300,1,0,text,m\n", 64, "line 2: parent 5 of session s is not an earlier request"),
        (f"{HEADER}\n0,s,0,-1,0,30,1,0,text,m\n0,s,1,0,31,40,1,0,text,m\n", 8, "line 3: shared_tokens is 31, and the"),
        (f"{HEADER}\n0,s,0,-1,0,30,1,0,text,m\n0,s,0,-1,0,40,1,0,text,m\n", 8, "line 3: request 0 of session s occurs"),
    ],
)
def test_errors(tmp_path: Path, text: str, block: int, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        read_block_trace(path, block)


def test_files_of_one_format(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text(mooncake((0, 512, [1])))
    second.write_text(f"{HEADER}\n0,s,0,-1,0,300,1,0,text,m\n")
    with pytest.raises(InvalidInput, match="all files of a trace must have the same format"):
        read_block_trace([first, second], 512)
