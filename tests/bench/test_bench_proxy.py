"""bench/proxy.py: targets, request encoding, response parsing, and a short run."""

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

from _load_generator import Connection, request  # noqa: E402 - after the change of sys.path
from proxy import (  # noqa: E402
    AIOHTTP,
    CANNED,
    DIRECT,
    ECHO,
    LITELLM,
    OURS,
    PASSTHROUGH,
    REQUEST_BYTES,
    chat,
    check_targets,
)


def hit_rows(ours: float, echo: float, litellm: float, canned: float) -> list[dict[str, Any]]:
    per_second = {OURS: ours, ECHO: echo, LITELLM: litellm, CANNED: canned}
    return [
        {"server": name, "requests_per_second": n, "rounds": [n / 2, n], "p99_us": 1e7 / n}
        for name, n in per_second.items()
    ]


def test_targets() -> None:
    misses: list[dict[str, Any]] = [
        {"path": "direct"},
        {"path": OURS, "plain_added_us": 900.0, "stream_added_us": 1100.0},
    ]
    targets = check_targets(hit_rows(12_800, 16_000, 100, 50_000), misses)
    assert [row["met"] for row in targets] == [True, True, True, True, True, False]
    assert [row["measured"] for row in targets[:2]] == pytest.approx([0.8, 1.25])
    targets = check_targets(hit_rows(7_000, 16_000, 200, 17_000), misses)
    assert [row["met"] for row in targets] == [False, False, False, False, True, False]
    (limit,) = [row for row in check_targets(hit_rows(20_000, 16_000, 100, 23_000), []) if "limit" in row["metric"]]
    assert limit["measured"] == pytest.approx(1.15), "relative to the fastest server"
    assert check_targets([], []) == [], "no measurement, no target"


def test_requests_have_their_nominal_size() -> None:
    path, headers, body = chat("prompt-7")
    assert 0.9 * REQUEST_BYTES < len(body) <= REQUEST_BYTES
    raw = request(80, path, headers, body)
    assert raw.endswith(body.encode())
    assert f"content-length: {len(body)}\r\n".encode() in raw


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("chunk_size", [1, 7, 1000])
def test_the_end_of_a_response_is_found(response: bytes, chunk_size: int) -> None:
    done: list[bytes] = []
    connection = Connection(lambda connection: done.append(connection.response))
    for start in range(0, len(response), chunk_size):
        assert not done
        connection.data_received(response[start : start + chunk_size])
    assert done == [response]
    assert connection.last_byte_at >= connection.first_byte_at > 0.0


@pytest.mark.long
def test_a_short_run_writes_json_and_a_figure(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "proxy.py"), "--quick", "--only", f"{OURS},{ECHO}", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "proxy.json").read_text(encoding="utf-8"))
    assert (tmp_path / "proxy.png").read_bytes().startswith(b"\x89PNG")
    assert [row["server"] for row in record["rows"]] == [OURS, ECHO]
    assert all(row["requests_per_second"] > 0 and row["cpu_us"] > 0 for row in record["rows"])
    assert [row["path"] for row in record["misses"]] == [DIRECT, OURS, PASSTHROUGH, AIOHTTP]
    assert len(record["targets"]) == 4
