"""The main attacks against two worker processes: both of them hold, and no answer crosses from one to the other."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from knapcache.proxy.settings.secrets import digest_of
from tests.attacks.test_request_bodies import bomb
from tests.attacks.test_request_framing import REFUSED
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.raw_client import CHAT, RawClient, WireResponse, chat, exchange, get, message
from tests.support.recording_upstream import RecordingUpstream
from tests.support.timing import wait_until

VALID_KEY = "tenant-a-key"
OTHER_KEY = "tenant-b-key"
NUMBERS = itertools.count(1)
CONFIG = "".join(
    f'[[tenants]]\nname = "{name}"\nkeys = ["{digest_of(key)}"]\npass_key = true\n'
    for name, key in (("a", VALID_KEY), ("b", OTHER_KEY))
)


@pytest.fixture(scope="module")
def process(upstream: RecordingUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("workers") / "data"
    with ProxyProcess(folder, upstream.openai_url, config=CONFIG, workers=2) as process:
        yield process


def each_worker(process: ProxyProcess) -> Iterator[str]:
    """Yield once while only the owner serves, and once while only the other worker serves."""
    owner = process.owner()
    for pid in sorted(process.pids(), key=lambda pid: pid != owner):
        with process.only(pid):
            yield "owner" if pid == owner else "reader"


def ask(process: ProxyProcess, text: str, key: str = VALID_KEY) -> WireResponse:
    """Ask on a new connection, and check that the answer is the question's."""
    (response,) = exchange(process.url, chat(text, key=key))
    assert response.status == 200, response
    assert response.text == f"You said: {text}"
    return response


def admin(process: ProxyProcess, path: str, token: str = ADMIN_TOKEN, *headers: str, source: str = "") -> WireResponse:
    with RawClient(process.url, source=source or None) as client:
        (response,) = client.send(get(path, *headers, key=token)).responses(1, ["GET"])
    return response


def test_both_workers_refuse_ambiguous_requests(process: ProxyProcess, upstream: RecordingUpstream) -> None:
    for worker in each_worker(process):
        for name, attack in REFUSED.items():
            with RawClient(process.url) as client:
                statuses = [response.status for response in client.send(attack(CHAT)).responses_until_close()]
            assert len(statuses) <= 1, (worker, name)
            assert all(400 <= status < 600 and status != 500 for status in statuses), (worker, name, statuses)
        assert upstream.targets == [], worker
        ask(process, f"after {worker} {next(NUMBERS)}")
        upstream.clear()


def test_both_workers_refuse_what_is_too_large(process: ProxyProcess, upstream: RecordingUpstream) -> None:
    for _worker in each_worker(process):
        before = process.peak_memory()
        (head,) = exchange(process.url, chat("large", "X: " + "y" * 100_000, key=VALID_KEY))
        (many,) = exchange(process.url, chat("many", *["X: y"] * 10_000, key=VALID_KEY))
        (body,) = exchange(process.url, message(f"POST {CHAT} HTTP/1.1", "Content-Length: 40000000", length=False))
        packed = message(
            f"POST {CHAT} HTTP/1.1", f"Authorization: Bearer {VALID_KEY}", "Content-Encoding: gzip", body=bomb(400)
        )
        (bombed,) = exchange(process.url, packed)
        assert [head.status, many.status, body.status, bombed.status] == [431, 431, 413, 413]
        assert process.peak_memory() - before < 150 << 20
    assert upstream.targets == []


def test_both_workers_separate_tenants(process: ProxyProcess, upstream: RecordingUpstream) -> None:
    text = f"shared question {next(NUMBERS)}"
    own = {VALID_KEY: set[str](), OTHER_KEY: set[str]()}
    for _ in range(2):
        for _worker in each_worker(process):
            for key in (VALID_KEY, OTHER_KEY):
                own[key].add(ask(process, text, key).json()["id"])
            (unknown,) = exchange(process.url, chat(text, key="unknown"))
            assert unknown.status == 401
    assert own[VALID_KEY].isdisjoint(own[OTHER_KEY])
    # The positive control: a tenant's own answer reaches the other worker.
    wait_until(lambda: all(ask(process, text).outcome == "hit" for _worker in each_worker(process)))
    senders = {request.json()["messages"][0]["content"]: request for request in upstream.requests}
    assert set(senders) == {text}


