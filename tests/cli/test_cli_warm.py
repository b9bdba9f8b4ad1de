"""`knapcache warm`: fills the cache of a real proxy, and keeps --max-usd."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from knapcache.cli.main import main
from knapcache.cli.warm import Warmer, read_requests
from knapcache.model import Endpoint
from knapcache.testing import FakeUpstream
from tests.support.commands import allow_interrupts
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

CHAT = "chat/completions"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeUpstream, str]]:
    """An upstream, and the URL of a proxy in front of it."""
    with FakeUpstream() as upstream:
        upstreams = [{"name": "fake", "url": upstream.openai_url, "retries": 0}]
        with RunningProxy(tmp_path_factory.mktemp("warm"), "", upstreams=upstreams) as proxy:
            yield upstream, proxy.openai_url


def batch(text: str, model: str = "gpt-4o-mini", **fields: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
    return {"custom_id": text, "method": "POST", "url": f"/v1/{CHAT}", "body": body}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_lines_are_those_of_batches_and_content_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged = {"endpoint": "embeddings", "request": {"model": "m", "input": "x"}, "response": {}}
    lines = batch("a", stream=True), batch("a"), logged, {"endpoint": CHAT, "request": None}, {**logged, "cut": True}
    found = read_requests(write(tmp_path / "r.jsonl", *lines))
    assert found == [(CHAT, batch("a")["body"]), ("embeddings", logged["request"])]
    wrong: list[Any] = ["nothing", [], {"model": "m"}, {**batch("a"), "url": "/v1/files"}, {**batch("a"), "body": {}}]
    for line in wrong:
        assert main(["warm", str(write(tmp_path / "r.jsonl", batch("fine"), line))]) == 2
        assert "r.jsonl, line 2: must be a line of OpenAI's batch API" in capsys.readouterr().err


def test_requests_are_misses_then_hits_and_failures_are_counted(
    servers: tuple[FakeUpstream, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream, url = servers
    file = str(write(tmp_path / "r.jsonl", *(batch(f"warm {k}") for k in range(20))))
    upstream.fail("500")
    assert main(["warm", file, "--url", url]) == 0
    printed = capsys.readouterr().out
    assert "20 of 20 requests sent: 1 failed, 19 miss, $0.0" in printed
    assert "Last failure: status 500" in printed
    assert main(["warm", file, "--url", url, "--max-usd", "1"]) == 0
    assert "20 of 20 requests sent: 19 hit, 1 miss, $0.0" in capsys.readouterr().out
    assert main(["warm", file, "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "requests": 20,
        "sent": 20,
        "outcomes": {"hit": 20},
        "usd_spent": 0.0,
        "stopped_by_max_usd": False,
        "last_error": None,
    }
    for other, problem in (("http://127.0.0.1:9/v1", "is the proxy running"), (upstream.openai_url, "no x-knapcache")):
        assert main(["warm", file, "--url", other]) == 2
        assert re.search(f"the first 10 requests failed: .*{problem}", capsys.readouterr().err)
        assert main(["warm", str(write(tmp_path / "one.jsonl", batch("one"))), "--url", other]) == 2
        assert re.search(f"every request failed: .*{problem}", capsys.readouterr().err)


def test_the_spend_stays_below_the_limit(
    servers: tuple[FakeUpstream, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "knapcache.toml").write_text("[prices.dear]\ninput = 1000.0\noutput = 1000.0\n")  # 0.001 $ per token
    file = str(write(tmp_path / "r.jsonl", *(batch(f"dear {k}", "dear", max_tokens=50) for k in range(40))))
    before, words = servers[0].count(), ["warm", file, "--url", servers[1], "--max-usd", "0.2"]
    assert main([*words, "--config", str(tmp_path / "knapcache.toml")]) == 0
    printed = capsys.readouterr().out
    assert "Stopped by --max-usd" in printed
    assert 0 < int(printed.split()[0]) == servers[0].count() - before < 40
    assert 0.05 < float(printed.split("$")[1].split()[0]) <= 0.2
    assert main(words) == 2
    assert "the model 'dear' has no known price" in capsys.readouterr().err


def test_a_usage_that_cannot_be_billed_counts_as_the_estimate() -> None:
    warmer = Warmer(
        argparse.Namespace(url="http://h/v1", ca=None, api_key_env=None, concurrency=1, max_usd=1, config=None)
    )
    usages: list[Any] = [None, {}, [1], {"prompt_tokens": -5}, {"prompt_tokens": "1"}, {"prompt_tokens": 0}]
    for content in (b"[" * 100_000, *(json.dumps({"usage": usage}).encode() for usage in usages)):
        assert not warmer.cost_of(Endpoint.CHAT, "gpt-4o-mini", content)


def test_ctrl_c_prints_the_summary(servers: tuple[FakeUpstream, str], tmp_path: Path) -> None:
    upstream, url = servers
    file = write(tmp_path / "r.jsonl", *(batch(f"slow {k}") for k in range(500)))
    command = [sys.executable, "-m", "knapcache", "warm", str(file), "--url", url, "--concurrency", "1"]
    before, upstream.delay = upstream.count(), 0.05
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=allow_interrupts,
    ) as process:
        wait_until(lambda: upstream.count() >= before + 3, "three requests")
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "knapcache: interrupted\n")
    assert "of 500 requests sent: " in printed
