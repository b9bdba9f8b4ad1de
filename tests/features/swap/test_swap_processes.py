"""Several processes: workers of one command, a process that is killed, and labels that are counted once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from knapcache.features.swap import frame
from tests.features.swap.two_models import CHEAPER, ROUTE, SwapClient, TwoModels, new_question, swapping
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.timing import wait_until


class ServedCommand:
    """A proxy in a process of its own, as clients see it."""

    def __init__(self, process: ProxyProcess) -> None:
        self.url, self.openai_url = process.url, f"{process.url}/v1"

    def admin(self, path: str) -> Any:
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        return httpx.get(f"{self.url}/admin/v1{path}", headers=headers, timeout=60).raise_for_status().json()


class RemoteClient(SwapClient):
    """A client of such a proxy."""

    def settle_labels(self) -> None:
        """Wait until every call of the cheaper model in a frame that learns is a label."""

        def settled() -> bool:
            calls = sum(model == CHEAPER for model, _ in self.upstream.answered)
            return self.state() != "learning" or sum(frame["labels"] for frame in self.frames()) == calls

        wait_until(settled)


@contextmanager
def serving(folder: Path, upstream: TwoModels, **settings: Any) -> Iterator[tuple[ProxyProcess, RemoteClient]]:
    route = "\n".join(f"{name} = {value!r}" for name, value in ROUTE.items())
    config = f"""
[[upstreams]]
name = "fake"
url = "{upstream.openai_url}"
headers = {{ authorization = "Bearer own" }}

[[route]]
{route}
"""
    with ProxyProcess(folder, "", config=config, **settings) as process:
        command: Any = ServedCommand(process)
        with RemoteClient(command, upstream) as client:
            yield process, client


def is_swapped(client: SwapClient) -> bool:
    return client.ask().swapped


def has_labels(client: SwapClient, number: int) -> bool:
    return bool(client.frames()[0]["labels"] == number)


@pytest.mark.long
def test_two_workers_share_labels_and_swap_alike(tmp_path: Path) -> None:
    with TwoModels() as upstream:
        real = {"PYTHONUNBUFFERED": "1"}  # a process of the command itself, not a fork of the tests
        with serving(tmp_path / "data", upstream, environment=real, workers=2) as (process, client):
            client.learn()
            for pid in process.pids():
                with process.only(pid), RemoteClient(client.running, upstream) as one:
                    wait_until(partial(is_swapped, one))
            upstream.wrong_every = 1
            before = client.frames()[0]["labels"]
            wait_until(lambda: not client.ask().swapped and client.frames()[0]["labels"] > before)
            report = client.running.admin("/swap")
            assert report["all"]["requests"]["swap"] >= 2
            assert len(report["frames"]) == 1
            assert process.problems() == []


def test_labels_of_a_killed_process_are_counted_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with TwoModels() as upstream:
        with serving(folder, upstream) as (process, client):
            wait_until(lambda: bool(client.ask() and client.frames()[0]["labels"]))
            for _ in range(5):
                client.ask()
            os.kill(process.process.pid, signal.SIGKILL)  # labels are being made, appended and read
            process.process.wait(30)
        connection = apsw.Connection(str(folder / "swap.sqlite"))
        stored: Any = connection.execute("SELECT COUNT(*) FROM labels").fetchall()[0][0]
        connection.close()
        with serving(folder, upstream) as (_, client):
            wait_until(lambda: not client.running.admin("/swap")["problem"])
            assert sum(frame["labels"] for frame in client.frames()) == stored > 0


def test_a_copy_of_a_record_is_no_second_label(tmp_path: Path) -> None:
    """Somebody who can write to the file copies the labels that certify, again and again."""
    with TwoModels() as upstream:
        with swapping(tmp_path, upstream) as client:
            while not client.frames() or client.frames()[0]["labels"] < 5:
                client.ask()
                client.settle_labels()
            labels = client.frames()[0]["labels"]
        connection = apsw.Connection(str(tmp_path / "swap.sqlite"))
        for _ in range(8):
            connection.execute("INSERT INTO labels (record) SELECT record FROM labels WHERE id <= 5")
        connection.close()
        with swapping(tmp_path, upstream) as client:
            wait_until(lambda: not client.running.admin("/swap")["problem"])
            assert client.frames()[0]["labels"] == labels
            assert client.state() == "learning"
            assert not client.ask(new_question()).swapped


def test_two_processes_that_append_count_every_label_once(tmp_path: Path) -> None:
    """The second one on the same data directory is a reader of the store, and appends labels like the first."""
    with TwoModels() as upstream, swapping(tmp_path, upstream) as first, swapping(tmp_path, upstream) as second:
        for _ in range(6):
            first.ask()
            second.ask()
        for client in (first, second):
            client.settle_labels()
        made = sum(model == CHEAPER for model, _ in upstream.answered)
        for client in (first, second):
            wait_until(partial(has_labels, client, made))


def is_stored(client: SwapClient, question: str) -> bool:
    return client.ask(question).headers["x-knapcache"] == "hit"


def second_turn(question: str) -> list[dict[str, str]]:
    """Return the messages of the second turn of a conversation."""
    texts = ("user", question), ("assistant", "right"), ("user", new_question())
    return [{"role": role, "content": text} for role, text in texts]


def test_a_conversation_keeps_its_model_in_every_process_and_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "AUDIT", 0.0)
    with TwoModels() as upstream, swapping(tmp_path, upstream) as first:
        with swapping(tmp_path, upstream) as second:
            begun = new_question()
            assert not second.ask(begun).swapped
            first.learn()
            wait_until(lambda: second.state() == "certified")
            swapped = new_question()
            assert first.ask(swapped).swapped
            for client in (first, second):
                wait_until(partial(is_stored, client, swapped))
                assert client.ask(messages=second_turn(swapped)).swapped
                assert not client.ask(messages=second_turn(begun)).swapped, "the asked model has begun it"
        with swapping(tmp_path, upstream) as restarted:
            wait_until(lambda: restarted.state() == "certified")
            assert restarted.ask(messages=second_turn(swapped)).swapped
            assert not restarted.ask(messages=second_turn(begun)).swapped
