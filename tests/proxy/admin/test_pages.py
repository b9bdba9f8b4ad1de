"""The dashboard's files over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from knapcache.proxy.admin import pages as subject
from tests.support.admin_context import AdminHarness


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    folder = tmp_path / "pages"
    (folder / "more").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>é</title>", encoding="utf-8")
    (folder / "app.js").write_text("export {};")
    (folder / "more" / "style.css").write_text("body {}")
    (folder / "notes.txt").write_text("not for browsers")
    (tmp_path / "secret.js").write_text("outside")
    monkeypatch.setattr(subject, "FOLDER", folder)
    harness = AdminHarness()
    with harness.client(headers={}) as found:
        yield found
    harness.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/dashboard", "text/html; charset=utf-8"),
        ("/dashboard/", "text/html; charset=utf-8"),
        ("/dashboard/index.html", "text/html; charset=utf-8"),
        ("/dashboard/entries", "text/html; charset=utf-8"),
        pytest.param("/dashboard/semantic", "text/html; charset=utf-8", marks=pytest.mark.features),
        pytest.param(
            "/dashboard/features/semantic/panel.js", "text/javascript; charset=utf-8", marks=pytest.mark.features
        ),
        ("/dashboard/app.js", "text/javascript; charset=utf-8"),
        ("/dashboard/more/style.css", "text/css; charset=utf-8"),
    ],
)
def test_files_have_security_headers_and_etags(client: TestClient, path: str, kind: str) -> None:
    found = client.get(path)
    assert found.status_code == 200
    assert found.headers["content-type"] == kind
    assert found.headers["content-security-policy"] == (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    )
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["referrer-policy"] == "no-referrer"
    assert found.headers["cache-control"] == "no-cache"
    tag = found.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = client.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200
    head = client.head(path)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag)


@pytest.mark.parametrize(
    "path",
    ["/dashboard/none.js", "/dashboard/notes.txt", "/dashboard/../secret.js", "/dashboard/%2e%2e/secret.js",
     "/dashboard//etc/passwd", "/dashboard/more", "/dashboard/nothing", "/dashboard/entries/",
     "/dashboard/features/semantic/__init__.py", "/dashboard/more/..%2fapp.js", "/dashboard/app.js/", "/dashboardx"],
)  # fmt: skip
def test_other_paths_are_404(client: TestClient, path: str) -> None:
    found = client.get(path)
    assert found.status_code == 404
    assert found.json()["error"]["type"] == "not_found"
    assert found.headers["content-security-policy"].startswith("default-src 'none'")


def test_the_root_redirects_to_the_dashboard(client: TestClient) -> None:
    found = client.get("/")
    assert (found.status_code, found.headers["location"]) == (307, "/dashboard")


def test_the_dashboard_can_be_disabled() -> None:
    with AdminHarness(dashboard=False) as harness, harness.client() as client:
        for path in ("/", "/dashboard", "/dashboard/app.js"):
            assert client.get(path).status_code == 404
        assert client.get("/admin/v1/requests").status_code == 200
