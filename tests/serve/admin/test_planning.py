"""A plan beside the proxy: from a real request log, by the real command."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from knapcache.serve.admin.planning import Planner
from knapcache.serve.http.asgi_request import RequestRejected
from knapcache.serve.observe.request_log import RequestLog
from tests.support.admin_context import AdminHarness

API = "/admin/v1"


def waited(client: TestClient) -> dict[str, Any]:
    until = time.monotonic() + 600  # kernels may have to be compiled
    while time.monotonic() < until:
        found: dict[str, Any] = client.get(f"{API}/plan").raise_for_status().json()
        if found["state"] != "running":
            return found
        time.sleep(0.1)
    raise AssertionError("it does not end")


async def ended(planner: Planner) -> dict[str, Any]:
    assert planner._task is not None
    await planner._task
    return planner.status().model_dump()


def test_the_command_line_is_a_module() -> None:
    said = subprocess.run([sys.executable, "-m", "knapcache", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("knapcache ")


@pytest.mark.long
def test_a_plan_from_the_request_log(tmp_path: Path) -> None:
    harness = AdminHarness(None, tmp_path / "log")
    log = RequestLog(tmp_path / "log", 1 << 20)
    harness.events.add_consumer(log)
    try:
        for _ in range(3):
            for name in range(40):
                harness.request(name)
        with harness.client() as client:
            assert client.get(f"{API}/plan").json()["state"] == "idle"
            harness.events.flush()
            log.close()
            assert client.post(f"{API}/plan").status_code == 202
            assert client.get(f"{API}/plan").json()["state"] == "running"
            again = client.post(f"{API}/plan")
            assert (again.status_code, again.json()["error"]["type"]) == (409, "already_running")
            found = waited(client)
        assert found["state"] == "done", found
        assert found["seconds"] > 0
        assert {"rows", "per", "recommended", "largest_saving", "working_set"} <= found["result"].keys()
        assert found["result"]["requests"] == 120
    finally:
        log.close()
        harness.close()


def test_without_a_log_there_is_no_plan() -> None:
    harness = AdminHarness()
    try:
        with harness.client() as client:
            found = client.post(f"{API}/plan")
            assert (found.status_code, found.json()["error"]["type"]) == (409, "no_request_log")
            assert client.get(f"{API}/plan").json() == {
                "state": "idle", "started": None, "seconds": None, "result": None,
            }  # fmt: skip
    finally:
        harness.close()


async def test_what_goes_wrong_is_said_and_the_next_may_begin(tmp_path: Path) -> None:
    planner = Planner(tmp_path / "nothing")
    planner.start()
    with pytest.raises(RequestRejected):
        planner.start()
    found = await ended(planner)
    assert found["state"] == "failed"
    assert "nothing" in found["result"]["message"]
    planner.start()
    assert planner.status().model_dump()["result"] is None
    await ended(planner)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that writes down its number, and sleeps."""
    program = tmp_path / "slow"
    program.write_text(f'#!/bin/sh\necho $$ > "{tmp_path}/pid"\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return tmp_path / "pid"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def started(pid: Path) -> int:
    while not (pid.exists() and pid.read_text().strip()):
        await asyncio.sleep(0.01)
    return int(pid.read_text())


async def test_it_may_not_take_for_ever(slow: Path) -> None:
    planner = Planner(slow.parent, limit=1.0)
    planner.start()
    pid = await started(slow)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10) or (
        os.getpriority(os.PRIO_PROCESS, pid) == 10
    )
    found = await ended(planner)
    assert (found["state"], found["result"]) == ("failed", {"message": "the plan took more than 1 s"})
    assert not alive(pid)


async def test_it_ends_with_the_proxy(slow: Path) -> None:
    planner = Planner(slow.parent)
    planner.start()
    pid = await started(slow)
    await planner.close()
    assert not alive(pid)
    assert planner.status().model_dump()["state"] == "failed"
    await planner.close()


async def test_output_that_is_no_json_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "wrong"
    program.write_text("#!/bin/sh\necho no json\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    planner = Planner(tmp_path)
    planner.start()
    assert (await ended(planner))["state"] == "failed"
    assert json.dumps(planner.status().model_dump())
