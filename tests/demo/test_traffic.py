"""`knapcache demo`: its requests, its statistics, its errors."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from knapcache.cli.main import main
from knapcache.demo.prompts import PROMPT_GROUPS, demo_prompts
from knapcache.demo.traffic import TrafficOptions, TrafficStats, generate_requests, read_prompts, send_traffic
from knapcache.errors import InvalidInput
from knapcache.testing import FakeUpstream
from tests.support.commands import COMMAND, allow_interrupts
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

PROMPTS = [f"question {k}" for k in range(50)]


def ignore_progress(_stats: TrafficStats) -> None:
    pass


class CachingHandler(BaseHTTPRequestHandler):
    """A minimal caching proxy: repeated prompts are hits, and each hit saves what `saved` says."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    seen: set[tuple[str, str | None]]
    saved: dict[str, str]
    answer: bytes

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = (body["messages"][0]["content"], self.headers.get("authorization"))
        hit = key in self.seen
        self.seen.add(key)
        content = b"data: %b\n\ndata: [DONE]\n\n" % self.answer if body["stream"] else self.answer
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.send_header("x-knapcache", "hit" if hit else "miss")
        if hit:
            for name, value in self.saved.items():
                self.send_header(f"x-knapcache-saved-{name}", value)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def caching_server(answer: bytes = b"{}", **saved: str) -> Iterator[str]:
    """Return the address of a minimal caching proxy."""
    handler = type("Handler", (CachingHandler,), {"seen": set(), "saved": saved, "answer": answer})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture
def caching_url() -> Iterator[str]:
    with caching_server(usd="0.01000000") as url:
        yield url


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as server:
        yield server


def test_built_in_prompts_are_many_and_distinct() -> None:
    prompts = demo_prompts(1)
    assert len(prompts) >= 500
    assert len(set(prompts)) == len(prompts)
    assert set(prompts) == set(demo_prompts(2))
    assert prompts != demo_prompts(2)
    for group in PROMPT_GROUPS:
        assert all(template.count("{}") == 1 for template in group.templates)
    assert max(map(len, prompts)) > 5 * min(map(len, prompts))


def test_popularity_is_skewed_and_drifts_and_the_seed_fixes_the_requests() -> None:
    options = TrafficOptions(requests=4000, rate=10, models=("a", "b"), keys=("k", "l"))
    requests = list(generate_requests(options, PROMPTS))
    assert requests == list(generate_requests(options, PROMPTS))
    assert requests != list(generate_requests(TrafficOptions(requests=4000, seed=1), PROMPTS))
    assert sum(one.delay for one in requests) == pytest.approx(400, rel=0.1)
    for share in (lambda one: one.stream, lambda one: one.model == "a", lambda one: one.key == "k"):
        assert sum(map(share, requests)) == pytest.approx(2000, rel=0.1)
    first, last = (Counter(one.prompt for one in part) for part in (requests[:200], requests[-200:]))
    expected = 1 / sum(1 / (r + 1) for r in range(50))
    assert max(first.values()) / 200 == pytest.approx(expected, rel=0.4)
    assert first.most_common(1)[0][0] != last.most_common(1)[0][0], "popularity does not drift"
    assert {one.key for one in generate_requests(TrafficOptions(requests=5), PROMPTS)} == {None}
    assert len(list(generate_requests(TrafficOptions(requests=60), ["only one"]))) == 60


async def test_hits_misses_and_savings_are_counted(caching_url: str) -> None:
    options = TrafficOptions(caching_url, requests=200, rate=1e6, concurrency=1, keys=("a", "b"))
    stats, progress = TrafficStats(), []
    await send_traffic(options, PROMPTS, stats, lambda now: progress.append(now.finished))
    distinct = len({(one.prompt, one.key) for one in generate_requests(options, PROMPTS)})
    assert dict(stats.outcomes) == {"hit": 200 - distinct, "miss": distinct}
    assert stats.usd_saved == pytest.approx(0.01 * (200 - distinct))
    assert progress == list(range(1, 201))
    assert {row["outcome"]: row["requests"] for row in stats.rows()} == dict(stats.outcomes)
    assert all(0 < row["median_ms"] < 1000 for row in stats.rows())


