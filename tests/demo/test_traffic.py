"""The demonstration: what it asks, and what it makes of answers, errors and a server that is not there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from knapcache.cli.main import main
from knapcache.demo.prompts import PROMPT_GROUPS, demo_prompts
from knapcache.demo.traffic import TrafficOptions, TrafficStats, generate_requests, read_prompts, send_traffic
from knapcache.errors import InvalidInput
from knapcache.testing import FakeUpstream
from tests.support.running_proxy import RunningProxy

PROMPTS = [f"question {k}" for k in range(50)]


def quiet(_tally: TrafficStats) -> None:
    """Nobody listens."""


class Caching(BaseHTTPRequestHandler):
    """Answers as a proxy does: the same question again is a hit, and a hit saves a cent."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    seen: set[tuple[str, str | None]]

    def log_message(self, *_: Any) -> None:
        """Silence."""

    def do_POST(self) -> None:
        """Hit or miss."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked = (body["messages"][0]["content"], self.headers.get("authorization"))
        hit = asked in self.seen
        self.seen.add(asked)
        said = b"data: {}\n\ndata: [DONE]\n\n" if body["stream"] else b"{}"
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.send_header("x-knapcache", "hit" if hit else "miss")
        if hit:
            self.send_header("x-knapcache-saved-usd", "0.01000000")
        self.end_headers()
        self.wfile.write(said)


@pytest.fixture
def caching() -> Iterator[str]:
    handler = type("Handler", (Caching,), {"seen": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as server:
        yield server


def test_questions_are_many_and_all_different() -> None:
    found = demo_prompts(1)
    assert len(found) >= 500
    assert len(set(found)) == len(found)
    assert set(found) == set(demo_prompts(2))
    assert found != demo_prompts(2)
    for kind in PROMPT_GROUPS:
        assert all(way.count("{}") == 1 for way in kind.templates)
    assert max(map(len, found)) > 5 * min(map(len, found))


def test_traffic_is_skewed_drifts_and_is_fixed_by_its_seed() -> None:
    load = TrafficOptions(requests=4000, rate=10, models=("a", "b"), keys=("k", "l"))
    asked = list(generate_requests(load, PROMPTS))
    assert asked == list(generate_requests(load, PROMPTS))
    assert asked != list(generate_requests(TrafficOptions(requests=4000, seed=1), PROMPTS))
    assert sum(one.wait for one in asked) == pytest.approx(400, rel=0.1)
    for share in (lambda one: one.stream, lambda one: one.model == "a", lambda one: one.key == "k"):
        assert sum(map(share, asked)) == pytest.approx(2000, rel=0.1)
    first, last = (Counter(one.prompt for one in part) for part in (asked[:200], asked[-200:]))
    expected = 1 / sum(1 / (r + 1) for r in range(50))
    assert max(first.values()) / 200 == pytest.approx(expected, rel=0.4)
    assert first.most_common(1)[0][0] != last.most_common(1)[0][0], "popularity does not drift"
    assert {one.key for one in generate_requests(TrafficOptions(requests=5), PROMPTS)} == {None}
    assert len(list(generate_requests(TrafficOptions(requests=60), ["only one"]))) == 60


async def test_hits_misses_and_dollars_are_counted(caching: str) -> None:
    load = TrafficOptions(caching, requests=200, rate=1e6, clients=1, keys=("a", "b"))
    tally, told = TrafficStats(), []
    await send_traffic(load, PROMPTS, tally, lambda now: told.append(now.done))
    distinct = len({(one.prompt, one.key) for one in generate_requests(load, PROMPTS)})
    assert dict(tally.outcome) == {"hit": 200 - distinct, "miss": distinct}
    assert tally.usd == pytest.approx(0.01 * (200 - distinct))
    assert told == list(range(1, 201))
    assert {row["outcome"]: row["requests"] for row in tally.rows()} == dict(tally.outcome)
    assert all(0 < row["median_ms"] < 1000 for row in tally.rows())


async def test_a_server_that_is_no_proxy(upstream: FakeUpstream) -> None:
    await send_traffic(
        TrafficOptions(upstream.openai, requests=12, rate=1e6, keys=("secret",)),
        PROMPTS,
        tally := TrafficStats(),
        quiet,
    )
    assert dict(tally.outcome) == {"unknown": 12}
    assert (tally.usd, tally.saved, tally.median("hit")) == (None, 0, None)
    bodies = [call.body for call in upstream.calls]
    assert {call.headers["authorization"] for call in upstream.calls} == {"Bearer secret"}
    assert {body["stream"] for body in bodies} == {True, False}
    assert {(body["model"], body["max_tokens"]) for body in bodies} == {("smollm2-135m", 24)}
    await send_traffic(TrafficOptions(upstream.openai, requests=1), PROMPTS, TrafficStats(), quiet)
    assert "authorization" not in upstream.calls[-1].headers


async def test_a_real_proxy(upstream: FakeUpstream, tmp_path: Path) -> None:
    with RunningProxy(tmp_path, upstream.openai) as proxy:
        load = TrafficOptions(proxy.openai, requests=60, rate=1e6, clients=1)
        await send_traffic(load, PROMPTS, tally := TrafficStats(), quiet)
    distinct = len({one.prompt for one in generate_requests(load, PROMPTS)})
    assert dict(tally.outcome) == {"hit": 60 - distinct, "miss": distinct}
    assert upstream.count("/chat/completions") == distinct


async def test_failures_are_counted_and_do_not_end_it(upstream: FakeUpstream) -> None:
    faults = ("429", "500", "reset", "cut", "html")
    upstream.fail(*faults)
    await send_traffic(
        TrafficOptions(upstream.openai, requests=20, rate=1e6, clients=1, seed=5),
        PROMPTS,
        tally := TrafficStats(),
        quiet,
    )
    streams = [call.body["stream"] for call in upstream.calls]
    # A page with status 200 is no stream that ended; of a plain answer only the headers are looked at.
    failed = 4 + streams[4]
    assert dict(tally.outcome) == {"unknown": 20 - failed, "failed": failed}
    assert tally.trouble


async def test_not_more_than_the_clients_are_open_at_a_time() -> None:
    with FakeUpstream(delay=0.1) as upstream:
        began = asyncio.get_running_loop().time()
        await send_traffic(
            TrafficOptions(upstream.openai, requests=7, rate=1e6, clients=2), PROMPTS, TrafficStats(), quiet
        )
        assert asyncio.get_running_loop().time() - began >= 0.4  # one alone, then two by two


async def test_a_server_that_goes_away_midway() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 12\r\n\r\ndata: [DONE]")
        writer.close()
        await writer.wait_closed()

    def close_soon(tally: TrafficStats) -> None:
        if tally.done == 5:
            server.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    with pytest.raises(InvalidInput, match="nobody answers at http"):
        await send_traffic(
            TrafficOptions(url, requests=1000, rate=200, clients=1), PROMPTS, tally := TrafficStats(), close_soon
        )
    assert dict(tally.outcome) == {"unknown": 5, "failed": 3}


def run(*words: str) -> int:
    return main(["demo", *words])


def test_the_command(caching: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a", "more": 1}\n\n{"prompt": "b"}\n')
    assert run("--url", caching, "--requests", "30", "--rate", "100000", "--prompts", str(prompts)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"hit +28 +93 %", out)
    assert "30 requests, 28 from the cache, 0.2800 $ saved, hit" in out
    assert "no dollars" not in out


def test_the_command_against_something_else(upstream: FakeUpstream, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--url", upstream.openai, "--requests", "5", "--rate", "100000", "--model", "m", "--key", "k") == 0
    assert "the server is no knapcache proxy" in capsys.readouterr().out
    assert {call.body["model"] for call in upstream.calls} == {"m"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "http://127.0.0.1:1/v1"], "nobody answers at http://127.0.0.1:1/v1: "),
        (["--url", "ftp://x"], "the URL must be like http://127.0.0.1:8080/v1, not 'ftp://x'"),
        (["--url", "http://127.0.0.1:99999"], "the URL must be like"),
        (["--url", "http://127.0.0.1/v1?key=x"], "the URL must be like"),
        (["--requests", "0"], "requests must be at least 1, not 0"),
        (["--clients", "0"], "clients must be at least 1, not 0"),
        (["--max-tokens", "0"], "max tokens must be at least 1, not 0"),
        (["--rate", "0"], "above 0, not 0.0"),
        (["--rate", "nan"], "above 0, not nan"),
        (["--model", ""], "a model must have a name"),
        (["--key", "a\nb"], "a key must be of plain characters"),
        (["--prompts", "/no/such/file"], "the prompts cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("knapcache: error: ")
    assert said in err
    assert err.count("\n") == 1


class Nothing(BaseHTTPRequestHandler):
    """A server that has nothing at that path."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        said = b'{"error": {"message": "no such thing"}}'
        self.send_response(404)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_refuses_or_only_fails(upstream: FakeUpstream, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--url", f"{upstream.url}/nothing", "--requests", "1") == 0  # any path that ends well is good
    with HTTPServer(("127.0.0.1", 0), Nothing) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        assert run("--url", f"http://127.0.0.1:{other.server_port}", "--requests", "9") == 2
        other.shutdown()
    assert "refuses: status 404, no such thing" in capsys.readouterr().err
    upstream.fail(*["500"] * 3)
    assert run("--url", upstream.openai, "--requests", "3", "--rate", "10000") == 2
    assert f"no answer from {upstream.openai}: status 500, try again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one\n\n  two \none\n", ["one", "two"]),
        (b'{"prompt": "x"}\n{"prompt": "{y}"}', ["x", "{y}"]),
        ("été\n".encode(), ["été"]),
        (b"", "has no prompts"),
        (b"\xff\xfe", "cannot be read"),
        (b'{"prompt": "x"}\n{"text": "y"}', "line 2: must be JSON"),
        (b'{"prompt": 3}', "line 1: must be JSON"),
        (b'{"prompt": "x"}\nplain', "line 2: must be JSON"),
    ],
)
def test_files_of_prompts(content: bytes, expected: list[str] | str, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_bytes(content)
    if isinstance(expected, list):
        assert read_prompts(path) == expected
    else:
        with pytest.raises(InvalidInput, match=expected):
            read_prompts(path)


def test_ctrl_c_ends_it_with_the_table(upstream: FakeUpstream) -> None:
    words = ["demo", "--url", upstream.openai, "--requests", "100000", "--rate", "50"]
    code = f"import sys; from knapcache.cli.main import main; sys.exit(main({words!r}))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(lambda: upstream.count() > 5)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert b"unknown" in out
    assert err == b"knapcache: interrupted\n"


def wait_for(state: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if state():
            return
        pause.wait(0.02)
    raise AssertionError("it never came to that")
