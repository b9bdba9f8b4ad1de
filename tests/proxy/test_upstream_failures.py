"""Failing upstreams over real sockets: what the client, the log, the admin API, /healthz and the metrics say."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache.testing import FakeUpstream
from tests.support.certificates import make_certificate
from tests.support.front_proxies import free_port
from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import chat, exchange, message
from tests.support.recording_upstream import RecordingUpstream, send
from tests.support.running_proxy import RunningProxy

ADMIN = {"authorization": "Bearer the-admin-token-of-this-test"}


@pytest.fixture(scope="module")
def tls_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server whose certificate nobody has signed."""
    context = make_certificate(tmp_path_factory.mktemp("tls") / "self", "IP:127.0.0.1").server_context
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


@pytest.fixture(scope="module")
def silent_port() -> Iterator[int]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeUpstream]:
    with FakeUpstream() as server:
        yield server


@pytest.fixture(scope="module")
def proxy(
    tmp_path_factory: pytest.TempPathFactory, tls_port: int, silent_port: int, provider: FakeUpstream
) -> Iterator[RunningProxy]:
    """A proxy with one upstream for each way to fail, selected by the model."""
    urls = {
        "refused": f"http://127.0.0.1:{free_port()}/v1",
        "nameless": "http://no-such-host.invalid/v1",
        "untrusted": f"https://127.0.0.1:{tls_port}/v1",
        "silent": f"http://127.0.0.1:{silent_port}/v1",
        "provider": provider.openai_url,
    }
    upstreams = [
        {"name": name, "url": url, "models": [name], "retries": 0, "timeout": 0.2, "proxy": ""}
        for name, url in urls.items()
    ]
    folder: Path = tmp_path_factory.mktemp("proxy") / "data"
    options: dict[str, Any] = {"upstreams": upstreams, "admin_token": "the-admin-token-of-this-test", "policy": "lru"}
    with RunningProxy(folder, "", cost="seconds", **options) as running:
        yield running


def ask(proxy: RunningProxy, model: str, question: str = "?", **more: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": question}], **more}
    return httpx.post(f"{proxy.openai_url}/chat/completions", json=body, timeout=60)


def state(proxy: RunningProxy, name: str) -> dict[str, Any]:
    summary = httpx.get(f"{proxy.url}/admin/v1/summary", headers=ADMIN).raise_for_status().json()
    return next(row for row in summary["health"]["upstreams"] if row["name"] == name)


def up(proxy: RunningProxy, name: str) -> bool:
    text = httpx.get(f"{proxy.url}/metrics", headers=ADMIN).raise_for_status().text
    return f'knapcache_upstream_up{{upstream="{name}"}} 1.0' in text


def lines(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [text for record in caplog.records if (text := record.getMessage()).startswith(f"upstream {name} ")]


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("refused", 502, "connection refused"),
        ("nameless", 502, "host name not found"),
        ("untrusted", 502, "TLS certificate not valid: self-signed certificate"),
        ("silent", 504, "timeout: no data for 0.2 s"),
    ],
)
def test_client_log_page_and_metrics_say_which_upstream_fails_and_why(
    proxy: RunningProxy, caplog: pytest.LogCaptureFixture, name: str, status: int, reason: str
) -> None:
    caplog.set_level(logging.INFO, "knapcache")
    assert up(proxy, name)
    answers = [ask(proxy, name, str(k)) for k in range(3)]
    reasons = {reason, "the lookup of its host name failed"} if name == "nameless" else {reason}
    for answer in answers:
        assert answer.status_code == status
        message = answer.json()["error"]["message"]
        assert message in {f"upstream {name} failed: {each}" for each in reasons}
        assert "127.0.0.1" not in message
    found = state(proxy, name)
    assert (found["state"], found["failed"]) == ("failing", 3)
    assert found["reason"] in reasons
    assert not up(proxy, name)
    health = httpx.get(f"{proxy.url}/healthz")
    assert health.status_code == 200
    assert f"upstream {name} fails: {found['reason']}" in health.text.splitlines()
    (line,) = lines(caplog, name)
    assert line.startswith(f"upstream {name} fails: {found['reason']}.")


def test_recovery_needs_a_successful_answer(
    proxy: RunningProxy, provider: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "knapcache")
    assert ask(proxy, "provider", "stored").status_code == 200
    provider.fail("500", "reset")
    assert [ask(proxy, "provider", f"a {k}").status_code for k in range(2)] == [500, 502]
    assert (state(proxy, "provider")["state"], state(proxy, "provider")["failed"]) == ("failing", 2)
    assert ask(proxy, "provider", "stored").headers["x-knapcache"] == "hit"
    assert state(proxy, "provider")["state"] == "failing", "a cached answer says nothing about the upstream"
    provider.fail("no-options")
    refused = ask(proxy, "provider", "no options", stream_options={"include_usage": True}, stream=True)
    assert refused.status_code == 400
    assert state(proxy, "provider")["state"] == "failing", "an error is no successful answer"
    assert ask(proxy, "provider", "b").status_code == 200
    assert state(proxy, "provider") | {"calls": 0} == {
        "name": "provider", "state": "ok", "calls": 0, "errors": 2, "failing_since": None, "reason": "", "failed": 0,
        "last_failure": None, "failing_now": False, "fallback": "",
        "health": "healthy", "open_until": None,
    }  # fmt: skip
    assert up(proxy, "provider")
    assert "provider" not in httpx.get(f"{proxy.url}/healthz").text
    failure, recovery = lines(caplog, "provider")
    assert failure.startswith("upstream provider fails: status 500: internal server error.")
    assert recovery.startswith("upstream provider answers again: it failed 2 requests in ")


def test_a_process_logs_the_first_failure_and_the_recovery(tmp_path: Path) -> None:
    """Also if it stops at once after the request. No line has text of a request."""
    with RecordingUpstream() as upstream:
        upstream.always(send(then="reset"))
        with ProxyProcess(tmp_path / "first", upstream.openai_url) as stopped:
            assert exchange(stopped.url, chat("a private question"))[0].status == 502
        with ProxyProcess(tmp_path / "second", upstream.openai_url) as process:
            for k in range(5):
                assert exchange(process.url, chat(f"a private question {k}"))[0].status == 502
            assert exchange(process.url, message("PUT /v1/files/private HTTP/1.1", body=b"{}"))[0].status == 502
            upstream.always(None)
            for k in range(2):
                asked = chat(f"another private question {k}", model="gpt-4o-mini")
                assert exchange(process.url, asked)[0].status == 200
    (line,) = stopped.problems()
    fails = " fails: connection reset. Requests that need it get an error; cached answers are served.\n"
    assert line.endswith(fails)
    first, again = process.problems()
    assert first.endswith(fails)
    assert " answers again: it failed 6 requests in " in again
    assert "private" not in line + first + again
