"""Several workers on one port: one owner, one event pipeline, and another owner when it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import orjson
import pytest

from knapcache.proxy.events.events import PAYMENT, PaymentEvent, UpstreamTry
from knapcache.proxy.events.history_file import unpack
from knapcache.proxy.workers import owner_link
from knapcache.proxy.workers.owner_link import OwnerClient, WorkerMessage, decode_message, encode_message
from knapcache.testing import FakeUpstream
from tests.support.events import SampleNote, SamplePart, event, traffic
from tests.support.processes import has_ended, suspend
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.timing import wait_until


class Workers(ProxyProcess):
    """`knapcache serve --workers N` in a subprocess."""

    def admin(self, path: str, method: str = "GET", **more: Any) -> Any:
        """Return a response of the admin API, from any of the processes."""
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}

        def answer() -> httpx.Response | None:
            found = httpx.request(method, f"{self.url}/admin/v1{path}", headers=headers, timeout=60, **more)
            return found if found.status_code != 503 else None  # the owner process is changing

        response = wait_until(answer, "the change of the owner")
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, text: str) -> httpx.Response:
        """Send a request on a new connection, so that any process may get it."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60)

    def request(self, text: str) -> str:
        """Send a request, check its answer, and return its outcome."""
        response = self.post(text)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["message"]["content"] == f"You said: {text}"
        return response.headers["x-knapcache"]


Start = Callable[[int], Workers]


@pytest.fixture
def start(tmp_path: Path, upstream: FakeUpstream) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start(count: int) -> Workers:
            workers = Workers(tmp_path / "data", upstream.openai_url, workers=count)
            stack.callback(workers.stop)
            return workers

        yield start


def test_requests_and_upstream_health_of_all_workers_are_reported(start: Start, upstream: FakeUpstream) -> None:
    workers = start(2)
    owner = workers.owner()
    (other,) = set(workers.pids()) - {owner}
    for pid in (owner, other):
        with workers.only(pid):
            upstream.fail("500")
            assert [workers.request(f"{pid} {k}") for k in range(3)] == ["miss"] * 3
    assert upstream.count() == 8, "three answers each, and a retry"
    wait_until(lambda: workers.admin("/summary")["all"]["requests"] == 6)
    rows = workers.admin("/requests")["rows"]
    assert [row["serial"] for row in rows] == list(range(1, 7))
    assert len({row["key"] for row in rows}) == 6
    health = workers.admin("/summary")["health"]
    assert [(one["state"], one["calls"], one["errors"]) for one in health["upstreams"]] == [("ok", 8, 2)]

    with workers.only(other):
        upstream.fail(*["500"] * 4)  # two requests, each with a retry
        assert [workers.post(f"failure {k}").status_code for k in range(2)] == [500, 500]
    wait_until(lambda: workers.admin("/summary")["all"]["requests"] == 8)
    health = workers.admin("/summary")["health"]
    assert [(one["state"], one["calls"], one["errors"]) for one in health["upstreams"]] == [("failing", 12, 6)]


def test_workers_share_answers_and_survive_their_owner(start: Start, upstream: FakeUpstream) -> None:
    workers = start(2)
    assert len(workers.pids()) == 2
    for _ in range(6):
        for k in range(10):
            workers.request(f"question {k}")
    wait_until(lambda: workers.admin("/summary")["all"]["requests"] == 60)
    # An answer reaches the file about a second after it was fetched. Until then a worker may fetch it again.
    assert 10 <= upstream.count() < 60
    wait_until(lambda: {workers.request(f"question {k}") for k in range(10) for _ in range(4)} == {"hit"})

    owner = workers.owner()
    assert owner in workers.pids()
    os.kill(owner, signal.SIGKILL)
    wait_until(lambda: workers.owner() not in (0, owner) and len(workers.pids()) == 2)
    wait_until(lambda: workers.request("question 0") == "hit")
    wait_until(lambda: workers.admin("/summary")["health"]["owner"])
    for k in range(10):
        workers.request(f"later {k}")
    # At most ten seconds of history are lost with the killed owner.
    wait_until(lambda: workers.admin("/summary")["all"]["requests"] >= 11)

    def is_empty() -> bool:  # other workers may hand over answers after a purge
        workers.admin("/purge", "POST", json={"all": True})
        return bool(workers.admin("/entries")["total"] == 0)

    assert workers.admin("/purge", "POST", json={"all": True})["purged"] > 0
    wait_until(is_empty)
    workers.stop()
    assert json.loads((workers.folder / "history.json").read_text())["version"] == 5


