"""The content log in the admin API: who may read it, and what is recorded of that."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from knapcache.features.content_log.file import ContentFile
from knapcache.proxy.settings.secrets import digest_of
from tests.support.admin_context import AdminHarness
from tests.support.content_lines import NOW, chat, write

API = "/admin/v1"
VIEWER = "the token of a viewer, who may not read content"
TOKENS = [{"name": "viewer", "role": "read-only", "digest": digest_of(VIEWER)}]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AdminHarness]:
    made = AdminHarness(tmp_path / "data", content_log=True, show_content=True, admin_tokens=TOKENS)
    with contextlib.closing(ContentFile(tmp_path / "data" / "content.sqlite")) as file:
        write(
            file,
            chat("Where is the refund policy?", time=NOW - 100),
            chat("Where is it?", model="claude-x", tenant="b", outcome="hit"),
        )
    yield made
    made.close()


@pytest.fixture
def client(harness: AdminHarness) -> Iterator[TestClient]:
    with harness.client() as found:
        yield found


def found(client: TestClient, **query: Any) -> list[int]:
    rows = client.get(f"{API}/log", params=query).raise_for_status().json()["rows"]
    return [row["id"] for row in rows]


def test_an_operator_searches_and_reads_lines(harness: AdminHarness, client: TestClient) -> None:
    assert found(client) == [2, 1]
    assert found(client, text="where", limit=1) == [2]
    assert found(client, text="where", limit=1, before=2) == [1]
    assert found(client, before=1) == []
    assert found(client, text="refund pol*") == [1]
    assert found(client, model="claude-*", tenant="b", outcome="hit", since=NOW - 1, until=time.time() + 1) == [2]
    assert found(client, until=NOW - 50) == [1]
    (row,) = client.get(f"{API}/log", params={"text": "refund"}).json()["rows"]
    assert row["excerpt"] == "Be brief.\nWhere is the \x02refund\x03 policy?"
    line = client.get(f"{API}/log/lines/1").raise_for_status().json()
    assert line["request"]["messages"][1]["content"] == "Where is the refund policy?"
    assert line["answer"] == "Forty-two."
    assert client.get(f"{API}/log/lines/9").status_code == 404
    records = harness.context.audit.newest(10)
    assert [record["action"] for record in records] == ["log_line", "log"]  # one record an hour of the list
    assert not any("refund" in str(record) for record in records)


def test_lines_are_purged(harness: AdminHarness, client: TestClient) -> None:
    def purge(**body: Any) -> Any:
        return client.post(f"{API}/log/purge", json=body).raise_for_status().json()

    assert purge(text="refund", dry_run=True) == {"deleted": 1, "dry_run": True}
    assert purge(text="refund", tenant="b") == {"deleted": 0, "dry_run": False}
    assert purge(text="refund", before=time.time()) == {"deleted": 1, "dry_run": False}
    assert purge(all=True) == {"deleted": 1, "dry_run": False}
    newest = harness.context.audit.newest(1)[0]
    assert (newest["action"], newest["parameters"], newest["result"]) == ("purge_log", {"all": True}, {"deleted": 1})
    assert "refund" not in str(harness.context.audit.newest(10))


@pytest.mark.parametrize(
    "body", [{}, {"all": False}, {"text": ""}, {"model": ""}, {"all": True, "tenant": "a"}, {"x": 1}]
)
def test_a_purge_needs_conditions(client: TestClient, body: dict[str, Any]) -> None:
    assert client.post(f"{API}/log/purge", json=body).status_code == 400


@pytest.mark.parametrize(
    "query", [{"text": "?"}, {"limit": 0}, {"before": 0}, {"since": "yesterday"}, {"until": "nan"}, {"x": 1}]
)
def test_wrong_parameters_are_refused(client: TestClient, query: dict[str, Any]) -> None:
    assert client.get(f"{API}/log", params=query).status_code == 400


def test_a_viewer_may_not_read(harness: AdminHarness) -> None:
    with harness.client(headers={"authorization": f"Bearer {VIEWER}"}) as viewer:
        assert viewer.get(f"{API}/log").status_code == 403
        assert viewer.get(f"{API}/log/lines/1").status_code == 403
        assert viewer.post(f"{API}/log/purge", json={"all": True}).status_code == 403


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"show_content": True}, (404, "not_found")), ({"content_log": True}, (409, "no_content"))],
)
def test_settings_must_allow_it(tmp_path: Path, settings: dict[str, Any], error: tuple[int, str]) -> None:
    made = AdminHarness(tmp_path / "other", **settings)
    with made.client() as client:
        for path in ("log", "log/lines/1"):
            response = client.get(f"{API}/{path}")
            assert (response.status_code, response.json()["error"]["type"]) == error
        assert client.get(f"{API}/summary").json().get("content_log") is (None if error[0] == 404 else False)
    made.close()
