"""bench/proxy.py: its bars say no where they must, and it runs from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

from _load_generator import Wire, request  # noqa: E402 - after the path it is found by
from proxy import AIOHTTP, BYTES, CANNED, DIRECT, ECHO, LITELLM, OURS, PASSING, bars, chat  # noqa: E402


def rows(ours: float, echo: float, litellm: float, canned: float) -> list[dict[str, Any]]:
    per_second = {OURS: ours, ECHO: echo, LITELLM: litellm, CANNED: canned}
    return [{"server": name, "requests_per_second": n, "rounds": [n / 2, n]} for name, n in per_second.items()]


def test_bars() -> None:
    added: list[dict[str, Any]] = [
        {"path": "direct"},
        {"path": OURS, "plain_added_us": 900.0, "stream_added_us": 1100.0},
    ]
    lines = bars(rows(10_000, 16_000, 100, 50_000), added)
    assert [line["met"] for line in lines] == [True, True, True, True, False]
    assert lines[0]["measured"] == pytest.approx(0.625)
    lines = bars(rows(7_000, 16_000, 200, 17_000), added)
    assert [line["met"] for line in lines] == [False, False, False, True, False]
    assert bars([], []) == [], "what was not measured has no bar"


def test_requests_are_as_long_as_is_said() -> None:
    path, headers, body = chat("prompt-7")
    assert 0.9 * BYTES < len(body) <= BYTES
    raw = request(80, path, headers, body)
    assert raw.endswith(body.encode())
    assert f"content-length: {len(body)}\r\n".encode() in raw


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_the_end_of_an_answer_is_seen(answer: bytes, at_once: int) -> None:
    done: list[bytes] = []
    wire = Wire(lambda wire: done.append(wire.answer))
    for start in range(0, len(answer), at_once):
        assert not done
        wire.data_received(answer[start : start + at_once])
    assert done == [answer]
    assert wire.last >= wire.first > 0.0


@pytest.mark.long
def test_from_servers_to_numbers(tmp_path: Path) -> None:
    words = [sys.executable, str(BENCH / "proxy.py"), "--quick", "--only", f"{OURS},{ECHO}", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "proxy.json").read_text(encoding="utf-8"))
    assert (tmp_path / "proxy.png").read_bytes().startswith(b"\x89PNG")
    assert [row["server"] for row in record["rows"]] == [OURS, ECHO]
    assert all(row["requests_per_second"] > 0 and row["cpu_us"] > 0 for row in record["rows"])
    assert [row["path"] for row in record["misses"]] == [DIRECT, OURS, PASSING, AIOHTTP]
    assert len(record["targets"]) == 3