async def test_a_server_without_cache_headers_counts_as_unknown(upstream: FakeUpstream) -> None:
    await send_traffic(
        TrafficOptions(upstream.openai_url, requests=12, rate=1e6, keys=("secret",)),
        PROMPTS,
        stats := TrafficStats(),
        ignore_progress,
    )
    assert dict(stats.outcomes) == {"unknown": 12}
    assert (stats.usd_saved, stats.cached, stats.median_latency("hit")) == (None, 0, None)
    bodies = [call.body for call in upstream.calls]
    assert {call.headers["authorization"] for call in upstream.calls} == {"Bearer secret"}
    assert {body["stream"] for body in bodies} == {True, False}
    assert {(body["model"], body["max_tokens"]) for body in bodies} == {("smollm2-135m", 24)}
    await send_traffic(TrafficOptions(upstream.openai_url, requests=1), PROMPTS, TrafficStats(), ignore_progress)
    assert "authorization" not in upstream.calls[-1].headers


async def test_counts_agree_with_a_real_proxy(upstream: FakeUpstream, tmp_path: Path) -> None:
    with RunningProxy(tmp_path, upstream.openai_url) as proxy:
        options = TrafficOptions(proxy.openai_url, requests=60, rate=1e6, concurrency=1)
        await send_traffic(options, PROMPTS, stats := TrafficStats(), ignore_progress)
    distinct = len({one.prompt for one in generate_requests(options, PROMPTS)})
    assert dict(stats.outcomes) == {"hit": 60 - distinct, "miss": distinct}
    assert upstream.count("/chat/completions") == distinct


async def test_failures_are_counted_and_do_not_stop_the_traffic(upstream: FakeUpstream) -> None:
    faults = ("429", "500", "reset", "cut", "html")
    upstream.fail(*faults)
    await send_traffic(
        TrafficOptions(upstream.openai_url, requests=20, rate=1e6, concurrency=1, seed=5),
        PROMPTS,
        stats := TrafficStats(),
        ignore_progress,
    )
    streams = [call.body["stream"] for call in upstream.calls]
    # An HTML page with status 200 is an incomplete stream; the body of a plain response is not checked.
    failed = 4 + streams[4]
    assert dict(stats.outcomes) == {"unknown": 20 - failed, "failed": failed}
    assert stats.last_error


async def test_clients_limits_concurrent_requests() -> None:
    with FakeUpstream(delay=0.1) as upstream:
        start = asyncio.get_running_loop().time()
        await send_traffic(
            TrafficOptions(upstream.openai_url, requests=7, rate=1e6, concurrency=2),
            PROMPTS,
            TrafficStats(),
            ignore_progress,
        )
        assert asyncio.get_running_loop().time() - start >= 0.4  # the first alone, then two at a time


async def test_a_server_that_stops_midway_ends_the_traffic() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 12\r\n\r\ndata: [DONE]")
        writer.close()
        await writer.wait_closed()

    def close_server(stats: TrafficStats) -> None:
        if stats.finished == 5:
            server.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    with pytest.raises(InvalidInput, match="cannot connect to http"):
        await send_traffic(
            TrafficOptions(url, requests=1000, rate=200, concurrency=1), PROMPTS, stats := TrafficStats(), close_server
        )
    assert dict(stats.outcomes) == {"unknown": 5, "failed": 3}


def run(*words: str) -> int:
    return main(["demo", *words])


