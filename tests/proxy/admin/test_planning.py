"""Capacity plans in a child process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from knapcache.proxy.admin import planning
from knapcache.proxy.admin.app import admin_app
from knapcache.proxy.admin.planning import NICE, Planner, PlanProgress
from knapcache.proxy.admin.summary_models import Amounts
from knapcache.proxy.events.request_log import RequestLog
from knapcache.proxy.http.asgi_request import RequestRejected
from tests.support.admin_context import AdminHarness
from tests.support.timing import async_wait_until, wait_until

API = "/admin/v1"
DOLLARS = Amounts(unit="usd", factor=1.0)


def wait_for_plan(client: TestClient) -> dict[str, Any]:
    def finished() -> dict[str, Any] | None:
        found: dict[str, Any] = client.get(f"{API}/plan").raise_for_status().json()
        return found if found["state"] != "running" else None

    return wait_until(finished, "a plan", seconds=600)  # kernels may have to be compiled


async def finish(planner: Planner) -> dict[str, Any]:
    assert planner._task is not None
    await planner._task
    return planner.status().model_dump()


def test_the_package_runs_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "knapcache", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("knapcache ")


@pytest.mark.long
def test_a_plan_replays_the_request_log(tmp_path: Path) -> None:
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
            found = wait_for_plan(client)
        assert found["state"] == "done", found
        assert found["seconds"] > 0
        assert found["progress"] == 1.0
        assert found["amounts"] == {"unit": "seconds", "factor": 1.0}
        assert {"rows", "recommended", "largest_saving", "working_set"} <= found["result"].keys()
        assert found["result"]["requests"] == 120
    finally:
        log.close()
        harness.close()


def test_a_plan_needs_a_request_log() -> None:
    with AdminHarness() as harness, harness.client() as client:
        found = client.post(f"{API}/plan")
        assert (found.status_code, found.json()["error"]["type"]) == (409, "no_request_log")
        assert client.get(f"{API}/plan").json() == {
            "state": "idle", "started": None, "seconds": None, "progress": 0.0, "remaining": None,
            "amounts": None, "result": None,
        }  # fmt: skip


async def test_a_failed_plan_gives_the_reason_and_another_can_start(tmp_path: Path) -> None:
    planner = Planner(tmp_path / "nothing")
    planner.start(DOLLARS)
    with pytest.raises(RequestRejected):
        planner.start(DOLLARS)
    found = await finish(planner)
    assert found["state"] == "failed"
    assert "nothing" in found["result"]["message"]
    planner.start(DOLLARS)
    assert planner.status().model_dump()["result"] is None
    await finish(planner)


Replace = Callable[[str], None]


@pytest.fixture
def replace_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Replace the plan command by a shell script."""

    def replace(script: str) -> None:
        program = tmp_path / "plan"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return replace


@pytest.fixture
def sleeping_plan(replace_plan: Replace, monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """Replace the plan command by `sleep`, and return the list of its processes."""
    replace_plan("exec sleep 60")
    processes: list[Process] = []
    create = asyncio.create_subprocess_exec

    async def create_and_record(*args: Any, **options: Any) -> Process:
        processes.append(await create(*args, **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_and_record)
    return processes


async def test_a_plan_is_killed_after_its_time_limit(
    tmp_path: Path, sleeping_plan: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "LIMIT", 0.2)
    planner = Planner(tmp_path)
    planner.start(DOLLARS)
    status = await finish(planner)
    assert (status["state"], status["result"]) == ("failed", {"message": "the plan took more than 0.2 s"})
    assert [process.returncode for process in sleeping_plan] == [-signal.SIGKILL]


async def test_a_plan_has_a_low_priority_and_is_killed_with_the_proxy(
    tmp_path: Path, sleeping_plan: list[Process]
) -> None:
    planner = Planner(tmp_path)
    planner.start(DOLLARS)
    await async_wait_until(lambda: sleeping_plan)
    # A process that already runs with a lower priority may not raise it.
    assert os.getpriority(os.PRIO_PROCESS, sleeping_plan[0].pid) in (NICE, os.getpriority(os.PRIO_PROCESS, 0))
    await planner.close()
    assert [process.returncode for process in sleeping_plan] == [-signal.SIGKILL]
    assert planner.status().state == "failed"
    await planner.close()


async def test_the_end_of_the_admin_api_ends_a_plan(tmp_path: Path, sleeping_plan: list[Process]) -> None:
    with AdminHarness(None, tmp_path / "log") as harness:
        admin = admin_app(harness.context).state.admin
        admin._planner.start(DOLLARS)
        await async_wait_until(lambda: sleeping_plan)
        await admin.close()
        assert [process.returncode for process in sleeping_plan] == [-signal.SIGKILL]


async def test_output_that_is_not_json_fails_the_plan(tmp_path: Path, replace_plan: Replace) -> None:
    replace_plan("echo no json")
    planner = Planner(tmp_path)
    planner.start(DOLLARS)
    assert (await finish(planner))["state"] == "failed"
    assert json.dumps(planner.status().model_dump())


def test_the_time_left_is_estimated_from_all_rounds_but_the_first() -> None:
    progress = PlanProgress()
    assert (progress.share, progress.remaining(0.0)) == (0.0, None)
    assert progress.update(b'{"done": 0, "total": 0}', 1.0)
    assert progress.update(b'{"done": 4, "total": 40}', 9.0), "the first round loads the kernels"
    assert (progress.share, progress.remaining(9.0)) == (0.1, None)
    progress.update(b'{"done": 8, "total": 40}', 10.0)
    assert progress.remaining(10.0) == pytest.approx(8.0)
    assert progress.remaining(11.5) == pytest.approx(6.5), "time passes between two rounds"
    progress.update(b'{"done": 12, "total": 40}', 13.0)
    assert progress.remaining(13.0) == pytest.approx(14.0)
    assert progress.remaining(99.0) == 0.0
    for line in (b"knapcache: error: no", b"", b"{}", b"[1]", b'{"done": null, "total": 3}'):
        assert not progress.update(line, 14.0)
    progress.update(b'{"done": 40, "total": 40}', 20.0)
    assert (progress.share, progress.remaining(20.0)) == (1.0, 0.0)


async def test_the_progress_of_the_child_is_reported(tmp_path: Path, replace_plan: Replace) -> None:
    go_on = tmp_path / "go on"
    lines = "\n".join(f'echo \'{{"done": {k}, "total": 10}}\' >&2' for k in (0, 1, 2, 5))
    replace_plan(f"{lines}\nwhile [ ! -e '{go_on}' ]; do sleep 0.02; done\necho '{{}}'")
    planner = Planner(tmp_path)
    planner.start(DOLLARS)
    await async_wait_until(lambda: planner.status().progress >= 0.5)
    status = planner.status()
    assert (status.state, status.progress, status.amounts) == ("running", 0.5, DOLLARS)
    assert status.remaining is not None
    assert status.seconds is not None
    go_on.touch()
    found = await finish(planner)
    assert (found["state"], found["progress"], found["remaining"]) == ("done", 1.0, None)
