"""Spend limits of two worker processes under attack: requests without a key, on connections to both."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.raw_client import CHAT, RawClient, chat_body, exchange, message
from tests.support.recording_upstream import RecordingUpstream, send
from tests.support.timing import wait_until

OUTPUT = 0.01
ANSWER_TOKENS, LIMIT = 500, 50.0
CONFIG = f"""
[limits]
usd_per_day = {LIMIT}
concurrent = 4

[prices.m]
input = 1.0
output = {OUTPUT * 1e6}
"""


@pytest.fixture
def workers(upstream: RecordingUpstream, tmp_path_factory: pytest.TempPathFactory) -> ProxyProcess:
    return ProxyProcess(tmp_path_factory.mktemp("data"), upstream.openai_url, config=CONFIG, workers=2)


def limits(workers: ProxyProcess) -> list[dict[str, Any]]:
    """Return every limit, and what is used of it."""
    token = f"Authorization: Bearer {ADMIN_TOKEN}"
    (response,) = exchange(workers.url, message("GET /admin/v1/limits HTTP/1.1", token, length=False), method="GET")
    rows: list[dict[str, Any]] = response.json()["rows"]
    return rows


def is_taken(row: dict[str, Any]) -> bool:
    return bool(row["reserved"] or (row["limit"] == "concurrent" and row["used"]))


def test_two_workers_count_the_same_dollars_and_slots(workers: ProxyProcess, upstream: RecordingUpstream) -> None:
    def post(text: str) -> bytes:
        body = chat_body(f"{text} " + "word " * ANSWER_TOKENS)[:-1] + b', "user": "a", "user": "a"}'
        return message(f"POST {CHAT} HTTP/1.1", "Authorization: Bearer k", body=body)

    with workers:
        upstream.script(*[send(then="stall", stall=2.0)] * 4)
        leaving = [RawClient(workers.url) for _ in range(4)]
        for k, client in enumerate(leaving):
            client.send(post(f"leaves {k}"))
        upstream.wait_for(4)
        (full,) = exchange(workers.url, post("a fifth one"))
        assert full.status == 429
        assert full.json()["error"]["limit"] == "concurrent"
        for client in leaving:
            client.reset()
        wait_until(lambda: not any(map(is_taken, limits(workers))), lambda: f"free slots: {limits(workers)}")
        upstream.clear()
        statuses = [exchange(workers.url, post(f"spent {k}"))[0].status for k in range(25)]
        assert statuses[-1] == 429, (statuses, limits(workers))
        assert (statuses.count(200) - 1) * ANSWER_TOKENS * OUTPUT <= LIMIT
        assert len(upstream.requests) == statuses.count(200)