def test_the_command_prints_a_table_and_a_summary(
    caching_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a", "more": 1}\n\n{"prompt": "b"}\n')
    assert run("--url", caching_url, "--requests", "30", "--rate", "100000", "--prompts", str(prompts)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"hit +28 +93 %", out)
    assert "30 requests, 28 from the cache, $0.2800 saved, hit" in out
    assert "no dollars" not in out
    assert "simulated" not in out


def test_the_command_says_when_dollars_are_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    with caching_server(b'{"model": "smollm2-135m"}', usd="0.01") as url:
        assert run("--url", url, "--requests", "30", "--rate", "100000", "--model", "any") == 0
    out = capsys.readouterr().out
    assert re.search(r"\$0\.\d+ saved at simulated prices, hit", out)
    assert "simulated prices: the embedded model is free" in out


def test_the_command_shows_seconds_and_tokens_where_no_price_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    with caching_server(seconds="1.250", tokens="100") as url:
        assert run("--url", url, "--requests", "30", "--rate", "100000") == 0
    out = " ".join(capsys.readouterr().out.split())  # long lines are wrapped
    hits = int(re.search(r"(\d+) from the cache", out)[1])  # type: ignore[index]
    model_time = f"{1.25 * hits:,.1f} s of model time (of concurrent calls, summed)"
    assert f"{model_time} and {100 * hits:,} tokens saved" in out
    assert "$" not in out


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    with caching_server(seconds="1.250", tokens="100") as url:
        assert run("--url", url, "--requests", "30", "--rate", "100000", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    outcomes = {row["outcome"]: row["requests"] for row in found["outcomes"]}
    assert found["requests"] == 30 == sum(outcomes.values())
    assert found["cached"] == 30 - outcomes["miss"]
    assert found["tokens_saved"] == 100 * outcomes["hit"]
    assert (found["usd_saved"], found["last_error"]) == (None, None)


def test_the_command_names_a_server_that_is_not_a_knapcache_proxy(
    upstream: FakeUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run("--url", upstream.openai_url, "--requests", "5", "--rate", "100000", "--model", "m", "--api-key", "k") == 0
    )
    assert "the server is not a knapcache proxy" in " ".join(capsys.readouterr().out.split())
    assert {call.body["model"] for call in upstream.calls} == {"m"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--url", "http://127.0.0.1:1/v1"],
            "cannot connect to http://127.0.0.1:1/v1: connection refused; is the proxy running?",
        ),
        (["--url", "ftp://x"], "url must look like http://127.0.0.1:8080/v1, not 'ftp://x'"),
        (["--url", "http://127.0.0.1:99999"], "url must look like"),
        (["--url", "http://127.0.0.1/v1?key=x"], "url must look like"),
        (["--requests", "0"], "requests must be at least 1, not 0"),
        (["--concurrency", "0"], "concurrency must be at least 1, not 0"),
        (["--max-tokens", "0"], "max tokens must be at least 1, not 0"),
        (["--rate", "0"], "above 0, not 0.0"),
        (["--rate", "nan"], "above 0, not nan"),
        (["--model", ""], "model must not be empty"),
        (["--api-key", "a\nb"], "key must be printable ASCII and not empty"),
        (["--prompts", "/no/such/file"], "cannot read prompts from /no/such/file: No such file or directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("knapcache: error: ")
    assert message in err
    assert err.count("\n") == 1


class NotFoundHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        content = b'{"error": {"message": "no such path"}}'
        self.send_response(404)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_rejects_or_fails_every_request(
    upstream: FakeUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run("--url", f"{upstream.url}/nothing", "--requests", "1") == 0
    )  # FakeUpstream accepts any prefix of a known path
    with HTTPServer(("127.0.0.1", 0), NotFoundHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        assert run("--url", f"http://127.0.0.1:{other.server_port}", "--requests", "9") == 2
        other.shutdown()
    expected = "rejected the request: status 404, no such path (--model NAME asks for a model of the provider)"
    assert expected in capsys.readouterr().err
    upstream.fail(*["500"] * 3)
    assert run("--url", upstream.openai_url, "--requests", "3", "--rate", "10000") == 2
    assert f"every request to {upstream.openai_url} failed: status 500, try again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one\n\n  two \none\n", ["one", "two"]),
        (b'{"prompt": "x"}\n{"prompt": "{y}"}', ["x", "{y}"]),
        ("été\n".encode(), ["été"]),
        (b"", "has no prompts"),
        (b"\xff\xfe", "cannot read prompts"),
        (b'{"prompt": "x"}\n{"text": "y"}', "line 2: must be a JSON object"),
        (b'{"prompt": 3}', "line 1: must be a JSON object"),
        (b'{"prompt": "x"}\nplain', "line 2: must be a JSON object"),
    ],
)
def test_prompt_files(content: bytes, expected: list[str] | str, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_bytes(content)
    if isinstance(expected, list):
        assert read_prompts(path) == expected
    else:
        with pytest.raises(InvalidInput, match=expected):
            read_prompts(path)


def test_ctrl_c_prints_the_table_so_far(upstream: FakeUpstream) -> None:
    words = ["demo", "--url", upstream.openai_url, "--requests", "100000", "--rate", "50"]
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=allow_interrupts
    ) as process:
        try:
            wait_until(lambda: upstream.count() > 5, "six requests")
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, b"")
    assert b"unknown" in out
