"""The admin API on a real cache and history."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.testclient import TestClient

from knapcache import NotOwner, StoreError
from knapcache.proxy.admin import app as subject
from knapcache.proxy.admin.overview import answer_text
from knapcache.proxy.settings.secrets import digest_of
from knapcache.wire.compact import compact_stream
from tests.support.admin_context import TOKEN, AdminHarness
from tests.support.timing import wait_until

API = "/admin/v1"


@pytest.fixture(params=["memory", "file"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AdminHarness]:
    with AdminHarness(tmp_path / "data" if request.param == "file" else None) as made:
        yield made


@pytest.fixture
def client(harness: AdminHarness) -> Iterator[TestClient]:
    with harness.client() as found:
        yield found


def test_the_summary_has_usage_storage_and_health(harness: AdminHarness, client: TestClient) -> None:
    for name in (1, 1, 1, 2):
        harness.request(name)
    wait_until(lambda: harness.cache.stats().entries >= 2)  # the file store counts entries after the write
    found = client.get(f"{API}/summary").raise_for_status().json()
    row = found["all"]
    assert (row["requests"], row["hits"], row["misses"]) == (4, 2, 2)
    assert (row["cost_spent"], row["cost_saved"], row["bytes_saved"]) == (4.0, 4.0, 200)
    assert row["would"] == {"none": 8.0, "lru": 4.0}
    assert found["today"]["requests"] == 4
    assert found["unit"] == "seconds"
    assert found["policy"]["name"] == "lru"
    assert found["storage"]["entries"] == 2
    assert found["storage"]["capacity"] > 0
    assert [model["name"] for model in found["models"]] == ["m"]
    (tenant,) = found["tenants"]
    assert tenant["name"] == "anonymous"
    assert tenant["namespace"] == harness.authenticator.namespace_of("anonymous")
    assert tenant["bytes"] == found["storage"]["bytes"] > 0
    assert found["least_value_per_mb"] > 0
    assert (found["price_per_mb"], found["doubling"]) == (None, None), "no shadow has twice the capacity"
    assert found["storage"]["usable"] < found["storage"]["capacity"] == harness.settings.capacity
    assert found["health"]["store"] == "ok"
    assert found["health"]["owner"] is True
    (upstream,) = found["health"]["upstreams"]
    assert upstream == {
        "name": "fake", "state": "ok", "calls": 4, "errors": 2, "failing_since": None, "reason": "", "failed": 0,
        "last_failure": None, "failing_now": False, "fallback": "", "health": "healthy", "open_until": None,
    }  # fmt: skip
    assert found["started"] <= found["now"]


def test_doubling_compares_twice_the_capacity_with_the_current_one() -> None:
    with AdminHarness(shadows=("lru@2x",), capacity="64KiB") as harness:
        harness.request(0)
        size = harness.cache.entries().rows[0].size
        for _ in range(3):
            for name in range(int(1.5 * 65536 / size)):
                harness.request(name)
        with harness.client() as client:
            found = client.get(f"{API}/summary").json()
        row = found["all"]
        assert row["would"]["lru@2x"] < row["cost_spent"]
        assert row["evictions"] > 0
        assert found["doubling"]["saves"] == pytest.approx(row["cost_spent"] - row["would"]["lru@2x"])
        assert found["price_per_mb"] * harness.settings.capacity / 1e6 == pytest.approx(found["doubling"]["saves"])
        assert found["doubling"]["per_day"] is None
        assert "less than a day" in found["doubling"]["method"]


@pytest.mark.parametrize(("span", "points"), [("hour", 60), ("day", 288), ("month", 124), ("all", 1)])
def test_history_sums_to_the_total(harness: AdminHarness, client: TestClient, span: str, points: int) -> None:
    for name in (1, 1, 2):
        harness.request(name)
    found = client.get(f"{API}/history", params={"span": span}).raise_for_status().json()
    assert len(found["points"]) in (points, points + 1)  # midnight may pass between two calls
    total = client.get(f"{API}/summary").json()["all"]
    for field in ("requests", "hits", "cost_spent", "cost_saved"):
        assert sum(point[field] for point in found["points"]) == total[field]
    assert sum(point["would"].get("lru", 0.0) for point in found["points"]) == total["would"]["lru"]


def test_entries_are_listed_sorted_and_searched(harness: AdminHarness, client: TestClient) -> None:
    cheap, expensive = harness.request(1, cost=1.0), harness.request(2, cost=9.0, model="big")
    found = client.get(f"{API}/entries").raise_for_status().json()
    assert found["total"] == 2
    assert [row["key"] for row in found["rows"]] == [expensive, cheap]
    assert {row["tenant"] for row in found["rows"]} == {"anonymous"}
    up = client.get(f"{API}/entries", params={"sort": "cost", "descending": "false", "limit": 1}).json()
    assert [row["key"] for row in up["rows"]] == [cheap]
    assert up["total"] == 2
    queries: list[tuple[dict[str, Any], int]] = [
        ({"model": "big"}, 1),
        ({"model": ""}, 2),
        ({"search": expensive[:10]}, 1),
        ({"tenant": "anonymous"}, 2),
        ({"tenant": harness.authenticator.namespace_of("anonymous")}, 2),
        ({"tenant": "unknown"}, 0),
        ({"offset": 5}, 2),
    ]
    for query, total in queries:
        assert client.get(f"{API}/entries", params=query).json()["total"] == total, query


def test_content_is_included_only_with_show_content(harness: AdminHarness, client: TestClient) -> None:
    key = harness.request("secret things")
    plain = client.get(f"{API}/entries/{key}").raise_for_status()
    assert plain.json()["key"] == key
    assert "secret things" not in plain.text
    assert "request" not in plain.json()
    with AdminHarness(show_content=True) as shown:
        key = shown.request("é")
        with shown.client() as other:
            row = other.get(f"{API}/entries/{key}").json()
        assert json.loads(row["answer"]) == {"answer": "é"}
        assert "question é" in row["request"]


def test_a_stored_stream_is_shown_as_it_was_sent() -> None:
    stream = b'data: {"id": "1"}\n\n' * 20
    compact = compact_stream(stream)
    assert compact
    assert answer_text(compact, "compact") == answer_text(stream, "sse") == stream.decode()
    assert answer_text(compact[:-1], "compact") == "(a stored stream is damaged)"


def test_unknown_keys_and_paths_are_404_and_wrong_methods_405(client: TestClient) -> None:
    for method, path in (("GET", f"/entries/{'0' * 64}"), ("DELETE", f"/entries/{'0' * 64}"), ("GET", "/nothing")):
        found = client.request(method, API + path)
        assert found.status_code == 404
        assert found.json()["error"]["type"] == "not_found"
    wrong = client.post(f"{API}/summary")
    assert wrong.status_code == 405
    assert "GET" in wrong.headers["allow"]
    assert wrong.json()["error"]["type"] == "method_not_allowed"


def test_an_entry_is_deleted_by_key(harness: AdminHarness, client: TestClient) -> None:
    key, other = harness.request(1), harness.request(2)
    assert client.delete(f"{API}/entries/{key}").json() == {"purged": 1}
    assert client.delete(f"{API}/entries/{key}").status_code == 404
    assert [row["key"] for row in client.get(f"{API}/entries").json()["rows"]] == [other]
    harness.cache.check()


def test_features_learn_that_entries_were_removed(
    harness: AdminHarness, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    async def after_purge() -> None:
        calls.append(None)

    monkeypatch.setattr(harness.features, "after_purge", after_purge)
    key = harness.request(1)
    client.post(f"{API}/purge", json={"all": True, "dry_run": True})
    client.delete(f"{API}/entries/{'00' * 32}")
    assert calls == []
    client.delete(f"{API}/entries/{key}")
    assert len(calls) == 1
    client.post(f"{API}/purge", json={"all": True})
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("conditions", "purged"),
    [
        ({"all": True}, 3),
        ({"model": "m"}, 2),
        ({"model": "none"}, 0),
        ({"tenant": "anonymous"}, 3),
        ({"tenant": "anonymous", "model": "big"}, 1),
        ({"tenant": "unknown"}, 0),
        ({"older_than": 3600}, 0),
        ({"older_than": 0}, 3),
    ],
)
def test_purge_removes_entries_that_meet_every_condition(
    harness: AdminHarness, client: TestClient, conditions: dict[str, Any], purged: int
) -> None:
    for name, model in ((1, "m"), (2, "m"), (3, "big")):
        harness.request(name, model=model)
    time.sleep(0.002)
    rows = client.get(f"{API}/entries").json()["rows"]
    dry = client.post(f"{API}/purge", json=conditions | {"dry_run": True}).json()
    assert (dry["purged"], dry["preview"]["entries"], len(dry["preview"]["rows"])) == (0, purged, purged)
    assert client.get(f"{API}/entries").json()["total"] == 3, "a dry run must remove nothing"
    assert client.post(f"{API}/purge", json=conditions).json() == {"purged": purged}
    left = {row["key"] for row in client.get(f"{API}/entries").json()["rows"]}
    removed = [row for row in rows if row["key"] not in left]
    assert {row["key"] for row in dry["preview"]["rows"]} == {row["key"] for row in removed}
    assert dry["preview"]["bytes"] == sum(row["size"] for row in removed)
    assert client.get(f"{API}/entries").json()["total"] == 3 - purged


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"null", b'{"all": false}', b'{"all": true, "model": "m"}', b'{"all": 1}', b'{"mode": "m"}',
        b'{"older_than": -1}', b'{"older_than": "1"}', b'{"older_than": true}', b'{"key": "00"}', b'{"model": null}',
        b'{"dry_run": true}', b'{"dry_run": 1, "all": true}', b'{"dry_run": true, "all": true, "model": "m"}',
        b'{"tags": []}', b'{"tags": ["a b"]}', b'{"tags": "a"}', b'{"tags": null}', b'{"system": "xyz"}',
        b'{"model": "' + b"m" * 300 + b'"}', b"[" * 5000, b'{"older_than": 1e400}', b"\xff",
    ],
)  # fmt: skip
def test_a_bad_purge_removes_nothing(harness: AdminHarness, client: TestClient, body: bytes) -> None:
    harness.request(1)
    found = client.post(f"{API}/purge", content=body)
    assert found.status_code == 400
    assert found.json()["error"]["message"]
    assert client.get(f"{API}/entries").json()["total"] == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tenant": 3}, "tenant: Input should be a valid string"),
        ({"older_than": "x"}, "older_than: Input should be a valid number"),
        ({"tags": ["a", 3]}, "tags.1: Input should be a valid string"),
    ],
)
def test_a_wrong_type_is_named_by_its_field(client: TestClient, body: dict[str, Any], message: str) -> None:
    found = client.post(f"{API}/purge", json=body)
    assert (found.status_code, found.json()["error"]["message"].partition(",")[0]) == (400, message)


def test_a_large_body_is_rejected(client: TestClient) -> None:
    assert client.post(f"{API}/purge", content=b" " * (65 << 10)).status_code == 413


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/entries?sort=luck", "sort: Input should be 'value', 'size'"),
        ("/entries?limit=0", "limit: Input should be greater than or equal to 1"),
        ("/entries?limit=1e2", "limit: Input should be a valid integer"),
        ("/entries?limit=99999999999999999999", "limit: Input should be a valid integer"),
        ("/entries?descending=yes", "descending: Input should be a valid boolean"),
        ("/entries?limit=1&limit=2", "limit is given twice"),
        ("/entries?lmit=1", "unknown name 'lmit'; known names: search, model"),
        ("/entries?search=" + "x" * 201, "search: String should have at most 200"),
        ("/entries/xyz", "key: String should match pattern"),
        (f"/entries/{'0' * 64}%0A", "key: String should match pattern"),
        (f"/entries/{'0' * 64}?key=1", "unknown name 'key'; known names: none"),
        ("/history?span=week", "span: Input should be 'hour', 'day', 'month' or 'all'"),
        ("/summary?x=1", "unknown name 'x'; known names: none"),
    ],
)
def test_bad_parameters_are_named(client: TestClient, path: str, message: str) -> None:
    found = client.get(API + path)
    assert found.status_code == 400
    assert message in found.json()["error"]["message"]


def test_requests_after_a_serial_number_are_listed_in_order(harness: AdminHarness, client: TestClient) -> None:
    harness.request(1)
    found = client.get(f"{API}/requests").json()
    assert found["serial"] == 1
    (row,) = found["rows"]
    assert (row["outcome"], row["model"], row["tenant"], row["saved"]) == ("miss", "m", "anonymous", False)
    for name in range(5):
        harness.request(name)
    found = client.get(f"{API}/requests", params={"after": 1, "limit": 3}).json()
    assert [row["serial"] for row in found["rows"]] == [4, 5, 6]
    assert client.get(f"{API}/requests", params={"after": 6}).json() == {"serial": 6, "rows": []}
    # A serial number of an earlier process.
    assert len(client.get(f"{API}/requests", params={"after": 10**6}).json()["rows"]) == 6
    for _ in range(1200):
        harness.request(1)
    found = client.get(f"{API}/requests", params={"limit": 1000}).json()
    assert [row["serial"] for row in found["rows"]] == list(range(207, 1207))


def test_requests_of_other_proxies_are_read_before_they_are_listed(harness: AdminHarness) -> None:
    shared = Mock()
    harness.context = replace(harness.context, shared=shared)
    with harness.client() as client:
        client.get(f"{API}/requests").raise_for_status()
    shared.refresh.assert_called_once_with()


def test_tenants_have_names_and_quotas() -> None:
    keys = {name: f"key of {name}".ljust(24, "x") for name in ("alone", "red", "blue")}
    tenants: list[dict[str, Any]] = [{"name": name, "keys": [digest_of(key)]} for name, key in keys.items()]
    tenants[0] |= {"quota": "5MB"}
    tenants[1] |= {"group": "colours"}
    tenants[2] |= {"group": "colours"}
    with AdminHarness(tenants=tenants) as harness:
        for name, key in keys.items():
            harness.request(f"of {name}", key)
        with harness.client() as client:
            found = {one["name"]: one for one in client.get(f"{API}/summary").json()["tenants"]}
            assert found.keys() == {"alone", "red", "blue"}
            assert found["alone"]["quota"] == 5_000_000
            assert found["red"]["quota"] is None
            assert found["red"]["namespace"] == found["blue"]["namespace"] != found["alone"]["namespace"]
            assert found["red"]["bytes"] == found["blue"]["bytes"] > found["alone"]["bytes"] > 0
            names = {row["tenant"] for row in client.get(f"{API}/entries").json()["rows"]}
            assert names == {"alone", "colours"}
            assert client.get(f"{API}/entries", params={"tenant": "red"}).json()["total"] == 2
            assert client.post(f"{API}/purge", json={"tenant": "alone"}).json() == {"purged": 1}
            assert client.post(f"{API}/purge", json={"tenant": "colours"}).json() == {"purged": 2}


def test_callers_without_a_tenant_are_found_by_their_displayed_name() -> None:
    with AdminHarness() as harness:
        harness.request(1, "sk-caller")
        with harness.client() as client:
            (row,) = client.get(f"{API}/entries").json()["rows"]
            assert row["tenant"].startswith("caller-")
            assert client.get(f"{API}/entries", params={"tenant": row["tenant"]}).json()["total"] == 1
            assert client.post(f"{API}/purge", json={"tenant": row["tenant"]}).json() == {"purged": 1}


def test_a_snapshot_includes_the_history(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        harness.request(1)
        with harness.client() as client:
            assert client.post(f"{API}/snapshot").json() == {"saved": True}
        assert json.loads((tmp_path / "history.json").read_bytes())["total"][0] == 1


def test_changes_in_a_reader_process_are_409(tmp_path: Path) -> None:
    owner = AdminHarness(tmp_path)
    key = owner.request(1)
    with AdminHarness(tmp_path) as other:
        with other.client() as client:
            for method, path, body in (
                ("POST", "/purge", {"all": True}),
                ("DELETE", f"/entries/{key}", None),
                ("POST", "/snapshot", None),
            ):
                found = client.request(method, API + path, json=body)
                assert found.status_code == 409, path
                assert found.json()["error"]["type"] == "not_owner"
            summary = client.get(f"{API}/summary").raise_for_status().json()
            assert summary["health"]["owner"] is False
            assert client.get(f"{API}/entries").status_code == 200
        owner.close()


def test_a_failing_or_hanging_store_is_503(harness: AdminHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, Any]:
        raise StoreError("the disk is gone")

    hang = threading.Event()
    with harness.client() as client:
        monkeypatch.setattr(harness.context.cache, "purge", lambda _: broken())
        found = client.post(f"{API}/purge", json={"all": True})
        assert (found.status_code, found.json()["error"]["type"]) == (503, "store_failed")
        monkeypatch.setattr(subject, "DEADLINE", 0.05)
        monkeypatch.setattr(harness.context.cache, "purge", lambda _: hang.wait(20))
        found = client.post(f"{API}/purge", json={"all": True})
        assert (found.status_code, found.json()["error"]["type"]) == (503, "store_failed")
        hang.set()
        monkeypatch.setattr(harness.context.cache, "purge", Mock(side_effect=NotOwner("another")))
        assert client.post(f"{API}/purge", json={"all": True}).status_code == 409


def test_metrics_need_the_token_unless_public() -> None:
    for public, status in ((True, 200), (False, 401)):
        with AdminHarness(metrics_public=public) as harness, harness.client(headers={}) as client:
            assert client.get("/metrics").status_code == status
            found = client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
            assert "\nknapcache_entries 0.0\n" in found.text
            assert found.headers["content-type"].startswith("text/plain")
