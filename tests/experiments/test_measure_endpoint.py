"""Timing an OpenAI-compatible endpoint over real HTTP on loopback."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from knapcache_experiments import measured
from measure import endpoint, prompts

pytestmark = pytest.mark.tools


class ModelServer(HTTPServer):
    """Answers after 20 ms; answer k has k tokens. Call number `fail_at` fails."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[dict[str, Any]] = []
        self.fail_at: int | None = None


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # name required by http.server
        assert isinstance(self.server, ModelServer)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or self.server.fail_at == len(self.server.seen):
            self.send_error(500)
            return
        self.server.seen.append(body)
        time.sleep(0.02)
        usage = {"prompt_tokens": 7, "completion_tokens": len(self.server.seen) - 1}
        reply = json.dumps({"choices": [], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl.gz"
    lines = [{"id": k, "prompt": f"secret {k}", "answer_chars": list(range(10 * k, 10 * k + 30))} for k in range(9)]
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return path


def run(model: ModelServer, file: Path, times: Path, *more: str) -> None:
    url = f"http://127.0.0.1:{model.server_port}/v1"
    fixed = ["--prompts", str(file), "--model", "m", "--hardware", "loopback", "--queries", "4", "--samples", "3"]
    endpoint.main([url, str(times), *fixed, *more])


def test_every_call_is_made_once_and_no_text_is_written(model: ModelServer, file: Path, tmp_path: Path) -> None:
    times = tmp_path / "times.csv"
    run(model, file, times, "--max-tokens", "9", "--extra", '{"cache_prompt": false}')
    assert len(model.seen) == 12
    for body in model.seen:
        assert (body["temperature"], body["max_tokens"], body["cache_prompt"]) == (1, 9, False)
    assert len({body["messages"][0]["content"] for body in model.seen}) == 4
    assert "secret" not in times.read_text()
    calls = measured.read(str(times))
    assert calls.about["model"] == "m"
    assert calls.about["hardware"] == "loopback"
    assert [len(s) for s in calls.seconds] == [3] * 4
    assert all((s >= 0.02).all() for s in calls.seconds)


def test_an_interrupted_measurement_continues(
    model: ModelServer, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = tmp_path / "times.csv"
    run(model, file, times, "--limit", "5")
    assert len(model.seen) == 5
    model.fail_at = 8
    with pytest.raises(SystemExit) as stopped:
        run(model, file, times)
    assert stopped.value.code == 1
    assert "completed calls are in the table" in capsys.readouterr().err
    model.fail_at = None
    run(model, file, times)
    assert len(model.seen) == 12
    assert len(endpoint.completed_calls(times)) == 12


def test_answer_lengths_come_from_the_sampled_answers(file: Path) -> None:
    calls = prompts.draw(file, 4, 20, seed=5)
    assert calls == prompts.draw(file, 4, 20, seed=5)
    assert calls != prompts.draw(file, 4, 20, seed=6)
    assert len({c.prompt for c in calls}) == 4
    for call in calls:
        assert call.prompt_tokens == 3  # eight characters and the end token
        assert prompts.token_count(10 * call.prompt) <= call.answer_tokens <= prompts.token_count(10 * call.prompt + 29)
    assert [prompts.token_count(n) for n in (0, 1, 4, 5, 2044, 2045, 9999)] == [1, 2, 2, 3, 512, 512, 512]
