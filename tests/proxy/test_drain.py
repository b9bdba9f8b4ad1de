"""The end of a proxy. With the setting `drain` it serves on while its load balancer notices."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import httpx
import pytest

from knapcache.proxy.admin.planning import Planner
from knapcache.testing import FakeUpstream
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until, within

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def test_requests_are_served_while_readyz_says_no(tmp_path: Path) -> None:
    with FakeUpstream() as upstream, RunningProxy(tmp_path, upstream.openai_url, drain=60.0) as proxy:
        with httpx.Client(base_url=proxy.url) as client:
            assert client.get("/readyz").status_code == 200
            stopping = threading.Thread(target=proxy.stop)
            stopping.start()
            wait_until(lambda: client.get("/readyz").status_code == 503)
            assert client.get("/healthz").status_code == 200
            assert client.post("/v1/chat/completions", json=BODY).status_code == 200
            with httpx.Client(base_url=proxy.url) as other:  # on a new connection, too
                assert other.post("/v1/chat/completions", json=BODY).headers["x-knapcache"] == "hit"
        proxy._server._captured_signals.append(signal.SIGINT)  # ends the drain; a second signal would end the requests
        stopping.join()
        proxy._server._captured_signals.clear()


def test_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    with FakeUpstream() as upstream, RunningProxy(tmp_path, upstream.openai_url, drain=60.0) as proxy:
        with within(30.0, "the stop"):
            proxy._server.handle_exit(signal.SIGINT, None)
            proxy.stop()
        proxy._server._captured_signals.clear()  # uvicorn would raise it again in a process of its own


def test_a_plan_ends_with_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, close = [], Planner.close

    async def record(planner: Planner) -> None:
        closed.append(planner)
        await close(planner)

    monkeypatch.setattr(Planner, "close", record)
    with FakeUpstream() as upstream, RunningProxy(tmp_path, upstream.openai_url):
        assert not closed
    assert len(closed) == 1