def test_events_of_a_worker_that_outlives_its_owner_are_recorded(start: Start) -> None:
    workers = start(2)
    workers.request("before")
    wait_until(lambda: workers.admin("/summary")["all"]["requests"] == 1)
    owner = workers.owner()
    (other,) = (pid for pid in workers.pids() if pid != owner)
    with workers.only(other):
        workers.request("last")
    suspend(other)  # most often before it has sent its event
    workers.process.send_signal(signal.SIGTERM)
    wait_until(lambda: has_ended(owner))
    os.kill(other, signal.SIGCONT)
    workers.stop()
    assert unpack((workers.folder / "history.json").read_bytes()).total.requests == 2


def test_workers_without_their_store_serve_and_have_one_pipeline(
    tmp_path: Path, start: Start, upstream: FakeUpstream
) -> None:
    (tmp_path / "data" / "cache.sqlite").mkdir(parents=True)
    workers = start(2)
    for k in range(20):
        workers.request(f"question {k % 5}")
    assert 5 <= upstream.count() <= 10, "each process has a memory store of its own"
    wait_until(lambda: workers.admin("/summary")["all"]["requests"] == 20)
    assert workers.admin("/summary")["health"]["store"] == "memory"


def test_workers_end_when_their_parent_is_killed(start: Start) -> None:
    workers = start(2)
    pids = workers.pids()
    workers.process.kill()
    workers.process.wait()
    wait_until(lambda: all(has_ended(pid) for pid in pids))


def test_two_proxies_do_not_share_a_directory(start: Start, upstream: FakeUpstream) -> None:
    workers = start(2)
    command = [sys.executable, "-m", "knapcache", "serve", "--path", str(workers.folder), "--port", "0"]
    command += ["--upstream", upstream.openai_url]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert "another proxy uses" in second.stderr
    assert workers.request("still here") in ("miss", "hit")


def test_events_cross_processes_by_name() -> None:
    events = [*traffic(20), event("failed", attempts=(0, 429, 503), usd=None, trace="00-x"), event("hit", model="é")]
    sample = SamplePart("é", ((-7, 2_000), (2**62, 9_900)), MappingProxyType({"a": 0.5}))
    events += [event("miss", sample=sample), event("miss", sample=SamplePart(), plain=SampleNote(3))]
    tried = (UpstreamTry("a", (0, 503), "connection refused", 5.5), UpstreamTry("b", (), "", 0.0))
    events.append(event("miss", tried=tried, open_until=7.5))
    payment = (PAYMENT, PaymentEvent("chat/completions", "m", "t", 0.5, 1.0, 0.5, 100))
    message = WorkerMessage(events, [("sample", SampleNote(1)), payment, ("sample", SampleNote(2))], 7)
    sent, parts = encode_message(message), {"sample": SamplePart, "plain": SampleNote}
    assert decode_message(sent, parts, {"sample": SampleNote}) == message
    (fields,) = orjson.loads(encode_message(WorkerMessage(events[:1], [], 0)))["events"]
    assert fields == {**events[0]._asdict(), "attempts": list(events[0].attempts), "tried": []}

    without = decode_message(sent, {"plain": SampleNote}, {})
    assert (without.notes, without.dropped) == ([payment], 7 + 2 + 2), "of features that are off here"
    assert [one.parts for one in without.events[-3:]] == [{}, {"plain": SampleNote(3)}, {}]


def test_a_full_queue_drops_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_link, "MAX_BUFFERED", 4)
    monkeypatch.setattr(owner_link, "MAX_NOTES", 3)
    client, events = OwnerClient(tmp_path), traffic(7)
    notes = [("sample", SampleNote(k)) for k in range(5)]
    for first in range(0, 7, 2):
        client.consume(events[first : first + 2])
        client.consume_notes(notes[first : first + 2])
    assert (client._unsent, client.unsent_notes, client._dropped) == (events[:4], notes[:3], 3 + 2)


def test_a_worker_without_an_owner_keeps_few_long_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_link, "MAX_DETAILED", 3)
    client = OwnerClient(tmp_path)
    for _ in range(3):
        client.consume([event("miss", sample=SamplePart("a", ((1, 2),)))] * 2)
    kept = [bool(one.parts["sample"].pairs) for one in client._unsent]
    assert kept == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    "message", [b"", b"[]", b"{}", b'{"events": [[1]], "dropped": 0}', b'{"events": [{"time": 1}]}']
)
def test_an_unreadable_message_raises_what_the_server_catches(message: bytes) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        decode_message(message, {}, {})