def test_identical_requests_are_coalesced_in_each_worker(process: ProxyProcess, upstream: RecordingUpstream) -> None:
    upstream.delay = 0.5
    text = f"coalesced {next(NUMBERS)}"
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: ask(process, text), range(16)))
    assert {answer.outcome for answer in answers} <= {"miss", "coalesced", "hit"}
    assert len(upstream.requests) <= 2, "one fetch per worker"


def test_the_admin_token_counts_on_both_workers(process: ProxyProcess) -> None:
    for worker in each_worker(process):
        if worker == "reader":
            continue  # it needs the owner, which is suspended
        assert admin(process, "/admin/v1/summary").status == 200
        assert admin(process, "/admin/v1/summary", "wrong").status == 401
    for _ in range(8):  # by any worker
        assert admin(process, "/admin/v1/summary").status == 200
        assert admin(process, "/admin/v1/summary", "wrong").status == 401
        assert admin(process, "/admin/v1/summary", ADMIN_TOKEN, "Host: evil.example").status in (400, 421)


def test_wrong_tokens_are_counted_over_both_workers(process: ProxyProcess) -> None:
    """A client cannot continue to guess by another worker, or by naming another address in a header."""
    names = ("X-Forwarded-For", "X-Knapcache-Client", "X-Real-IP", "Forwarded")
    statuses = []
    for k in range(30):
        headers = [f"{name}: 10.0.0.{k}" for name in names]
        statuses.append(admin(process, "/admin/v1/summary", f"guess-{k}", *headers, source="127.0.0.9").status)
    assert statuses[:10] == [401] * 10
    assert statuses[10:] == [429] * 20
    assert admin(process, "/admin/v1/summary").status == 200, "another address is not locked out"


def test_no_client_can_send_events_to_the_owner(process: ProxyProcess) -> None:
    """Workers send their events to the owner over a path that no client may use."""
    event = {
        "time": time.time(), "endpoint": "chat/completions", "model": "forged", "tenant": "a", "outcome": "hit",
        "status": 200, "seconds": 1.0, "ttfb": 1.0, "stream": False, "key": "", "size": 0, "cost": 1e9, "usd": 1e9,
        "upstream_seconds": 0.0, "upstream": "", "attempts": [], "trace": "",
    }  # fmt: skip
    body = json.dumps({"events": [event], "dropped": 12345}).encode()
    paths = ("/internal/events", "/internal/%65vents", "http://owner/internal/events", "/internal/events?x=1")
    for path in paths * 6:  # by any worker
        (response,) = exchange(process.url, message(f"POST {path} HTTP/1.1", body=body))
        assert response.status in (401, 404, 405), path
    rows = admin(process, "/admin/v1/requests").json()["rows"]
    assert "forged" not in json.dumps(rows)
    assert "forged" not in admin(process, "/metrics").body.decode()


def test_no_answer_is_wrong_while_workers_are_killed(process: ProxyProcess, upstream: RecordingUpstream) -> None:
    stop, wrong, served = threading.Event(), list[str](), list[str]()

    def load(number: int) -> None:
        for k in itertools.count():
            if stop.is_set():
                return
            key = (VALID_KEY, OTHER_KEY)[number % 2]
            text = f"{key} common {k % 7}" if k % 2 else f"{key} client {number} question {k}"
            try:
                with RawClient(process.url) as client:
                    response = client.send(chat(text, key=key)).response_or_none()
            except OSError:  # the worker was killed
                continue
            if response is None:
                continue
            if response.status == 200:
                served.append(text)
                if response.text != f"You said: {text}":
                    wrong.append(f"{text}: {response.text}")
            elif response.status not in (502, 503):
                wrong.append(f"{text}: {response.status}")

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for victim in ("reader", "owner"):
            owner = process.owner()
            pid = owner if victim == "owner" else next(pid for pid in process.pids() if pid != owner)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: pid not in process.pids() and len(process.pids()) == 2)  # type: ignore[misc]
            wait_until(lambda pid=pid: process.owner() not in (0, pid))  # type: ignore[misc]
            mark = len(served)
            wait_until(lambda mark=mark: len(served) > mark + 50)  # type: ignore[misc]
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert wrong == []
    for _worker in each_worker(process):
        assert ask(process, f"{VALID_KEY} common 1").outcome in ("hit", "miss")
    wait_until(lambda: admin(process, "/admin/v1/summary").status == 200)
    for request in upstream.requests:
        text = request.json()["messages"][0]["content"]
        if text.startswith("tenant-"):
            assert request.values("authorization") == [f"Bearer {text.split()[0]}"], (
                "a tenant's key with another's text"
            )
