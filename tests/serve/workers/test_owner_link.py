"""Several processes on one port: one owner, one record, and another owner when it is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache.testing import FakeUpstream


class Team:
    """`knapcache serve --workers N`, as people start it."""

    def __init__(self, folder: Path, upstream: str, workers: int = 3) -> None:
        command = [sys.executable, "-m", "knapcache", "serve", "--path", str(folder), "--port", "0"]
        command += ["--upstream", upstream, "--workers", str(workers), "--policy", "lru", "--set", "shadows=lru"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("dashboard"):
                self.url = line.split()[1].partition("/dashboard")[0]
                self.token = line.strip().partition("#token=")[2]
                break
        else:
            raise AssertionError("it did not start")

    def admin(self, path: str, method: str = "GET", **more: Any) -> Any:
        """What the admin API says, whichever process is asked."""
        headers = {"authorization": f"Bearer {self.token}"}
        for _ in range(40):
            answer = httpx.request(method, f"{self.url}/admin/v1{path}", headers=headers, timeout=10, **more)
            if answer.status_code != 503:  # the owner is just changing
                break
            time.sleep(0.5)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ask(self, text: str) -> str:
        """A question on a connection of its own, so that any process may get it: hit, miss…"""
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == f"You said: {text}"
        return answer.headers["x-knapcache"]

    def children(self) -> list[int]:
        """The processes that serve."""
        pid = self.process.pid
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in listed if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]

    def owner(self, folder: Path) -> int:
        """The process that owns the store."""
        return int((folder / "cache.sqlite.lock").read_text().split()[0])

    def stop(self) -> None:
        """As people stop it."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(40) == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def team(folder: Path, upstream: FakeUpstream) -> Iterator[Team]:
    team = Team(folder, upstream.openai)
    yield team
    if team.process.poll() is None:
        team.stop()
    assert team.process.stdout is not None
    team.process.stdout.close()


def eventually(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.1)


def test_a_team_shares_answers_and_the_record_and_survives_its_owner(
    team: Team, folder: Path, upstream: FakeUpstream
) -> None:
    assert len(team.children()) == 3
    for _ in range(6):
        for k in range(10):
            team.ask(f"question {k}")
    eventually(lambda: team.admin("/summary")["all"]["requests"] == 60)
    # What one has paid for reaches the file within a second or so: no process pays more than once for a question.
    assert 10 <= upstream.count() <= 30
    time.sleep(2.0)
    before = upstream.count()
    assert {team.ask(f"question {k}") for k in range(10) for _ in range(4)} == {"hit"}
    assert upstream.count() == before

    owner = team.owner(folder)
    assert owner in team.children()
    os.kill(owner, signal.SIGKILL)
    eventually(lambda: team.owner(folder) != owner and len(team.children()) == 3)
    assert team.ask("question 0") == "hit"
    eventually(lambda: team.admin("/summary")["health"]["owner"])
    for k in range(10):
        team.ask(f"later {k}")
    # What the killed one had not written yet, at most ten seconds of the record, is lost with it.
    eventually(lambda: team.admin("/summary")["all"]["requests"] >= 11)

    assert team.admin("/purge", "POST", json={"all": True})["purged"] > 0
    eventually(lambda: team.admin("/entries")["total"] == 0)
    team.stop()
    kept = json.loads((folder / "history.json").read_text())
    assert kept["version"] == 1


def test_a_team_without_its_store_serves_and_has_one_record(folder: Path, upstream: FakeUpstream) -> None:
    (folder / "cache.sqlite").mkdir(parents=True)
    team = Team(folder, upstream.openai, workers=2)
    try:
        for k in range(20):
            team.ask(f"question {k % 5}")
        assert 5 <= upstream.count() <= 10, "each process has a memory of its own"
        eventually(lambda: team.admin("/summary")["all"]["requests"] == 20)
        assert team.admin("/summary")["health"]["store"] == "memory"
    finally:
        team.stop()
        assert team.process.stdout is not None
        team.process.stdout.close()


def test_who_kills_the_parent_kills_all(team: Team) -> None:
    children = team.children()
    team.process.kill()
    team.process.wait()

    def gone() -> bool:
        return not any(Path(f"/proc/{pid}").exists() and "Z" not in state(pid) for pid in children)

    eventually(gone)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_two_proxies_do_not_share_a_directory(team: Team, folder: Path, upstream: FakeUpstream) -> None:
    command = [sys.executable, "-m", "knapcache", "serve", "--path", str(folder), "--port", "0"]
    command += ["--upstream", upstream.openai]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert "another proxy runs on" in second.stderr
    assert team.ask("still here") in ("miss", "hit")
